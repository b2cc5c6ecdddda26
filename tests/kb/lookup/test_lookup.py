"""Lookup against brute force, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest

from colmlm.kb.errors import IndexBehind, InvalidQuery, KeysetMismatch
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated
from tests.gates import index_held_up
from tests.kb.corpora import CAPITAL, CHILE, PERU, RIVER, ask, best, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def keyed(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    ingest(kb, *numbered(60))
    kb.keysets.rekey(encoder)
    return kb


def test_scores_are_exact_products_with_the_stored_keys(keyed: KnowledgeBase, encoder: FakeEncoder):
    fact_ids, keys = keyed.keysets.keys(keyed.keysets.active().keyset_id)
    queries = np.random.default_rng(0).standard_normal((5, encoder.dim)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = keyed.lookups.find(queries, checkpoint_id="fake", k=60, threshold=-1)
    for query, lookup in zip(queries, found, strict=True):
        scores = dict(zip(fact_ids.tolist(), (keys @ query).tolist(), strict=True))
        assert [h.fact_id for h in lookup.hits] == sorted(scores, key=lambda f: -scores[f])
        assert [h.score for h in lookup.hits] == pytest.approx(
            [scores[h.fact_id] for h in lookup.hits], abs=1e-5
        )
        assert lookup.runner_up == lookup.hits[0].score


def test_k_and_threshold_bound_the_hits(keyed: KnowledgeBase, encoder: FakeEncoder):
    (few,) = ask(keyed, encoder, "Question 3?", k=5, threshold=-1)
    assert len(few.hits) == 5 and few.hits[0].value == "value 3"
    (one,) = ask(keyed, encoder, "Question 3?", k=5, threshold=0.9)
    assert [h.value for h in one.hits] == ["value 3"]


def test_a_batch_answers_each_query_and_an_empty_batch_nothing(keyed: KnowledgeBase, encoder: FakeEncoder):
    answers = ask(keyed, encoder, "Question 3?", "No such?", "Question 4?")
    assert [[h.value for h in a.hits] for a in answers] == [["value 3"], [], ["value 4"]]
    assert keyed.lookups.find(np.empty((0, encoder.dim)), checkpoint_id="fake") == []


def test_a_fact_with_several_keys_is_one_hit_at_its_best(keyed: KnowledgeBase, encoder: FakeEncoder):
    three, keyset_id = fact_id(keyed, "value 3"), keyed.keysets.active().keyset_id
    with keyed.engine.begin() as connection:
        for alias in ("Third?", "The third?"):
            key = encoder.encode_questions([alias])[0].astype("<f2").tobytes()
            connection.exec_driver_sql(
                "INSERT INTO fact_key (keyset_id, id, fact_id, kind, key)"
                " VALUES (%s, nextval('fact_key_id_seq'), %s, 'alias', %s)",
                (keyset_id, three, key),
            )
    keyed.lookups.rebuild()
    (lookup,) = ask(keyed, encoder, "Third?", k=60, threshold=-1)
    assert lookup.hits[0].value == "value 3" and lookup.hits[0].score == pytest.approx(1, abs=1e-2)
    assert len({h.fact_id for h in lookup.hits}) == len(lookup.hits) == 60
    assert keyed.upkeep.fsck().ok


def test_a_lookup_in_the_steady_state_is_one_statement(
    keyed: KnowledgeBase, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
):
    best(keyed, encoder, "Question 3?")
    applied_seq = keyed.searcher.current().applied_seq
    statements: list[str] = []
    execute = psycopg.Cursor.execute

    def spy(cursor: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        statements.append(str(statement))
        return execute(cursor, statement, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", spy)
    best(keyed, encoder, "Question 4?", min_seq=applied_seq)
    assert len(statements) == 1 and "FROM fact_key" in statements[0]


def test_a_seq_that_nobody_made_is_not_waited_for(keyed: KnowledgeBase, encoder: FakeEncoder):
    head = keyed.log.head_seq()
    with raises_code("NoSuchChange") as unmade:
        ask(keyed, encoder, CAPITAL, min_seq=head + 1)
    assert (unmade.value.seq, unmade.value.head) == (head + 1, head)


def test_a_seq_that_the_index_does_not_reach_in_time_is_index_behind(
    keyed: KnowledgeBase, encoder: FakeEncoder
):
    before = keyed.lookups.catch_up()
    seq = keyed.facts.add("Q?", "A", **WHO).seq
    with index_held_up(keyed), pytest.raises(IndexBehind) as behind:
        ask(keyed, encoder, CAPITAL, min_seq=seq)
    assert (behind.value.min_seq, behind.value.applied_seq) == (seq, before)


def test_queries_of_another_checkpoint_are_refused_whatever_their_width(keyed: KnowledgeBase):
    for width in (3, 32):
        with pytest.raises(KeysetMismatch):
            keyed.lookups.find(np.zeros((1, width)), checkpoint_id="another")


def test_a_query_that_makes_no_sense_is_refused(
    kb: KnowledgeBase, encoder: FakeEncoder, subtests: pytest.Subtests
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    for query, options in (
        (np.zeros(32), {}),
        (np.zeros((1, 31)), {}),
        (np.full((1, 32), np.nan), {}),
        (np.zeros((1, 32)), {"k": 0}),
        (np.zeros((1, 32)), {"k": 10**6}),
        (np.zeros((1, 32)), {"threshold": float("nan")}),
    ):
        with subtests.test(query=query, options=options), pytest.raises(InvalidQuery):
            kb.lookups.find(query, checkpoint_id="fake", **options)


def test_a_fact_deleted_to_abstain_is_no_match_even_where_another_fact_is_near(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    kb.facts.delete([lima], abstain=True, **WHO)
    (lookup,) = ask(kb, encoder, CAPITAL, threshold=-1, k=3)
    assert lookup.hits == () and lookup.abstained == lima and lookup.runner_up is not None
    (elsewhere,) = ask(kb, encoder, RIVER, threshold=0.9)
    assert elsewhere.abstained is None and elsewhere.hits[0].value == "Amazon"
    assert kb.upkeep.fsck().ok
    kb.facts.restore([lima], **WHO)
    assert best(kb, encoder, CAPITAL, threshold=0.9).value == "Lima"


def test_abstaining_survives_a_move_to_another_checkpoint(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    kb.facts.delete([lima], abstain=True, **WHO)
    newer = FakeEncoder(salt="newer")
    activated(kb, kb.keysets.rekey(newer).keyset_id)
    (lookup,) = ask(kb, newer, CAPITAL, threshold=-1)
    assert lookup.hits == () and lookup.abstained == lima
