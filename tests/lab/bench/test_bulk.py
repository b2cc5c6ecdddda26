"""The benchmark of bulk work: it keys what it says, by whom it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.lab.bench.bulk import rate
from tests.cli.conftest import invoke
from tests.tiny import tiny_checkpoint


@pytest.mark.slow(reason="starts Ray")
@pytest.mark.timeout(600)
def test_one_process_and_workers_of_ray_key_the_same_facts(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    own = tiny_checkpoint(tmp_path / "tiny")
    ran = invoke("bench", "bulk", "--facts", 1200, "--ray", "--workers", 1, "--checkpoint", own, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["facts"] == 1200 and ran.json["parts"] == 5
    assert [one["workers"] for one in ran.json["runs"]] == [0, 1]
    for one in ran.json["runs"]:
        assert {"start_seconds", "seconds", "facts_per_s"} <= set(one)
    assert ran.json["keys_alike"] > 0.999 and {"part_ms", "part_ms_alone"} <= set(ran.json)


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_without_ray_only_the_process_itself_is_measured(tmp_path: Path) -> None:
    own = tiny_checkpoint(tmp_path / "tiny")
    ran = invoke("bench", "bulk", "--facts", 600, "--no-ray", "--checkpoint", own, "--json")
    assert ran.code == 0, ran.err
    assert [one["workers"] for one in ran.json["runs"]] == [0] and ran.json["part_ms"] is None


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("late", [0.0, 3.0])
def test_the_rate_is_that_of_all_workers_though_parts_come_together_and_one_begins_late(
    workers: int, last: int, late: float
) -> None:
    """Each works eight parts of 256 facts in two seconds each, after five to start; then one may have another."""
    begins = [5.0] * (workers - 1) + [5.0 + late]
    times = sorted(began + 2 * n for began in begins for n in range(1, 9))
    heard = [(at, 256 * n) for n, at in enumerate([*times, times[-1] + 2][: len(times) + last], 1)]
    assert rate(heard, workers) == pytest.approx(workers * 256 / 2, rel=0.15 if late else 1e-9)


def test_too_few_facts_for_so_many_workers_are_refused() -> None:
    ran = invoke("bench", "bulk", "--facts", 2000, "--workers", 1, "--workers", 2, "--json")
    assert ran.code == 2 and "2 workers are measured by 2048 facts at least" in ran.err
