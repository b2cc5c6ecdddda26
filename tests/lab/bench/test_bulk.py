"""The benchmark of bulk work: it keys what it says, by whom it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import invoke
from tests.tiny import tiny_checkpoint


@pytest.mark.slow
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


def test_without_ray_only_the_process_itself_is_measured(tmp_path: Path) -> None:
    own = tiny_checkpoint(tmp_path / "tiny")
    ran = invoke("bench", "bulk", "--facts", 600, "--no-ray", "--checkpoint", own, "--json")
    assert ran.code == 0, ran.err
    assert [one["workers"] for one in ran.json["runs"]] == [0] and ran.json["part_ms"] is None
