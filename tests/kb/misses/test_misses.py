"""Misses: grouped by nearness, decided on record, kept for a time, and without any text of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.evidence.records import NewFeedback, NewOutput, Splice
from colmlm.kb.evidence.storing import give_feedback
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.misses.misses import Grouping, Misses
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import WordEncoder
from tests.kb.corpora import fact_id
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
CANTEEN, OPENED, LAKE = "When did the canteen open?", "When did canteen open", "Which lake lies highest?"
COOKS = "Who cooks the fish there?"


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


def asked(
    kb: KnowledgeBase,
    question: str,
    *,
    mode: str = "read",
    encoder: WordEncoder | None = None,
    accepted_only: bool = False,
    corpora: tuple[str, ...] = (),
) -> int:
    """Stores a question that found nothing, with its query if an encoder is given."""
    query = encoder.encode_questions([question]).astype("<f2").tobytes() if encoder else None
    space = encoder.checkpoint.checkpoint_id if encoder else ""
    splice = Splice(0, 0, "no_match", score=0.1, query=query)
    made = NewOutput(
        question, "", space, mode, kb.log.head_seq(), (splice,), accepted_only=accepted_only, corpora=corpora
    )
    return kb.outputs.record(made)


def counts(kb: KnowledgeBase, state: str = "open") -> list[tuple[str, int]]:
    return [(one.question, one.asked) for one in kb.misses.find(state=state).groups]  # type: ignore[arg-type]


def test_each_lookup_of_an_output_is_asked_again_by_its_own_query(
    kb: KnowledgeBase, encoder: WordEncoder
) -> None:
    opened, cook = (
        kb.facts.add(q, v, **WHO).fact_ids[0] for q, v in ((CANTEEN, "May 1987"), (COOKS, "Bo Kim"))
    )
    kb.keysets.rekey(encoder)
    queries = [query.astype("<f2").tobytes() for query in encoder.encode_questions([CANTEEN, COOKS])]
    said = f"{CANTEEN} It did. "
    splices = (
        Splice(0, 0, "no_match", query=queries[0]),
        Splice(len(said), len(said), "no_match", query=queries[1]),
    )
    space = encoder.checkpoint.checkpoint_id
    kb.outputs.record(NewOutput(CANTEEN, said, space, "auto", kb.log.head_seq(), splices))
    kb.misses.find()
    with kb.engine.begin() as connection:  # one group of both, as where their queries are near one another
        connection.execute(text("UPDATE miss SET group_id = (SELECT min(group_id) FROM miss)"))
    group_id = kb.misses.find().groups[0].group_id
    for fact, finds in ((opened, {0}), (cook, {1})):
        asked = kb.misses.solve(group_id, fact, **WHO).asked
        assert {n for n, one in enumerate(asked) if one.found} == finds


def test_questions_near_one_another_are_one_group(kb: KnowledgeBase, encoder: WordEncoder) -> None:
    kb.facts.add(LAKE, "Titicaca", **WHO)
    kb.keysets.rekey(encoder)
    for question in (CANTEEN, "Who ran the canteen?", OPENED, CANTEEN):
        asked(kb, question, encoder=encoder)
    assert counts(kb) == [(CANTEEN, 3), ("Who ran the canteen?", 1)]
    page = kb.misses.find()
    assert (page.total, page.ungrouped, page.kept, page.next_after) == (2, 0, True, None)
    assert [near.value for near in page.groups[0].nearest] == ["Titicaca"], "found now, by the query"
    details = kb.misses.read(page.groups[0].group_id)
    assert [(one.question, one.asked) for one in details.questions] == [(CANTEEN, 2), (OPENED, 1)]


def test_without_queries_words_group_and_find(kb: KnowledgeBase) -> None:
    kb.facts.add("Who cooks in the canteen?", "Bo Kim", **WHO)
    for question in (CANTEEN, "When did the canteen open its doors?", LAKE):
        asked(kb, question)
    first, second = kb.misses.find().groups
    assert (first.asked, second.asked) == (2, 1)
    assert [(near.value, near.score) for near in first.nearest] == [("Bo Kim", None)]
    assert second.nearest == ()


def test_what_a_decoder_looked_up_is_asked_by_the_text_of_its_lookup(kb: KnowledgeBase) -> None:
    asked(kb, f"Question: {CANTEEN}\nAnswer:", mode="auto")
    asked(kb, CANTEEN)
    said = "It rains all day there. The deepest lake of all is "
    splices = (Splice(0, 0, "no_match"), Splice(len(said), len(said), "no_match"))
    kb.outputs.record(NewOutput("Tell me. ", said, "", "auto", kb.log.head_seq(), splices))
    assert counts(kb) == [(CANTEEN, 2), ("The deepest lake of all is", 1), ("Tell me.", 1)]


def test_what_was_silent_on_purpose_is_no_miss(kb: KnowledgeBase) -> None:
    splice = Splice(0, 0, "abstained", score=0.9)
    kb.outputs.record(NewOutput(CANTEEN, "", "", "read", kb.log.head_seq(), (splice,)))
    assert counts(kb) == []


def test_a_group_is_dismissed_and_reopened_on_record(kb: KnowledgeBase) -> None:
    asked(kb, CANTEEN)
    (group,) = kb.misses.find().groups
    seq = kb.misses.dismiss([group.group_id], actor="ann", reason="not ours")
    (change,) = kb.log.changes(after=seq - 1)
    assert (change.kind, change.actor, change.reason) == ("dismiss-misses", "ann", "not ours")
    asked(kb, OPENED)
    assert counts(kb) == [] and counts(kb, "dismissed") == [(OPENED, 2)], "it joins what was dismissed"
    assert kb.misses.find(state="dismissed").groups[0].decision == change
    with raises_code("MissGroupState"):
        kb.misses.dismiss([group.group_id], **WHO)
    kb.misses.reopen([group.group_id], **WHO)
    assert counts(kb) == [(OPENED, 2)]
    with raises_code("MissGroupNotFound"):
        kb.misses.dismiss([group.group_id, 998], **WHO)
    assert kb.upkeep.fsck().chain_ok


def test_a_group_is_solved_once_all_its_questions_find_the_fact(kb: KnowledgeBase) -> None:
    asked(kb, CANTEEN)
    asked(kb, OPENED)
    (group,) = kb.misses.find().groups
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids

    def half(question: str, *, accepted_only: bool, corpora: tuple[str, ...]) -> Sequence[int]:
        return [fact] if question == CANTEEN else []

    missed = Misses(kb, half).solve(group.group_id, fact, **WHO)
    assert not missed.solved and [one.found for one in missed.asked] == [False, True]
    assert counts(kb) == [(OPENED, 2)]
    done = Misses(kb, lambda question, *, accepted_only, corpora: [fact]).solve(group.group_id, fact, **WHO)
    assert done.solved and done.seq == kb.log.head_seq()
    (solved,) = kb.misses.find(state="solved").groups
    assert solved.fact_id == fact and solved.decision is not None
    asked(kb, CANTEEN)
    assert counts(kb) == [(CANTEEN, 3)], "asked again without a match: it was not solved"
    kb.facts.delete([fact], **WHO)
    with raises_code("FactDeleted"):
        Misses(kb, lambda question, *, accepted_only, corpora: [fact]).solve(group.group_id, fact, **WHO)


def test_a_fact_or_a_reason_that_is_none_solves_nothing_whatever_the_questions_find(
    kb: KnowledgeBase,
) -> None:
    asked(kb, CANTEEN)
    (group,) = kb.misses.find().groups
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    misses = Misses(kb, lambda question, *, accepted_only, corpora: [])
    assert not misses.solve(group.group_id, fact, **WHO).solved
    with pytest.raises(FactNotFound):
        misses.solve(group.group_id, 998, **WHO)
    with pytest.raises(InvalidValue, match="reason"):
        misses.solve(group.group_id, fact, actor="ann", reason=" ")
    misses.solve(group.group_id, fact, anyway=True, **WHO)
    with raises_code("MissGroupState"):
        misses.solve(group.group_id, fact, **WHO)
    kb.misses.reopen([group.group_id], **WHO)
    kb.facts.delete([fact], **WHO)
    with raises_code("FactDeleted"):
        misses.solve(group.group_id, fact, **WHO)


def test_a_decoders_miss_is_looked_up_again_by_its_query(kb: KnowledgeBase, encoder: WordEncoder) -> None:
    kb.facts.add(LAKE, "Titicaca", **WHO)
    kb.keysets.rekey(encoder)
    asked(kb, CANTEEN, mode="forced", encoder=encoder)
    (group,) = kb.misses.find().groups
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    assert not kb.misses.solve(group.group_id, fact, **WHO).solved, "it has no key yet"
    kb.keysets.rekey(encoder)
    assert kb.misses.solve(group.group_id, fact, **WHO).solved


def test_a_question_that_a_decoder_had_read_is_read_again(kb: KnowledgeBase, encoder: WordEncoder) -> None:
    query = encoder.encode_questions([CANTEEN]).astype("<f2").tobytes()
    nothing = Splice(0, 0, "no_match", score=0.1, query=query)
    prompt = f"Question: {CANTEEN}\nAnswer:"
    made = NewOutput(prompt, "", "fake", "auto", kb.log.head_seq(), (nothing,), ranking="reader")
    kb.outputs.record(made)
    (group,) = kb.misses.find().groups
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    heard: list[str] = []

    def read_again(question: str, *, accepted_only: bool, corpora: tuple[str, ...]) -> Sequence[int]:
        heard.append(question)
        return [fact]

    assert Misses(kb, read_again).solve(group.group_id, fact, **WHO).solved
    assert heard == [CANTEEN], "no key of the fact is needed where it is read"


def test_a_miss_of_a_question_that_was_read_keeps_that_question_until_a_fact_is_found(
    kb: KnowledgeBase,
) -> None:
    question = "What is the capital of Peru, a country in South America?"
    lima, fish = (kb.facts.add(q, v, **WHO).fact_ids[0] for q, v in ((LAKE, "Lima"), (COOKS, "ceviche")))
    said = " The capital city of that country is Lima. The dish that people eat most there is "
    start = said.index("Lima")
    splices = (
        Splice(start, start, "no_match", score=0.1),
        Splice(start, start + 4, "hit", lima, 1, 0.9),
        Splice(len(said), len(said), "no_match", score=0.1),
    )
    for ranking in ("reader", "key"):
        kb.outputs.record(NewOutput(question, said, "", "auto", kb.log.head_seq(), splices, ranking=ranking))
    assert counts(kb) == [
        ("The dish that people eat most there is", 2),
        ("The capital city of that country is", 1),
        (question, 1),
    ]
    heard: list[str] = []

    def read_again(question: str, *, accepted_only: bool, corpora: tuple[str, ...]) -> Sequence[int]:
        heard.append(question)
        return [fish]

    group = kb.misses.find().groups[2]
    assert Misses(kb, read_again).solve(group.group_id, fish, **WHO).solved and heard == [question]


def test_groups_are_listed_by_pages_in_either_order(kb: KnowledgeBase) -> None:
    for number, times in enumerate((1, 3, 2)):
        for _ in range(times):
            asked(kb, f"subject{number}")
    assert counts(kb) == [("subject1", 3), ("subject2", 2), ("subject0", 1)]
    newest = [one.question for one in kb.misses.find(sort="newest").groups]
    assert newest == ["subject2", "subject1", "subject0"]
    found, after = [], 0
    while True:
        page = kb.misses.find(after=after, limit=1)
        found += [one.question for one in page.groups]
        if page.next_after is None:
            break
        after = page.next_after
    assert found == ["subject1", "subject2", "subject0"] and page.total == 3


def test_one_process_groups_at_a_time(kb: KnowledgeBase) -> None:
    asked(kb, CANTEEN)
    with kb.sessions.begin() as session:
        assert Grouping.begin(session) is not None
        assert kb.misses.group() == 0
        assert kb.misses.find().ungrouped == 1
    told: list[tuple[int, int]] = []
    assert kb.misses.group(lambda done, total: told.append((done, total))) == 1 and told == [(1, 1)]


def test_misses_are_kept_for_a_time_and_go_with_their_questions(kb: KnowledgeBase) -> None:
    old, young = asked(kb, CANTEEN), asked(kb, OPENED)
    gone = asked(kb, LAKE)
    said = NewOutput("Tell.", "It is so.", "", "auto", kb.log.head_seq(), (Splice(3, 3, "no_match"),))
    saying = kb.outputs.record(said)
    kb.misses.group()
    with kb.engine.begin() as connection:
        connection.execute(
            text("UPDATE miss SET at = now() - interval '9 days' WHERE generation_id = ANY(:ids)"),
            {"ids": [old, gone, saying]},
        )
    assert kb.misses.prune(timedelta(days=8)) == 3
    assert [one.generation_id for one in kb.outputs.find()] == [saying, young]
    assert counts(kb) == [(OPENED, 1)]
    asked(kb, CANTEEN)
    assert counts(kb) == [(CANTEEN, 2)], "the group has another leader"


def test_what_was_asked_without_proposed_facts_is_solved_by_none(
    kb: KnowledgeBase, encoder: WordEncoder
) -> None:
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    kb.keysets.rekey(encoder)
    kb.review.settle([ReviewVerdict(fact, "propose", 1, "accepted")], **WHO)
    asked(kb, CANTEEN, encoder=encoder, mode="auto", accepted_only=True)
    asked(kb, CANTEEN, encoder=encoder, mode="auto")
    asked(kb, CANTEEN, encoder=encoder, accepted_only=True)
    (group,) = kb.misses.find().groups
    details = kb.misses.read(group.group_id)
    assert [(one.asked, one.accepted_only) for one in details.questions] == [(2, True), (1, False)]
    said: list[bool] = []

    def asks(question: str, *, accepted_only: bool, corpora: tuple[str, ...]) -> list[int]:
        said.append(accepted_only)
        return [] if accepted_only and kb.facts.show(fact).review == "proposed" else [fact]

    misses = Misses(kb, asks)
    done = misses.solve(group.group_id, fact, **WHO)
    assert not done.solved and [one.found for one in done.asked] == [False, True] and said == [True]
    done = Misses(kb).solve(group.group_id, fact, **WHO)
    assert [one.found for one in done.asked] == [False, True], (
        "a query that was kept finds it no more than that"
    )
    kb.review.settle([ReviewVerdict(fact, "accept", 1)], **WHO)
    assert misses.solve(group.group_id, fact, **WHO).solved


def test_what_was_asked_of_some_corpora_is_asked_of_these_again(kb: KnowledgeBase) -> None:
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    for corpora in (("lands", "towns"), (), ("lands", "towns")):
        asked(kb, CANTEEN, corpora=corpora)
    (group,) = kb.misses.find().groups
    details = kb.misses.read(group.group_id)
    assert [(one.asked, one.corpora) for one in details.questions] == [(2, ("lands", "towns")), (1, ())]

    def asks(question: str, *, accepted_only: bool, corpora: tuple[str, ...]) -> list[int]:
        return [] if corpora else [fact]

    done = Misses(kb, asks).solve(group.group_id, fact, **WHO)
    assert not done.solved and [one.found for one in done.asked] == [False, True]


def test_nothing_is_listed_where_no_questions_are_kept(kb: KnowledgeBase) -> None:
    asked(kb, CANTEEN)
    kb.settings = replace(kb.settings, keep_answers=False)
    page = kb.misses.find()
    assert (page.groups, page.total, page.kept) == ((), 0, False)
    assert kb.misses.group() == 0 and kb.misses.open_groups() == 0


def test_an_output_that_somebody_calls_wrong_is_a_miss(kb: KnowledgeBase, encoder: WordEncoder) -> None:
    (fact,) = kb.facts.add(CANTEEN, "May 1987", **WHO).fact_ids
    query = encoder.encode_questions([CANTEEN]).astype("<f2").tobytes()
    splice = Splice(0, 8, "hit", fact, 1, 0.9, query)
    output = kb.outputs.record(
        NewOutput(CANTEEN, "May 1987", encoder.checkpoint.checkpoint_id, "read", 1, (splice,))
    )
    kb.outputs.give_feedback(output, NewFeedback("down", "too early", "June 1988"), actor="ann")
    (group,) = kb.misses.find().groups
    assert (group.question, group.asked, group.wrong) == (CANTEEN, 1, 1)
    assert kb.misses.read(group.group_id).questions[0].proposed == "June 1988"
    assert kb.outputs.trace(output).miss_groups == (group.group_id,)
    kb.outputs.give_feedback(output, NewFeedback("down"), actor="bob")
    assert counts(kb) == [(CANTEEN, 1)]
    for actor in ("ann", "bob"):
        assert counts(kb) == [(CANTEEN, 1)]
        kb.outputs.give_feedback(output, NewFeedback("up"), actor=actor)
    assert counts(kb) == [] and kb.outputs.trace(output).miss_groups == ()


def test_a_thumb_down_stays_a_miss_while_another_person_takes_theirs_back(kb: KnowledgeBase) -> None:
    output = kb.outputs.record(NewOutput(CANTEEN, "May 1987", "", "read", 0, ()))
    kb.outputs.give_feedback(output, NewFeedback("down"), actor="ann")
    with ThreadPoolExecutor(1) as pool, kb.sessions.begin() as session:
        give_feedback(session, output, NewFeedback("down"), "bob", "")
        taken_back = pool.submit(kb.outputs.give_feedback, output, NewFeedback("up"), actor="ann")
        while not (taken_back.done() or session.scalar(_WAITS)):
            time.sleep(0.01)
        session.commit()
        taken_back.result()
    assert counts(kb) == [(CANTEEN, 1)]


_WAITS = text("""
SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
               WHERE NOT l.granted AND a.datname = current_database())
""")


def test_what_was_erased_is_in_no_miss(kb: KnowledgeBase, encoder: WordEncoder) -> None:
    (fact,) = kb.facts.add(LAKE, "Titicaca", **WHO).fact_ids
    kb.keysets.rekey(encoder)
    output = asked(kb, "How deep is Titicaca?", encoder=encoder)
    kb.outputs.give_feedback(output, NewFeedback("down", "Titicaca is deep", "as Titicaca"), actor="ann")
    kb.misses.group()
    erased = Erasure(kb).erase([fact], **WHO).erased
    assert erased is not None and erased.generations == (output,) and len(erased.feedback) == 1
    (group,) = kb.misses.find().groups
    details = kb.misses.read(group.group_id)
    assert group.question == "How deep is ████████?" == details.questions[0].question
    (said,) = kb.outputs.trace(output).feedback
    assert (said.comment, said.value) == ("████████ is deep", "as ████████")
    assert kb.outputs.neighbours(output, 0) is None, "the query said what the prompt did"
    kb.outputs.give_feedback(output, NewFeedback("down", "of Titicaca"), actor="ann")
    assert kb.upkeep.fsck().quoting == ()
    assert fact_id(kb, "█")
