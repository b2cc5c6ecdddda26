"""As-of lookups and diffs agree with a replay of the edits, kept beside them in a dictionary."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.lookup.lookups import AsOf
from colmlm.kb.lookup.records import AsOfLookup, Lookup
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import CAPITAL, CHILE, PERU, RIVER, ask, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}

State = dict[int, str | None]  # the value of each live fact; None is a tombstone


def _ask_as_of(
    kb: KnowledgeBase, encoder: FakeEncoder, seq: int, *questions: str, **options
) -> list[AsOfLookup]:
    """What was found then; three keys and three queries at a time, so that a fact's keys are in two chunks."""
    queries = encoder.encode_questions(questions)
    then = AsOf(kb, seq, keys_at_once=3, queries_at_once=3)
    return then.find(queries, checkpoint_id="fake", **options)


def _edit_at_random(kb: KnowledgeBase, chance: random.Random, state: State, fact_ids: list[int]) -> None:
    """One edit of the base and the same edit of the dictionary."""
    live = sorted(f for f, value in state.items() if value is not None)
    gone = sorted(set(fact_ids) - set(live))
    verb = chance.choice(["update", "delete", "abstain", "restore"])
    if verb == "restore" and gone:
        chosen = chance.sample(gone, min(2, len(gone)))
        kb.facts.restore(chosen, **WHO)
        state.update({f: kb.facts.show(f).value for f in chosen})
    elif verb == "update" and live:
        chosen = chance.choice(live)
        state[chosen] = f"corrected {chance.random()}"
        kb.facts.edit(chosen, state[chosen], **WHO)
    elif len(live) > 2:
        chosen = chance.sample(live, 2)
        kb.facts.delete(chosen, abstain=verb == "abstain", **WHO)
        for fact in chosen:
            state.pop(fact)
            if verb == "abstain":
                state[fact] = None


def _double_keys(kb: KnowledgeBase) -> None:
    """Give every fact a second key, which is the same as its first."""
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO fact_key SELECT keyset_id, nextval('fact_key_id_seq'), fact_id, 'alias', key FROM fact_key"
            )
        )
    kb.lookups.rebuild()


def test_more_of_the_past_than_is_taken_at_once_is_refused_with_the_numbers(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, *numbered(8))
    kb.keysets.rekey(encoder)
    kb.settings = replace(kb.settings, as_of_max_scores=16)
    asked = [f"Question {n}?" for n in range(3)]
    assert len(_ask_as_of(kb, encoder, kb.log.head_seq(), *asked[:2])) == 2
    with raises_code(
        "PastTooLarge", match=r"3 questions with 8 vectors: 24 comparisons, of at most 16.*Ask 2 quest"
    ):
        _ask_as_of(kb, encoder, kb.log.head_seq(), *asked)
    kb.settings = replace(kb.settings, as_of_max_scores=7)
    with raises_code("PastTooLarge", match="Ask a smaller base"):
        _ask_as_of(kb, encoder, kb.log.head_seq(), asked[0])


def test_as_of_any_change_answers_as_a_replay_of_the_edits(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(8))
    kb.keysets.rekey(encoder)
    _double_keys(kb)
    facts = [fact.fact_id for fact in kb.facts.find()]
    questions = [f"Question {n}?" for n in range(8)]
    chance = random.Random(7)
    state: State = {fact.fact_id: fact.value for fact in kb.facts.find()}
    states: dict[int, State] = {kb.log.head_seq(): dict(state)}
    for _ in range(25):
        _edit_at_random(kb, chance, state, facts)
        states[kb.log.head_seq()] = dict(state)
    assert len(states) > 20
    for seq, then in states.items():
        found = _ask_as_of(kb, encoder, seq, *questions, threshold=0.9, k=2)
        assert [(f.hits[0].fact_id, f.hits[0].value) if f.hits else None for f in found] == [
            (fact, then[fact]) if then.get(fact) is not None else None for fact in facts
        ]
        assert [f.abstained for f in found] == [
            fact if fact in then and then[fact] is None else None for fact in facts
        ]
        assert all(f.seq == seq and f.redacted == 0 for f in found)
    now = ask(kb, encoder, *questions, k=3, threshold=-1)
    head = _ask_as_of(kb, encoder, kb.log.head_seq(), *questions, k=3, threshold=-1)
    assert [_said(found) for found in head] == [_said(found) for found in now]
    _diffs_agree(kb, states, chance)


def _said(found: Lookup) -> tuple[object, ...]:
    """A lookup but for the last bits of its scores: sums of one row and of many are rounded differently."""
    hits = [(h.fact_id, h.version, h.value, round(h.score, 5)) for h in found.hits]
    return hits, found.abstained, found.runner_up is not None and round(found.runner_up, 5)


def _diffs_agree(kb: KnowledgeBase, states: dict[int, State], chance: random.Random) -> None:
    for _ in range(10):
        first, last = sorted(chance.sample(sorted(states), 2))
        was, now = ({f: v for f, v in states[seq].items() if v is not None} for seq in (first, last))
        expected = {
            (fact, was.get(fact), now.get(fact)) for fact in {*was, *now} if was.get(fact) != now.get(fact)
        }
        found = kb.log.diff(first, last)
        assert {(d.fact_id, d.old, d.new) for d in found.facts} == expected
        assert all((d.kind == "updated") == (d.old is not None and d.new is not None) for d in found.facts)
        assert sum(found.counts.values()) == len(expected)


def test_a_diff_says_what_was_done_and_to_which_corpus(kb: KnowledgeBase):
    ingest(kb, PERU)
    before = kb.log.head_seq()
    ingest(kb, CHILE, corpus="others")
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    kb.facts.delete([amazon], **WHO)
    deleted = kb.log.head_seq()
    kb.facts.edit(lima, "Cusco", **WHO)
    kb.facts.restore([amazon], **WHO)
    assert [(d.kind, d.old, d.new) for d in kb.log.diff(before, kb.log.head_seq()).facts] == [
        ("updated", "Lima", "Cusco"),
        ("inserted", None, "Santiago"),
    ]
    assert [(d.kind, d.new) for d in kb.log.diff(deleted, kb.log.head_seq(), corpus="lands").facts] == [
        ("updated", "Cusco"),
        ("restored", "Amazon"),
    ]
    assert kb.log.diff(before, kb.log.head_seq(), corpus="others").counts["inserted"] == 1
    assert [d.fact_id for d in kb.log.diff(before, kb.log.head_seq(), after=lima, limit=1).facts] == [
        fact_id(kb, "Santiago")
    ]
    with pytest.raises(InvalidQuery):
        kb.log.diff(2, 1)


def test_what_was_erased_since_is_counted_and_never_told(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    then, lima = kb.log.head_seq(), fact_id(kb, "Lima")
    kb.facts.edit(lima, "Cusco", **WHO)
    Erasure(kb).erase([lima], **WHO)
    for seq in (then, then + 1):
        (found,) = _ask_as_of(kb, encoder, seq, CAPITAL)
        assert (found.hits, found.abstained, found.redacted, found.unkeyed) == ((), None, 1, 0)
    assert _ask_as_of(kb, encoder, kb.log.head_seq(), CAPITAL)[0].redacted == 0
    (erased,) = kb.log.diff(then, kb.log.head_seq()).facts
    assert (erased.kind, erased.old, erased.new, erased.is_redacted) == ("erased", None, None, True)
    (corrected,) = kb.log.diff(then, then + 1).facts
    assert (corrected.kind, corrected.old, corrected.new) == ("updated", None, None)


def test_what_was_keyed_later_was_not_found_then_and_is_counted(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    ingest(kb, CHILE)
    then = kb.log.head_seq()
    kb.keysets.rekey(encoder)
    for seq, found in ((then, None), (kb.log.head_seq(), "Santiago")):
        santiago, river = _ask_as_of(kb, encoder, seq, "What is the capital of Chile?", RIVER)
        assert [hit.value for hit in santiago.hits] == ([found] if found else [])
        assert santiago.unkeyed == (0 if found else 1) and river.hits[0].value == "Amazon"


def test_a_past_that_was_not_is_refused(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    for seq in (-1, kb.log.head_seq() + 1):
        with raises_code("NoSuchChange"):
            _ask_as_of(kb, encoder, seq, CAPITAL)
        with raises_code("NoSuchChange"):
            kb.lookups.as_of(seq)
    with raises_code("NotAnsweredThen", match="'another'"):
        kb.lookups.as_of(kb.log.head_seq()).find(encoder.encode_questions([CAPITAL]), checkpoint_id="another")
    with pytest.raises(InvalidQuery):
        kb.lookups.as_of(1).find(encoder.encode_questions([CAPITAL]), checkpoint_id="fake", min_seq=2)
    for seq in (0, 1):
        with raises_code("NotAnsweredThen", match="no keyset was active"):
            _ask_as_of(kb, encoder, seq, CAPITAL)


def test_another_keyset_threshold_or_question_keys_change_nothing_of_the_past(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    (was,) = _ask_as_of(kb, encoder, seq := kb.log.head_seq(), CAPITAL)
    kb.keysets.rekey(encoder, kinds=("question",))
    kb.keysets.set_threshold(kb.keysets.active().keyset_id, 1.0)
    other = FakeEncoder(salt="2")
    keyset = kb.keysets.rekey(other).keyset_id
    first = kb.keysets.active().keyset_id
    activated(kb, keyset)
    assert _ask_as_of(kb, encoder, seq, CAPITAL) == [was] and was.threshold < 1.0
    now = kb.log.head_seq()
    for asked_at, asking, cause in ((now, encoder, "'fake2'"), (seq, other, "'fake'")):
        of = asking.checkpoint.checkpoint_id
        with raises_code("NotAnsweredThen", match=cause):
            kb.lookups.as_of(asked_at).find(asking.encode_questions([CAPITAL]), checkpoint_id=of)
    kb.keysets.retire(first)
    with raises_code("NotAnsweredThen", match="retired"):
        _ask_as_of(kb, encoder, seq, CAPITAL)
