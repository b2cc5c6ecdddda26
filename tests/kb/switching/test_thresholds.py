"""A threshold is measured by questions spread over the facts, among all keys, of which few are read at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys.activation import measure_threshold
from colmlm.kb.keys.calibration import calibrate_threshold
from colmlm.kb.keys.keycopy import indexed_ids, indexed_keys
from colmlm.kb.keys.keysets import context_keys, facts_with_question, valued_keys
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest, numbered

WHO = {"actor": "tester", "reason": "test"}
UNASKED = document("unasked", "Nobody asks for ", ("this", ""), ".")


def test_questions_are_spread_evenly_over_live_facts_that_have_one(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, UNASKED, *numbered(10))
    keyset = kb.keysets.rekey(encoder)
    first = kb.facts.find(text="value 0")[0].fact_id
    kb.facts.delete([first], **WHO)
    with kb.sessions() as session:
        spread = [facts_with_question(session, keyset.keyset_id, size) for size in (3, 5, 9, 100)]
    assert [fact.value for fact in spread[0]] == ["value 1", "value 4", "value 7"]
    assert [len(facts) for facts in spread] == [3, 5, 9, 9]
    assert {fact.question for fact in spread[3]} == {f"Question {n}?" for n in range(1, 10)}


def test_a_threshold_is_the_same_as_that_of_all_keys_at_once(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(40))
    keyset = kb.keysets.rekey(encoder)

    def encode(questions: Sequence[str]) -> np.ndarray:
        moved = encoder.encode_questions(questions) + 0.3 * encoder.encode_questions(questions)[::-1]
        return moved / np.linalg.norm(moved, axis=1, keepdims=True)

    found = measure_threshold(kb, keyset, encode, 20)
    facts = {fact.fact_id: fact for fact in kb.facts.every()}
    with kb.sessions() as session:
        asked = facts_with_question(session, keyset.keyset_id, 20)
        ids, keys = context_keys(session, keyset.keyset_id, None)
        (batch,) = valued_keys(session, keyset.keyset_id, keyset.dim)
    said = [fact.value for fact in asked]
    together = ([facts[fact_id].value for fact_id in ids.tolist()], keys)
    assert found == calibrate_threshold(encode([fact.question for fact in asked]), said, [together])
    assert sorted(batch[0]) == sorted(together[0]) and found.num_questions == 20


def test_a_base_without_questions_has_no_threshold_to_measure(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, UNASKED)
    with pytest.raises(InvalidValue, match="needs questions"):
        measure_threshold(kb, kb.keysets.rekey(encoder), encoder.encode_questions, 10)


def test_the_ids_of_an_index_are_those_of_its_keys(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(5))
    keyset = kb.keysets.rekey(encoder)
    kb.facts.delete([kb.facts.find(text="value 3")[0].fact_id], **WHO)
    with kb.sessions() as session:
        ids = indexed_ids(session, keyset.keyset_id)
        ((with_keys, _),) = indexed_keys(session, keyset.keyset_id, keyset.dim)
    assert ids.dtype == np.int64 and ids.tolist() == with_keys.tolist() and len(ids) == 4
