"""Lookups whose index is behind: they find what it lacks, search again only for that, and say what they saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.lookup.in_process import FaissCandidates
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.replica import KEPT
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import ask, fact_id, ingest, numbered, values

WHO = {"actor": "tester", "reason": "test"}
SECOND = FakeEncoder(salt="2")


@dataclass
class Between:
    """An observer that does something once, at the end of a part of a lookup, and counts the parts."""

    part: str
    do: Callable[[], object]
    seen: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        yield
        self.seen.append(part)
        if self.seen.count(part) == 1 and part == self.part:
            self.do()

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        pass


@pytest.fixture
def other(kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A process with an index of ten facts, beside the one that edits."""
    ingest(kb, *numbered(10))
    kb.keysets.rekey(encoder)
    another_process.lookups.catch_up()
    return another_process


def interrupted(other: KnowledgeBase, part: str, do: Callable[[], object]) -> Between:
    other.searcher.observer = between = Between(part, do)
    return between


def nearest(kb: KnowledgeBase, encoder: FakeEncoder, question: str) -> list[int]:
    """Gives the facts in the order of their scores."""
    (lookup,) = ask(kb, encoder, question, k=10, threshold=-1)
    return [hit.fact_id for hit in lookup.hits]


def restored(kb: KnowledgeBase, other: KnowledgeBase, value: str) -> Callable[[], object]:
    """Deletes a fact until that is in the other's index, and gives its restoring."""
    fact = fact_id(kb, value)
    kb.facts.delete([fact], **WHO)
    other.lookups.catch_up()
    return lambda: kb.facts.restore([fact], **WHO)


def test_a_fact_restored_between_search_and_decision_is_found(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    interrupted(other, "search", restored(kb, other, "value 3"))
    assert values(other, encoder, ["Question 3?"]) == ["value 3"]


def test_so_is_the_only_fact_that_there_is(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, *numbered(1))
    kb.keysets.rekey(encoder)
    interrupted(another_process, "search", restored(kb, another_process, "value 0"))
    assert values(another_process, encoder, ["Question 0?"]) == ["value 0"]


def test_so_is_one_that_another_thread_adds_to_the_index_meanwhile(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    restore = restored(kb, other, "value 3")

    def do() -> None:
        restore()
        adding = threading.Thread(target=other.lookups.catch_up)
        adding.start()
        adding.join()

    interrupted(other, "search", do)
    assert values(other, encoder, ["Question 3?"]) == ["value 3"]


@pytest.mark.parametrize("put", ["rebuilt", "prepared"])
def test_so_is_one_where_another_index_is_put_in_place_meanwhile(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder, put: str
):
    restore = restored(kb, other, "value 3")

    def do() -> None:
        restore()
        other.lookups.rebuild() if put == "rebuilt" else other.lookups.snapshot()

    interrupted(other, "search", do)
    assert values(other, encoder, ["Question 3?"]) == ["value 3"]


def test_a_fact_that_is_keyed_anew_is_found_by_its_new_question_alone(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    def do() -> None:
        kb.facts.edit(fact_id(kb, "value 3"), question="Third?", **WHO)
        kb.keysets.rekey(encoder)

    interrupted(other, "search", do)
    assert values(other, encoder, ["Third?", "Question 3?"]) == ["value 3", None]


def test_keys_that_were_added_meanwhile_are_ranked_with_those_that_were_found(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    """All hits and their order are those of a search that begins later, and there is one search."""
    restore = restored(kb, other, "value 3")
    between = interrupted(other, "search", restore)
    found = ask(other, encoder, "Question 3?", "Question 4?", k=4, threshold=-1)
    assert between.seen.count("search") == 1
    assert found == ask(other, encoder, "Question 3?", "Question 4?", k=4, threshold=-1)
    assert found[0].seq == kb.log.head_seq()


def test_what_was_found_is_decided_on_together_with_what_was_added(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    """A fact that is deleted after the first SELECT and before the second is not told beside a newer one."""
    restore, deleted = restored(kb, other, "value 3"), fact_id(kb, "value 4")

    def do() -> None:
        restore()
        interrupted(other, "select", lambda: kb.facts.delete([deleted], **WHO))

    interrupted(other, "search", do)
    found = ask(other, encoder, "Question 3?", "Question 4?", k=10, threshold=-1)
    assert found[0].hits[0].value == "value 3"
    assert all(deleted not in [hit.fact_id for hit in lookup.hits] for lookup in found)


@pytest.mark.parametrize("kind", ["as many as are remembered", "more"])
def test_an_index_that_got_many_keys_is_searched_again(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder, kind: str
):
    def do() -> None:
        ingest(kb, *numbered(10 + KEPT + (kind == "more")))
        kb.keysets.rekey(encoder)

    between = interrupted(other, "search", do)
    assert values(other, encoder, ["Question 200?", "Question 3?"]) == ["value 200", "value 3"]
    assert between.seen.count("search") == (2 if kind == "more" else 1)


def test_a_fact_that_comes_to_contradict_another_meanwhile_is_settled_as_ever(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    """The older one is found and decided on, and then the newer one is added, to which it yields."""
    kb.facts.add("Question 3?", "value new", anyway=True, **WHO)
    kb.keysets.rekey(encoder)
    restores = [restored(kb, other, value) for value in ("value 5", "value new")]

    def do() -> None:
        restores[0]()
        interrupted(other, "select", restores[1])

    interrupted(other, "search", do)
    assert values(other, encoder, ["Question 3?"]) == ["value new"]


def test_a_fact_that_gets_another_key_meanwhile_has_the_score_of_its_best(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    keyset_id, facts = kb.keysets.active().keyset_id, np.array([fact_id(kb, "value 3")])
    alias = encoder.encode_questions(["Third?"])
    interrupted(other, "search", lambda: kb.keysets.store_keys(keyset_id, facts, alias, kind="alias", **WHO))
    for lookup in ask(other, encoder, "Question 3?", "Third?", k=4, threshold=-1):
        assert lookup.hits[0].value == "value 3" and lookup.hits[0].score == pytest.approx(1, abs=1e-2)
        assert len({hit.fact_id for hit in lookup.hits}) == len(lookup.hits) == 4


def test_a_delete_alone_hides_its_fact_and_is_not_searched_for_again(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    between = interrupted(other, "search", lambda: kb.facts.delete([fact_id(kb, "value 3")], **WHO))
    gone, there = ask(other, encoder, "Question 3?", "Question 4?")
    assert (gone.hits, [hit.value for hit in there.hits]) == ((), ["value 4"])
    assert between.seen.count("search") == 1
    assert gone.seq == kb.log.head_seq() == other.searcher.applied_seq


@pytest.mark.parametrize("caught_up", [False, True], ids=["", "by another thread, after the decision"])
def test_where_all_heldare_deleted_those_behind_them_are_found(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder, caught_up: bool
):
    order = nearest(other, encoder, "Question 3?")
    candidates = other.searcher.current().candidates.over_fetch(1)
    assert candidates == 5
    delete = partial(kb.facts.delete, order[:candidates], **WHO)
    if caught_up:
        delete()
        interrupted(other, "select", other.lookups.catch_up)
    else:
        interrupted(other, "search", delete)
    (lookup,) = ask(other, encoder, "Question 3?", threshold=-1)
    assert [hit.fact_id for hit in lookup.hits] == order[candidates : candidates + 1]


def test_a_lookup_names_no_change_that_deleted_what_it_found(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    """The second query needs a second SELECT, and before that the fact goes that the first one found."""
    three, dead = fact_id(kb, "value 3"), nearest(other, encoder, "Else?")[:5]
    assert three not in dead
    kb.facts.delete(dead, **WHO)
    edits = []
    between = interrupted(other, "select", lambda: edits.append(kb.facts.delete([three], **WHO)))
    found, _ = ask(other, encoder, "Question 3?", "Else?", threshold=-1)
    assert between.seen[:5] == ["search", "select", "select", "search", "select"]
    assert found.hits[0].fact_id == three and found.seq < edits[0].seq


def test_a_switch_to_an_index_that_is_behind_finds_what_it_lacks(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    new = kb.keysets.rekey(SECOND)
    fact = fact_id(kb, "value 3")
    kb.facts.delete([fact], **WHO)
    other.searcher.stand_by(new.keyset_id, [new.keyset_id])
    kb.facts.restore([fact], **WHO)
    activated(kb, new.keyset_id)
    assert values(other, SECOND, ["Question 3?"]) == ["value 3"]


def test_a_switch_between_search_and_decision_refuses_what_was_encoded_for_the_former(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    new = kb.keysets.rekey(SECOND)
    interrupted(other, "search", lambda: activated(kb, new.keyset_id))
    with pytest.raises(KeysetMismatch):
        ask(other, encoder, "Question 3?")


def test_an_index_that_estimates_scores_as_many_live_keys_as_if_it_had_lost_the_dead_ones(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, *numbered(40))
    kb.keysets.create(encoder.checkpoint, index_spec="IVF2,PQ8x3")
    kb.keysets.rekey(encoder)
    held = another_process.searcher.current().candidates
    assert isinstance(held, FaissCandidates)
    index = held.index
    (query,) = encoder.encode_questions(["None?"])
    index.lists_read, least = index.lists, index.over_fetch(1)
    _, (candidates,) = index.search(query[None], 40)
    assert index.lists == 2 and least == 10 and (candidates >= 0).all()
    keys = dict(zip(*(part.tolist() for part in kb.keysets.keys(kb.keysets.active().keyset_id)), strict=True))
    best = {key: float(np.dot(keys[key], query)) for key in keys}
    facts = {hit.key_id: hit.fact_id for hit in ask(kb, encoder, "None?", k=40, threshold=-1)[0].hits}
    order = [facts[key] for key in candidates.tolist()]
    kb.facts.delete(order[: least - 1], **WHO)
    (lookup,) = ask(another_process, encoder, "None?", threshold=-1)
    assert lookup.hits[0].fact_id == max(order[least - 1 : 2 * least], key=best.__getitem__)


def test_lookups_beside_edits_and_catch_ups_see_every_edit_before_them(
    kb: KnowledgeBase, other: KnowledgeBase, encoder: FakeEncoder
):
    """Two threads look up, one catches up, and one deletes and restores; between two edits the answer is known."""
    fact, queries = fact_id(kb, "value 3"), encoder.encode_questions(["Question 3?"])
    edited, over = [0], threading.Event()
    wrong: list[tuple[int, bool]] = []

    def look_up() -> None:
        while not over.is_set():
            before = edited[0]
            (lookup,) = other.lookups.find(queries, checkpoint_id="fake")
            if before == edited[0] and before % 2 == 0 and bool(lookup.hits) != (before % 4 == 0):
                wrong.append((before, bool(lookup.hits)))

    def catch_up() -> None:
        while not over.wait(0.003):
            other.lookups.catch_up()

    threads = [threading.Thread(target=one) for one in (look_up, look_up, catch_up)]
    for thread in threads:
        thread.start()
    for n in range(60):
        edited[0] += 1  # odd while it is made
        (kb.facts.restore if n % 2 else kb.facts.delete)([fact], **WHO)
        edited[0] += 1
        over.wait(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and edited == [120]
