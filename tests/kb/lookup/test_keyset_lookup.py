"""Lookups in a named keyset: side by side with the active one, and as exact about deletes and mismatches."""

from __future__ import annotations

import pytest

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import CAPITAL, PERU, RIVER, ask, fact_id, ingest, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


def asked(lookup: Searcher, encoder: FakeEncoder, *questions: str) -> list[str | None]:
    queries = encoder.encode_questions(questions)
    found = lookup.find(queries, checkpoint_id=encoder.checkpoint.checkpoint_id)
    return [one.hits[0].value if one.hits else None for one in found]


def test_a_keyset_that_is_not_active_answers_beside_the_one_that_is(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    other = FakeEncoder("other", dim=16)
    second = kb.keysets.rekey(other)
    lookup = kb.lookups.in_keyset(second.keyset_id)
    assert asked(lookup, other, CAPITAL, RIVER) == ["Lima", "Amazon"]
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Lima", "Amazon"]
    with pytest.raises(KeysetMismatch) as refused:
        asked(lookup, encoder, CAPITAL)
    assert (refused.value.wanted, refused.value.active) == ("fake", "fakeother")
    with pytest.raises(KeysetMismatch, match=r"the active keyset from 'fake'.*`colmlm keysets activate`"):
        ask(kb, other, CAPITAL)

    edit = kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    kb.facts.edit(fact_id(kb, "Amazon"), "Marañón", **WHO)
    assert asked(lookup, other, CAPITAL, RIVER) == [None, "Marañón"]
    (late,) = lookup.find(
        other.encode_questions([RIVER]), checkpoint_id="fakeother", k=5, threshold=-1, min_seq=edit.seq
    )
    assert len(late.hits) == 2 and late.threshold == -1 and late.seq >= edit.seq
    activated(kb, second.keyset_id)
    assert asked(lookup, other, RIVER) == ["Marañón"] == values(kb, other, [RIVER])


def test_a_keyset_that_cannot_answer_is_refused_by_name(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    with raises_code("KeysetNotFound"):
        asked(kb.lookups.in_keyset(77), encoder, CAPITAL)
    other = FakeEncoder("other")
    building = kb.lookups.in_keyset(kb.keysets.create(other.checkpoint).keyset_id)
    with raises_code("KeysetNotReady", match="building"):
        asked(building, other, CAPITAL)
    second = kb.keysets.rekey(other)
    assert asked(building, other, CAPITAL) == ["Lima"]
    kb.keysets.retire(second.keyset_id)
    with raises_code("KeysetNotReady", match="retired"):
        asked(building, other, CAPITAL)
