"""Lookups found together are what they are alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from colmlm.kb.errors import InvalidQuery, KeysetMismatch
from colmlm.kb.lookup.replica import KeyLookup, find_together
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ingest


def test_each_gets_what_it_gets_alone_and_an_error_is_its_own(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    query = encoder.encode_questions([CAPITAL])
    one = KeyLookup(query, encoder.checkpoint.checkpoint_id, {})
    asked = [
        one,
        replace(one, queries_BD=np.concatenate([query, -query])),
        replace(one, options={"k": 2, "threshold": -1.0}),
        replace(one, queries_BD=np.full_like(query, np.nan)),
        replace(one, queries_BD=query[:, 1:]),
        replace(one, checkpoint_id="another"),
    ]
    found = find_together(kb.lookups, asked)
    assert found[:3] == [result for one in asked[:3] for result in find_together(kb.lookups, [one])]
    assert found[0] == found[1][:1] and found[0][0].hits and len(found[2][0].hits) == 2
    assert [type(error) for error in found[3:]] == [InvalidQuery, InvalidQuery, KeysetMismatch]
