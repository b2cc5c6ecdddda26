"""What is fitted to runs gives their figures back, and the guide says what is fitted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colmlm.cli.operating.estimates import Load
from colmlm.lab.bench.size.fit import (
    LAWS,
    TABLES,
    MeasuredRun,
    duration,
    fitted,
    growth,
    markdown,
    on_paper,
    read_all,
)
from tests.places import ROOT

RUNS = sorted((ROOT / "benchmarks" / "results" / "size").glob("*.json"))
GUIDE = (ROOT / "docs" / "sizing.md").read_text()


def run(facts: int, dim: int) -> MeasuredRun:
    """A run whose every stage takes 2e-5 s a fact and 1e-8 s for each number of a key, half of it in the server."""
    seconds = (2e-5 + 1e-8 * dim) * facts / 2
    took = {
        "cpu_seconds": seconds,
        "server_cpu_seconds": seconds,
        "peak_bytes": 10**8,
        "peak_server_bytes": facts,
    }
    return MeasuredRun(Load(facts=facts, dim=dim), dict.fromkeys(LAWS, took))


def test_the_terms_of_a_stage_are_found_again() -> None:
    found = fitted([run(10**5, 576), run(10**6, 64), run(10**6, 576)])["keys"]
    assert found == pytest.approx({"a fact": 2e-5, "a number of a key": 1e-8}, rel=1e-6)


def test_growth_is_told_between_runs_of_one_width_only() -> None:
    rows = list(growth([run(10**5, 576), run(10**6, 64), run(10**6, 576)]))[1:]
    assert {row[1] for row in rows} == {"100,000 x 576, 1,000,000 x 576"}
    assert {row[2:] for row in rows} == {("1.00", "0.00", "1.00")}


def test_the_guide_has_the_tables_that_the_runs_give() -> None:
    runs = read_all(RUNS)
    assert len(runs) >= 3 and max(run.load.facts for run in runs) >= 10**6
    assert markdown(on_paper(runs)) in GUIDE
    assert all(markdown(table(runs)) in GUIDE for table in TABLES.values())


def test_no_run_found_a_fault_or_a_deleted_fact() -> None:
    for file in RUNS:
        stages: dict[str, Any] = json.loads(file.read_text())["stages"]
        assert stages.keys() <= LAWS.keys() | {"lookup", "edit", "delete"}, file.name
        assert stages.get("fsck", {"ok": True})["ok"] is True, file.name
        assert stages.get("delete", {"deleted_but_found": 0})["deleted_but_found"] == 0, file.name


def test_durations_are_told_in_the_unit_that_suits_them() -> None:
    told = [duration(s) for s in (1, 119, 120, 7199, 7200, 172_799, 172_800)]
    assert told == ["1 s", "119 s", "2 min", "120 min", "2 h", "48 h", "2 days"]
