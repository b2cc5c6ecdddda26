"""Review: what a machine marked is proposed until a person settles it, by changes that are undone like others."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts.records import FactRecord, Review, ReviewVerdict, VerdictKind
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CAPITAL, CHILE, PERU, document, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "ann", "reason": "read"}


def propose(kb: KnowledgeBase, *documents: AnnotatedDocument, corpus: str = "raw") -> None:
    """Ingests documents as a machine marked them."""
    kb.corpora.ingest(
        [Parsed(d) for d in documents], corpus, generated=True, actor="annotator", reason="added"
    )


@pytest.fixture
def peru(kb: KnowledgeBase) -> KnowledgeBase:
    propose(kb, PERU)
    return kb


def judge(kb: KnowledgeBase, value: str, kind: VerdictKind) -> ReviewVerdict:
    fact = kb.facts.show(fact_id(kb, value))
    return ReviewVerdict(fact.fact_id, kind, fact.version, fact.review)


def settle(kb: KnowledgeBase, value: str, kind: VerdictKind) -> int:
    (seq,) = kb.review.settle([judge(kb, value, kind)], **WHO).seqs
    return seq


def review_of(kb: KnowledgeBase, value: str) -> tuple[Review, bool]:
    fact = kb.facts.show(fact_id(kb, value))
    return fact.review, fact.deleted_seq is None


def test_what_a_machine_marked_is_proposed_and_what_people_bring_is_accepted(peru: KnowledgeBase):
    ingest(peru, CHILE)
    peru.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    peru.facts.add_to(1, {"text": "South America"}, **WHO)
    assert review_of(peru, "Lima") == ("proposed", True)
    fact = peru.facts.show(fact_id(peru, "Lima"))
    assert fact.review_seq == fact.created_seq
    for value in ("Santiago", "Jane Austen", "South America"):
        assert review_of(peru, value) == ("accepted", True)
    assert peru.facts.show(fact_id(peru, "Santiago")).review_seq is None


def test_a_fact_that_somebody_proposes_waits_for_a_verdict(kb: KnowledgeBase):
    edit = kb.facts.add("Who wrote Emma?", "Jane Austen", proposed=True, **WHO)
    (item,) = kb.review.inbox().items
    assert (item.fact.fact_id, item.fact.review_seq) == (edit.fact_ids[0], edit.seq)
    settle(kb, "Jane Austen", "reject")
    assert review_of(kb, "Jane Austen") == ("rejected", False)
    kb.facts.restore(edit.fact_ids, **WHO)
    assert review_of(kb, "Jane Austen") == ("proposed", True)


def test_a_verdict_is_a_change_of_its_kind_with_who_and_why(peru: KnowledgeBase):
    seq = settle(peru, "Lima", "accept")
    (change,) = peru.log.changes(after=seq - 1, limit=1)
    lima = fact_id(peru, "Lima")
    assert (change.kind, change.fact_ids, change.actor, change.reason) == ("accept", (lima,), "ann", "read")
    assert change.principal is not None
    assert peru.facts.show(lima).review_seq == seq and review_of(peru, "Lima") == ("accepted", True)
    assert settle(peru, "Lima", "propose") == seq + 1 and review_of(peru, "Lima") == ("proposed", True)
    assert [one.kind for one in peru.outputs.trace_fact(lima).history] == ["ingest", "accept", "propose"]


def test_a_rejected_fact_is_deleted_and_comes_back_as_it_was(peru: KnowledgeBase):
    settle(peru, "Lima", "accept")
    for value, before in (("Lima", "accepted"), ("Amazon", "proposed")):
        settle(peru, value, "reject")
        assert review_of(peru, value) == ("rejected", False)
        peru.facts.restore([fact_id(peru, value)], **WHO)
        assert review_of(peru, value) == (before, True)
    assert peru.upkeep.fsck().ok


def test_verdicts_of_several_kinds_are_one_change_each(peru: KnowledgeBase):
    kinds: tuple[tuple[str, VerdictKind], ...] = (
        ("Lima", "accept"),
        ("Amazon", "reject"),
        ("6,768 m", "accept"),
    )
    done = peru.review.settle([judge(peru, *one) for one in kinds], **WHO)
    changes = peru.log.changes(after=done.seqs[0] - 1, limit=5)
    assert [(one.kind, one.num_facts) for one in changes] == [("accept", 2), ("reject", 1)]
    assert len(done.fact_ids) == 3 and done.before == () and peru.upkeep.fsck().chain_ok


def test_a_verdict_on_what_was_settled_or_edited_meanwhile_is_reported_and_not_carried_out(
    peru: KnowledgeBase,
):
    seen = {value: judge(peru, value, "reject") for value in ("Lima", "Amazon", "6,768 m")}
    accepted = settle(peru, "Lima", "accept")
    edited = peru.facts.edit(fact_id(peru, "Amazon"), "Apurimac", **WHO).seq
    done = peru.review.settle(list(seen.values()), actor="bob", reason="wrong")
    assert done.fact_ids == (seen["6,768 m"].fact_id,) and len(done.seqs) == 1
    assert [(one.review, one.live, one.seq, one.actor) for one in done.before] == [
        ("accepted", True, accepted, "ann"),
        ("accepted", True, edited, "ann"),
    ]
    assert [one.version for one in done.before] == [1, 2]
    again = peru.review.settle([seen["6,768 m"]], actor="bob", reason="wrong")
    assert (again.seqs, again.before[0].review, again.before[0].live) == ((), "rejected", False)


def test_verdicts_without_a_fact_or_two_on_one_are_refused(peru: KnowledgeBase):
    one = judge(peru, "Lima", "accept")
    with pytest.raises(InvalidValue, match="two verdicts"):
        peru.review.settle([one, replace(one, verdict="reject")], **WHO)
    with pytest.raises(InvalidValue, match="there are none"):
        peru.review.settle([], **WHO)
    with pytest.raises(FactNotFound):
        peru.review.settle([one, ReviewVerdict(998, "accept", 1)], **WHO)
    assert review_of(peru, "Lima") == ("proposed", True)


def test_an_edit_accepts_a_proposed_fact_and_its_undo_proposes_it_again(peru: KnowledgeBase):
    edited = peru.facts.edit(fact_id(peru, "Lima"), question="Where is the seat?", **WHO)
    moved = peru.facts.move(fact_id(peru, "Amazon"), {"text": "mountains"}, **WHO)
    assert review_of(peru, "Lima") == review_of(peru, "mountains") == ("accepted", True)
    assert peru.facts.show(fact_id(peru, "Lima")).review_seq == edited.seq
    for edit in (edited, moved):
        peru.facts.undo(edit.seq, **WHO)
    assert review_of(peru, "Lima") == review_of(peru, "Amazon") == ("proposed", True)
    assert peru.facts.show(fact_id(peru, "Lima")).question == CAPITAL


def test_an_undone_edit_proposes_its_fact_again_also_after_verdicts_on_what_the_edit_said(
    peru: KnowledgeBase,
):
    edited = peru.facts.edit(fact_id(peru, "Lima"), "Cusco", **WHO)
    settle(peru, "Cusco", "propose")
    settle(peru, "Cusco", "accept")
    peru.facts.undo(edited.seq, **WHO)
    assert review_of(peru, "Lima") == ("proposed", True) and peru.upkeep.fsck().ok


def test_an_edit_for_another_version_is_refused(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    peru.facts.edit(lima, "Cusco", version=1, **WHO)
    with raises_code("FactChanged"):
        peru.facts.edit(lima, "Arequipa", version=1, **WHO)
    with raises_code("FactChanged"):
        peru.facts.move(lima, {"text": "capital"}, version=1, **WHO)
    peru.facts.move(lima, {"text": "capital"}, version=2, **WHO)


@pytest.mark.parametrize("kind", ["accept", "reject"])
def test_a_verdict_is_undone_and_the_undoing_too(peru: KnowledgeBase, kind: VerdictKind):
    seq = settle(peru, "Lima", kind)
    after = review_of(peru, "Lima")
    undone = peru.facts.undo(seq, **WHO)
    assert review_of(peru, "Lima") == ("proposed", True)
    peru.facts.undo(undone.seq, **WHO)
    assert review_of(peru, "Lima") == after
    assert peru.upkeep.fsck().ok


def test_a_verdict_is_not_undone_after_another_or_an_edit(peru: KnowledgeBase):
    accepted = settle(peru, "Lima", "accept")
    settle(peru, "Lima", "propose")
    with raises_code("NotUndoable", match="a later change"):
        peru.facts.undo(accepted, **WHO)
    again = settle(peru, "Lima", "accept")
    peru.facts.edit(fact_id(peru, "Lima"), "Cusco", **WHO)
    with raises_code("NotUndoable", match="a later change"):
        peru.facts.undo(again, **WHO)


def test_a_newer_text_keeps_what_was_settled(peru: KnowledgeBase):
    settle(peru, "Lima", "accept")
    settle(peru, "Amazon", "reject")
    propose(peru, replace(PERU, text=PERU.text + " It is old."))
    assert review_of(peru, "Lima") == ("accepted", True) and review_of(peru, "Amazon") == ("rejected", False)
    assert review_of(peru, "6,768 m") == ("proposed", True)
    ingest(peru, replace(PERU, text=PERU.text + " It is very old."), corpus="raw")
    assert review_of(peru, "6,768 m") == ("accepted", True), "a person's marks say so too"


def test_a_persons_file_accepts_what_it_states_again(peru: KnowledgeBase):
    peru.facts.edit(fact_id(peru, "Lima"), "Cusco", **WHO)
    settle(peru, "Cusco", "propose")
    lima, amazon, height = PERU.facts
    propose(peru, PERU)
    ingest(peru, replace(PERU, facts=(lima, amazon, replace(height, review="proposed"))), corpus="raw")
    assert [review_of(peru, value)[0] for value in ("Cusco", "Amazon", "6,768 m")] == [
        "proposed",
        "accepted",
        "proposed",
    ], "the file says another capital, and of the height that nobody has read it"
    last = peru.log.changes()[-1]
    assert (last.kind, last.fact_ids) == ("accept", (fact_id(peru, "Amazon"),))
    report = ingest(peru, PERU, CHILE, corpus="raw")
    assert review_of(peru, "6,768 m") == ("accepted", True) and report.seq == peru.log.head_seq()
    peru.facts.undo(report.seq, **WHO)
    assert review_of(peru, "6,768 m") == ("proposed", True) and review_of(peru, "Santiago")[0] == "accepted"


def test_the_inbox_shows_what_a_reviewer_needs(peru: KnowledgeBase):
    ingest(peru, document("again", "They govern from ", ("Lima", CAPITAL), "."))
    ingest(peru, document("other", "They govern from ", ("Cusco", CAPITAL), "."))
    item = next(item for item in peru.review.inbox().items if item.fact.value == "Lima")
    around = item.around
    assert around is not None and around.text[around.start : around.end] == "Lima"
    assert PERU.text[around.offset :].startswith(around.text) and "South America" in around.text
    assert [(one.value, one.same, one.review) for one in item.neighbours] == [
        ("Lima", True, "accepted"),
        ("Cusco", False, "accepted"),
    ]


def cite(kb: KnowledgeBase, value: str) -> None:
    fact = kb.facts.show(fact_id(kb, value))
    splice = Splice(0, len(value), "hit", fact.fact_id, fact.version, 0.9)
    kb.outputs.record(NewOutput("said", value, "", "forced", kb.log.head_seq(), (splice,)))


def test_the_inbox_begins_where_most_is_at_stake(kb: KnowledgeBase):
    documents = numbered(6)
    doubted = replace(documents[4].facts[0], question=None, doubt="unverified")
    propose(kb, *documents[:4], replace(documents[4], facts=(doubted,)), documents[5])
    for value, times in (("value 2", 1), ("value 5", 2)):
        for _ in range(times):
            cite(kb, value)
    found = kb.review.inbox()
    assert [item.fact.value for item in found.items] == [f"value {n}" for n in (5, 2, 4, 0, 1, 3)]
    assert [(item.uses, item.doubt) for item in found.items][:3] == [(2, None), (1, None), (0, "unverified")]
    assert (found.total, found.is_exact, found.next_after) == (6, True, None)
    places, after = [], 0
    while True:
        page = kb.review.inbox(after=after, limit=2)
        places += [item.fact.value for item in page.items]
        if page.next_after is None:
            break
        after = page.next_after
    assert places == [item.fact.value for item in found.items]
    of_kind = {
        kind: [item.fact.value for item in kb.review.inbox(kind=kind).items]
        for kind in ("cited", "doubted", "unasked")
    }
    assert of_kind == {"cited": ["value 5", "value 2"], "doubted": ["value 4"], "unasked": ["value 4"]}


def test_the_inbox_has_what_contradicts_behind_what_is_doubted(kb: KnowledgeBase):
    documents = numbered(6)
    doubted = replace(documents[3].facts[0], question=None, doubt="unverified")
    propose(kb, *documents[:3], replace(documents[3], facts=(doubted,)), *documents[4:])
    cite(kb, "value 2")
    for value, other in (("value 4", "basalt"), ("value 1", "granite"), ("value 2", "marble")):
        question = kb.facts.show(fact_id(kb, value)).question
        assert question is not None
        kb.facts.add(question, other, anyway=True, **WHO)
    told = [(item.fact.value, item.contradicts) for item in kb.review.inbox().items]
    assert told == [
        ("value 2", True),
        ("value 3", False),
        ("value 1", True),
        ("value 4", True),
        ("value 0", False),
        ("value 5", False),
    ]
    for limit in (1, 2, 4):
        places, after = [], 0
        while True:
            page = kb.review.inbox(after=after, limit=limit)
            places += [(item.fact.value, item.contradicts) for item in page.items]
            if page.next_after is None:
                break
            after = page.next_after
        assert places == told, limit
    against = kb.review.inbox(kind="contradicting", limit=2)
    assert [item.fact.value for item in against.items] == ["value 2", "value 1"]
    assert (against.total, against.is_exact) == (3, True) and against.next_after is not None
    rest = kb.review.inbox(kind="contradicting", after=against.next_after)
    assert [item.fact.value for item in rest.items] == ["value 4"] and rest.next_after is None
    kb.comparisons.note_both_right(fact_id(kb, "value 1"), fact_id(kb, "granite"), **WHO)
    assert [item.fact.value for item in kb.review.inbox().items][2:4] == ["value 4", "value 0"]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_inbox_of_a_corpus_goes_by_document_through_all_its_ingests(kb: KnowledgeBase, limit: int):
    for n in range(10):
        one = document(f"d{n}", ("One", f"Which is {n}?"), " or ", ("Two", f"Which other is {n}?"), ".")
        spans = (
            one.facts if n % 3 else (replace(one.facts[0], question=None, doubt="unverified"), one.facts[1])
        )
        propose(kb, replace(one, facts=spans), corpus="lands")
        propose(kb, one, corpus="others")
        with kb.sessions.begin() as session:  # as if many documents of others had come between
            session.execute(text("SELECT setval('document_id_seq', nextval('document_id_seq') + 5000)"))
    propose(
        kb,
        document("d0", "Now ", ("One", "Which is 0?"), " or ", ("Two", "Which other is 0?"), "."),
        corpus="lands",
    )
    found, after = list[FactRecord](), 0
    while True:
        page = kb.review.inbox(corpus="lands", after=after, limit=limit)
        found += [item.fact for item in page.items]
        assert page.total == page.progress.proposed == 20
        if page.next_after is None:
            break
        after = page.next_after
    assert len({fact.fact_id for fact in found}) == 20
    doubts = [item.doubt for item in kb.review.inbox(corpus="lands").items]
    assert doubts == ["unverified"] * doubts.count("unverified") + [None] * doubts.count(None)
    last = found[doubts.count("unverified") :]
    stands = [(fact.source.document_id, fact.fact_id) for fact in last if fact.source is not None]
    assert stands == sorted(stands), "d0 has a newer text, and so the last place"
    (document_id, _), *_ = stands
    of_document = kb.review.inbox(document_id=document_id).total
    assert kb.review.inbox(corpus="lands", document_id=document_id).total == of_document > 0
    assert kb.review.inbox(corpus="others", document_id=document_id).total == 0


def test_progress_counts_what_was_settled_of_a_corpus_or_document(peru: KnowledgeBase):
    propose(peru, *numbered(3), corpus="texts")
    settle(peru, "Lima", "accept")
    settle(peru, "Amazon", "reject")
    settle(peru, "value 1", "reject")
    told = peru.review.progress()
    assert (told.proposed, told.accepted, told.rejected, told.is_exact) == (3, 1, 2, True)
    of_raw = peru.review.inbox(corpus="raw")
    assert (of_raw.progress.proposed, of_raw.progress.accepted, of_raw.progress.rejected) == (1, 1, 1)
    assert [item.fact.value for item in of_raw.items] == ["6,768 m"]
    assert peru.review.inbox(document_id=1).total == 1
    with raises_code("CorpusNotFound"):
        peru.review.inbox(corpus="nowhere")
    counted = {stats.corpus: stats.proposed for stats in peru.corpora.all()}
    assert counted == {"raw": 1, "texts": 2}


def test_a_proposed_fact_that_is_deleted_or_erased_waits_no_more(peru: KnowledgeBase):
    peru.facts.delete([fact_id(peru, "Lima")], **WHO)
    assert peru.review.inbox().total == peru.review.progress().proposed == 2
    peru.facts.restore([fact_id(peru, "Lima")], **WHO)
    assert review_of(peru, "Lima") == ("proposed", True) and peru.review.inbox().total == 3


def test_facts_are_searched_by_their_review(peru: KnowledgeBase):
    settle(peru, "Lima", "accept")
    settle(peru, "Amazon", "reject")
    peru.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    by = {
        "proposed": peru.facts.search(review="proposed"),
        "accepted": peru.facts.search(review="accepted"),
        "rejected": peru.facts.search(review="rejected", state="all"),
    }
    assert {name: [fact.value for fact in page.facts] for name, page in by.items()} == {
        "proposed": ["6,768 m"],
        "accepted": ["Lima", "Jane Austen"],
        "rejected": ["Amazon"],
    }
    assert all(page.is_exact and page.total == len(page.facts) for page in by.values())
    assert peru.facts.search(review="proposed", text="Lima").total == 0
    assert peru.facts.search(review="rejected").total == 0, "rejected facts are deleted"


def test_where_only_accepted_facts_answer_is_set_by_changes_of_the_log(peru: KnowledgeBase):
    edit = peru.review.limit(accepted_only=True, corpus="raw", **WHO)
    assert edit.kind == "accepted-only" and [one.accepted_only for one in peru.corpora.all()] == [True]
    peru.review.limit(accepted_only=False, corpus="raw", **WHO)
    assert [one.accepted_only for one in peru.corpora.all()] == [False]
    for wrong in ({}, {"corpus": "raw", "keyset_id": 1}):
        with pytest.raises(InvalidValue):
            peru.review.limit(accepted_only=True, **wrong, **WHO)
    with raises_code("CorpusNotFound"):
        peru.review.limit(accepted_only=True, corpus="nowhere", **WHO)
    with raises_code("KeysetNotFound"):
        peru.review.limit(accepted_only=True, keyset_id=2**63, **WHO)


def test_four_at_once_lose_no_verdict_and_give_none_twice(kb: KnowledgeBase):
    propose(kb, *numbered(120))
    items = [item.fact for item in kb.review.inbox(limit=500).items]
    kinds: tuple[VerdictKind, ...] = ("accept", "reject")
    settled: list[list[int]] = [[] for _ in range(4)]
    reported: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        for at in range(0, len(items), 10):
            judged = [
                ReviewVerdict(f.fact_id, kinds[(f.fact_id + number) % 2], f.version, f.review)
                for f in items[at : at + 10]
            ]
            done = kb.review.settle(judged, actor=f"reviewer {number}", reason="at once")
            settled[number] += done.fact_ids
            reported[number] += [one.fact_id for one in done.before]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [fact_id for one in settled for fact_id in one]
    assert len(every) == len(set(every)) == len(items), "each has one verdict"
    assert sum(map(len, reported)) == 3 * len(items), "the others were told"
    with kb.sessions() as session:
        named = session.execute(
            text("SELECT unnest(fact_ids) AS id, actor, kind FROM change WHERE kind IN ('accept', 'reject')")
        ).all()
    assert sorted(row.id for row in named) == sorted(every), "each verdict is in the log once"
    outcomes = {"accept": "accepted", "reject": "rejected"}
    assert {row.id: outcomes[row.kind] for row in named} == {
        fact.fact_id: fact.review for fact in kb.facts.show_many(every)
    }
    report = kb.upkeep.fsck()
    assert report.ok and report.chain_ok


def test_what_is_to_review_is_counted(kb: KnowledgeBase):
    one, other = (kb.facts.add(f"Question {n}?", str(n), **WHO).fact_ids[0] for n in range(2))
    kb.review.settle([ReviewVerdict(n, "propose", 1, "accepted") for n in (one, other)], **WHO)
    assert kb.upkeep.statistics().to_review == 2
    kb.review.settle([ReviewVerdict(one, "accept", 1)], **WHO)
    kb.facts.delete([other], **WHO)
    assert kb.upkeep.statistics().to_review == 0
