"""Of two facts that contradict each other and are about as near, the accepted one answers, and else the newer one."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.ranking import CLOSE, settle_ranking
from colmlm.kb.lookup.records import Hit, Ranking
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import ask, values

WHO = {"actor": "tester", "reason": "test"}
TOWER = "When was the Eiffel Tower opened?"


@pytest.fixture
def tower(kb: KnowledgeBase, encoder: FakeEncoder) -> list[int]:
    """Two facts of one question, and so with one key: "1889", then "1890"."""
    ids = [kb.facts.add(TOWER, value, anyway=True, **WHO).fact_ids[0] for value in ("1889", "1890")]
    activated(kb, kb.keysets.rekey(encoder).keyset_id)
    return ids


def test_the_newer_value_answers(kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]):
    assert values(kb, encoder, [TOWER]) == ["1890"]
    kb.facts.edit(tower[0], "1888", **WHO)
    assert values(kb, encoder, [TOWER]) == ["1888"]
    kb.facts.delete(tower[:1], **WHO)
    assert values(kb, encoder, [TOWER]) == ["1890"]
    kb.facts.restore(tower[:1], **WHO)
    assert values(kb, encoder, [TOWER]) == ["1888"]


def test_an_accepted_fact_answers_before_a_newer_one_that_is_proposed(
    kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]
):
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE fact SET review = 'proposed' WHERE id = :id"), {"id": tower[1]})
    assert values(kb, encoder, [TOWER]) == ["1889"]


def test_both_are_hits_in_that_order(kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]):
    (found,) = ask(kb, encoder, TOWER, k=2)
    assert [hit.value for hit in found.hits] == ["1890", "1889"]


def test_a_fact_answers_before_one_that_is_a_little_nearer(
    kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]
):
    """The older one is the best by more than rounding, so that the newer one is not read at first."""
    (key,), (aside,) = (encoder.encode_questions([asked]) for asked in (TOWER, "What else?"))
    aside -= (aside @ key) * key
    query = 0.995 * key + np.sqrt(1 - 0.995**2) * aside / np.linalg.norm(aside)
    alias, older = query[None].astype(np.float32), np.array(tower[:1])
    kb.keysets.store_keys(kb.keysets.active().keyset_id, older, alias, kind="alias", **WHO)
    (found,) = kb.lookups.find(alias, checkpoint_id=encoder.checkpoint.checkpoint_id, threshold=0.5)
    assert [hit.value for hit in found.hits] == ["1890"]
    assert found.hits[0].score == pytest.approx(0.995, abs=2e-3)


def test_where_both_hold_the_nearer_answers(kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]):
    kb.comparisons.note_both_right(*tower, **WHO)
    assert values(kb, encoder, [TOWER]) == ["1889"], "of two as near, the older"


def test_paper_knows_no_rule_and_the_past_that_of_its_time(
    kb: KnowledgeBase, encoder: FakeEncoder, tower: list[int]
):
    _, found = Questions(kb, [encoder]).nearest_one(TOWER, None)
    assert [hit.value for hit in found.hits] == ["1889"]
    both, of = kb.log.head_seq(), {"checkpoint_id": encoder.checkpoint.checkpoint_id}
    queries = encoder.encode_questions([TOWER])
    (now,) = kb.lookups.find(queries, **of)
    kb.facts.delete([now.hits[0].fact_id], actor="tester", reason="test")
    (then,) = kb.lookups.as_of(both).find(queries, **of)
    assert [hit.value for hit in then.hits] == [hit.value for hit in now.hits] == ["1890"]
    (later,) = kb.lookups.as_of(kb.log.head_seq()).find(queries, **of)
    assert [hit.value for hit in later.hits] == ["1889"]


def ranking(*scores: float) -> Ranking:
    return Ranking(tuple(Hit(n, 1, str(n), score, n) for n, score in enumerate(scores, 1)))


def order(found: Ranking) -> list[int]:
    return [hit.fact_id for hit in found.hits]


def test_only_what_is_close_and_above_the_threshold_competes():
    yields = {1: (3,)}
    assert order(settle_ranking(ranking(0.9, 0.895, 0.9 - CLOSE / 2), yields, 0.5, 1)) == [3, 1, 2]
    assert order(settle_ranking(ranking(0.9, 0.895, 0.9 - 2 * CLOSE), yields, 0.5, 1)) == [1, 2, 3]
    assert order(settle_ranking(ranking(0.9, 0.895, 0.89), yields, 0.893, 1)) == [1, 2, 3]
    assert order(settle_ranking(ranking(0.9, 0.9, 0.9), {1: (2,), 2: (3,)}, 0.5, 1)) == [3, 1, 2]
    assert order(settle_ranking(ranking(0.9, 0.8, 0.8), {2: (3,)}, 0.5, 2)) == [1, 3, 2]
    assert order(settle_ranking(ranking(0.9, 0.8, 0.8), {2: (3,)}, 0.5, 1)) == [1, 2, 3]
