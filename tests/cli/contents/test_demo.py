from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.contents.demo import Demonstration, DemoRun, says_unaided, spread_by_document
from colmlm.kb.facts.records import FactRecord, Source
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import Run as Invoke
from tests.cli.conftest import invoke
from tests.gates import Reached, gate, interrupted

DEMO = ("demo", "--corpus", "atlas", "--mode", "forced", "--facts", 1)


@pytest.fixture
def findable(run: Invoke, keyed: list[int]) -> list[int]:
    """Two facts of which the tiny model's forced lookup always finds one: nothing is below the threshold."""
    run("keysets", "threshold", "--calibrate", "--false-accept-rate", 1)
    return keyed


@pytest.fixture
def runtime(findable: list[int]) -> Iterator[Runtime]:
    with Runtime.from_environment() as opened:
        yield opened


def live(run: Invoke) -> list[tuple[int, str]]:
    return [(f["fact_id"], f["value"]) for f in run("facts", "list", "--json").json["facts"]]


def first(demonstration: Demonstration) -> DemoRun:
    return next(run for run in demonstration.runs(1) if run is not None)


def test_the_demo_shows_a_fact_before_after_and_restored(run: Invoke, findable: list[int]) -> None:
    was = live(run)
    ran = run(*DEMO, "--json")
    assert ran.code == 0
    shown = ran.json
    before, after, restored = shown["before"], shown["after"], shown["restored"]
    fact = run("facts", "show", before["fact_id"], "--json").json
    assert (before["document"], before["start"], before["end"]) == (
        "peru", fact["source"]["start"], fact["source"]["end"]
    )  # fmt: skip
    assert before["value"] == fact["value"] and before["score"] is not None
    assert before["fact_id"] in shown["deleted"] and after["fact_id"] not in shown["deleted"]
    assert restored["output"] == before["output"] and restored["fact_id"] == before["fact_id"]
    assert shown["leaked"] is False and shown["deleted_seq"] > 0
    assert (shown["passed"], shown["total"], len(shown["runs"])) == (1, 1, 1)
    assert shown["runs"][0]["passed"] and shown["runs"][0]["reasons"] == []
    assert shown["tried"] == shown["total"] + shown["not_found_before"]
    assert live(run) == was


def test_the_demo_is_shown_to_people_too(run: Invoke, findable: list[int]) -> None:
    ran = run(*DEMO)
    assert ran.code == 0 and "1 of 1 passed; leaks 0" in ran.out


def test_a_model_that_finds_nothing_is_no_success(run: Invoke, findable: list[int]) -> None:
    run("keysets", "threshold", "--calibrate", "--false-accept-rate", 0)
    ran = run("demo", "--corpus", "atlas", "--mode", "auto", "--facts", 1, "--json")
    if ran.json["total"] == 0:
        assert ran.code == 1 and ran.json["not_found_before"] == ran.json["tried"] > 0


class StaleBase(KnowledgeBase):
    """A knowledge base with the fault the demo looks for: it answers from what it once found."""

    @property
    def lookups(self) -> Lookups:
        return StaleLookups(self, self.searcher)


class StaleLookups(Lookups):
    def find(self, queries_BD: Any, **options: Any) -> list[Lookup]:
        remembered: dict[tuple[bytes, int], Lookup] = self.store.__dict__.setdefault("remembered", {})
        fresh = super().find(queries_BD, **options)
        return [
            remembered.setdefault((query.tobytes(), options["k"]), found)
            for query, found in zip(queries_BD, fresh, strict=True)
        ]


def test_a_lookup_that_still_answers_is_a_leak(runtime: Runtime) -> None:
    runtime.kb = StaleBase.open(runtime.settings)
    leaking = first(Demonstration(runtime, "atlas", "forced"))
    assert leaking.leaked and not leaking.has_passed
    assert "cites deleted facts" in leaking.reasons[0]


def output_after(kind: str, url: str) -> AbstractContextManager[Reached]:
    """Holds the demo up when it stores its first output after a change of this kind."""
    return gate(url, "INSERT ON generation", f"EXISTS (SELECT FROM change WHERE kind = '{kind}')")


@pytest.mark.parametrize("change", ["delete", "restore"])
def test_whatever_interrupts_the_demo_the_facts_are_back(
    change: str, runtime: Runtime, database_url: str
) -> None:
    was = live(invoke)
    with (
        output_after(change, database_url) as reached,
        interrupted(reached),
        pytest.raises(KeyboardInterrupt),
    ):
        list(Demonstration(runtime, "atlas", "forced").runs(1))
    assert live(invoke) == was


def test_a_request_to_terminate_restores_too(run: Invoke, findable: list[int], database_url: str) -> None:
    was, handler = live(run), signal.getsignal(signal.SIGTERM)
    with output_after("delete", database_url) as reached, interrupted(reached, by=signal.SIGTERM):
        assert run(*DEMO).code == 130
    assert live(run) == was and signal.getsignal(signal.SIGTERM) is handler


def fact(fact_id: int, external_id: str) -> FactRecord:
    source = Source(1, "atlas", external_id, None, None, None, None, 0, 1)
    return FactRecord(fact_id, "v", 1, "q?", None, source, 1, None)


def test_facts_are_spread_over_documents() -> None:
    order = [
        f.fact_id
        for f in spread_by_document([fact(1, "a"), fact(2, "a"), fact(3, "a"), fact(4, "b"), fact(5, "b")])
    ]
    assert {order[0], order[1]} == {1, 4} and {order[2], order[3]} == {2, 5} and order[4] == 3


def test_a_value_in_a_spliced_span_is_not_from_the_weights(run: Invoke, findable: list[int]) -> None:
    with Runtime.from_environment() as runtime:
        ran = first(Demonstration(runtime, "atlas", "forced"))
        trace = next(
            runtime.kb.outputs.trace(g.generation_id)
            for g in reversed(runtime.kb.outputs.find())
            if runtime.kb.outputs.trace(g.generation_id).splices
        )
    assert ran.before.value is not None
    assert not says_unaided(trace, trace.splices[0].value)
