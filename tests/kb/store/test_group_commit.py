"""Edits that wait for each other are committed together, each as its own change; none is told before the commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound
from colmlm.kb.facts import edits
from colmlm.kb.facts.records import Edit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.store import MOST, GroupCommit
from tests.kb.corpora import PERU, fact_id, ingest

T = TypeVar("T")
SLOW_COMMITS = """
CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON change DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION sleep();
"""
END = text("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.fixture
def facts(kb: KnowledgeBase) -> list[int]:
    ingest(kb, PERU)
    more = [
        kb.facts.add(f"What is item {number}?", f"thing {number}", actor="tester", reason="request")
        for number in range(MOST)
    ]
    return [fact_id(kb, "Lima"), *(fact for edit in more for fact in edit.fact_ids)]


@pytest.fixture
def grouped(kb: KnowledgeBase) -> GroupCommit:
    """Gives the edits of the base, which wait for their turn however busy the machine is."""
    kb.group_commit.patience_seconds = 60
    kb.group_commit.worth_seconds = 0.0  # however fast the disk
    return kb.group_commit


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * MOST) as threads:
        yield threads


class First:
    """An edit that is in its turn until it is told to end, so that others gather behind it."""

    def __init__(self, grouped: GroupCommit, threads: ThreadPoolExecutor) -> None:
        self._grouped, self._threads = grouped, threads
        self._begun, self._told = threading.Event(), threading.Event()
        self._do: Callable[[Session], object] = lambda _: None
        self.done: Future[None] = threads.submit(self._run)
        assert self._begun.wait(60)

    def behind(self, *edits: Callable[[], T]) -> list[Future[T]]:
        """Submits edits one after another, each once the one before it waits."""
        submitted = []
        for edit in edits:
            waiting = self._grouped.num_waiting
            submitted.append(self._threads.submit(edit))
            until(partial(self._waits_for_more, waiting))
        return submitted

    def _waits_for_more(self, than: int) -> bool:
        return self._grouped.num_waiting > than

    def go(self, do: Callable[[Session], object] = lambda _: None) -> None:
        self._do = do
        self._told.set()

    def _run(self) -> None:
        with self._grouped.begin() as session:
            self._begun.set()
            assert self._told.wait(60)
            self._do(session)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def delete(kb: KnowledgeBase, ids: Sequence[int], *, abstain: bool = False) -> Edit:
    return kb.facts.delete(ids, actor="tester", reason="request", abstain=abstain)


def is_live(kb: KnowledgeBase, fact: int) -> bool:
    return kb.facts.show(fact).deleted_seq is None


def commits_of(kb: KnowledgeBase) -> list[object]:
    seen: list[object] = []
    event.listen(kb.engine, "commit", seen.append)
    return seen


def test_edits_that_wait_share_a_commit_and_are_changes_of_their_own(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    first, commits, before = First(grouped, threads), commits_of(kb), kb.log.head_seq()
    waiting = first.behind(
        lambda: delete(kb, facts[1:2]),
        lambda: kb.facts.edit(facts[2], "another thing", actor="tester", reason="request"),
        lambda: delete(kb, facts[3:5], abstain=True),
    )
    first.go(lambda session: edits.delete_facts(session, facts[:1], "tester", "request"))
    assert [done.result().seq for done in waiting] == [before + 2, before + 3, before + 4]
    first.done.result()
    assert len(commits) == 1
    changes = kb.log.changes(after=before)
    assert [(change.kind, change.num_facts) for change in changes] == [
        ("delete", 1), ("delete", 1), ("update", 1), ("delete", 2),
    ]  # fmt: skip
    assert kb.log.verify().ok and kb.upkeep.fsck().ok


def test_an_edit_that_fails_is_rolled_back_alone(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    first, before = First(grouped, threads), kb.log.head_seq()
    refused, kept = first.behind(lambda: delete(kb, [facts[1], 10**9]), lambda: delete(kb, facts[2:3]))
    first.go(lambda session: edits.delete_facts(session, facts[:1], "tester", "request"))
    with pytest.raises(FactNotFound):
        refused.result()
    kept.result()
    assert [change.fact_ids for change in kb.log.changes(after=before)] == [(facts[0],), (facts[2],)]
    assert is_live(kb, facts[1]) and kb.log.verify().ok


def test_a_first_edit_that_fails_takes_nobody_along(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    first, before = First(grouped, threads), kb.log.head_seq()
    (kept,) = first.behind(lambda: delete(kb, facts[1:2]))
    first.go(lambda session: edits.delete_facts(session, [facts[0], 10**9], "tester", "request"))
    with pytest.raises(FactNotFound):
        first.done.result()
    kept.result()
    assert [change.fact_ids for change in kb.log.changes(after=before)] == [(facts[1],)]
    assert is_live(kb, facts[0])


def test_none_of_a_group_is_told_that_it_is_stored_where_its_commit_fails(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    def lose_the_connection() -> Edit:
        with grouped.begin() as session:
            session.execute(END)
            return edits.delete_facts(session, facts[2:3], "tester", "request")

    first, before = First(grouped, threads), kb.log.head_seq()
    lost, last = first.behind(lose_the_connection, lambda: delete(kb, facts[1:2]))
    first.go(lambda session: edits.delete_facts(session, facts[:1], "tester", "request"))
    for one in (first.done, lost):
        with pytest.raises(DBAPIError, match="terminating connection"):
            one.result()
    assert last.result().seq == before + 1  # it is in a group of its own
    assert is_live(kb, facts[0]) and not is_live(kb, facts[1])


def test_an_edit_is_told_only_when_the_last_of_its_group_is_stored(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    begun, told = threading.Event(), threading.Event()

    def last() -> None:
        with grouped.begin():
            begun.set()
            assert told.wait(60)

    first = First(grouped, threads)
    (after,) = first.behind(last)
    first.go(lambda session: edits.delete_facts(session, facts[:1], "tester", "request"))
    assert begun.wait(60)
    assert not first.done.done() and is_live(kb, facts[0])
    told.set()
    after.result()
    first.done.result()
    assert not is_live(kb, facts[0])


def test_an_edit_whose_turn_does_not_come_goes_alone(
    kb: KnowledgeBase, grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    first = First(grouped, threads)
    grouped.patience_seconds = 0.01
    with grouped.begin() as session:  # the other holds no lock, so this one passes it
        session.execute(text("CREATE TABLE passed ()"))
    assert not first.done.done()
    first.go()
    first.done.result()
    with kb.sessions() as session:
        assert session.scalar(text("SELECT to_regclass('passed')")) is not None


def test_a_group_has_a_limit(
    kb: KnowledgeBase, facts: list[int], grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    first, commits = First(grouped, threads), commits_of(kb)
    waiting = first.behind(*(partial(delete, kb, [fact]) for fact in facts[1:]))
    first.go()
    assert len({done.result().seq for done in waiting}) == MOST
    first.done.result()
    assert len(commits) == 2


def test_what_a_database_refuses_reads_as_ever(kb: KnowledgeBase, grouped: GroupCommit) -> None:
    with pytest.raises(OperationalError, match="terminating connection"), grouped.begin() as session:
        session.execute(END)


def test_where_the_disk_is_fast_nobody_waits_for_others(
    kb: KnowledgeBase, grouped: GroupCommit, threads: ThreadPoolExecutor
) -> None:
    grouped.worth_seconds = 60
    first = First(grouped, threads)
    with grouped.begin() as session:
        session.execute(text("CREATE TABLE passed ()"))
    assert not first.done.done()
    first.go()
    first.done.result()


def test_how_long_commits_take_decides(
    kb: KnowledgeBase, facts: list[int], threads: ThreadPoolExecutor
) -> None:
    kb.group_commit.patience_seconds, kb.group_commit.worth_seconds = 60, 0.01
    with kb.sessions.begin() as session:
        session.execute(text(SLOW_COMMITS))
    for fact in facts[:3]:
        delete(kb, [fact])
    first, commits = First(kb.group_commit, threads), commits_of(kb)
    (waiting,) = first.behind(partial(delete, kb, [facts[3]]))
    first.go()
    waiting.result()
    first.done.result()
    assert len(commits) == 1
