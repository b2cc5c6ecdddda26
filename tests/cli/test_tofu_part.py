"""The script that makes a smaller TOFU keeps its splits consistent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOFU = ROOT.parent / "shared" / "data" / "tofu"


@pytest.mark.shared_data
@pytest.mark.skipif(not TOFU.is_dir(), reason="the shared data are not beside the project")
def test_a_retain_and_its_forget_set_are_all_there_is(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "tofu_part.py"
    subprocess.run([sys.executable, script, TOFU, tmp_path], check=True, capture_output=True)

    def questions(name: str) -> list[str]:
        lines = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["question"] for line in lines]

    for forget, kept in (("forget01", "retain99"), ("forget05", "retain95"), ("forget10", "retain90")):
        assert sorted(questions(kept) + questions(forget)) == sorted(questions("full"))
        assert questions(f"{forget}_perturbed") == questions(forget)
    assert set(questions("retain_perturbed")) <= set(questions("retain90"))
    assert len(questions("retain_perturbed")) == 100


def test_a_folder_without_tofu_is_told_apart(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "tofu_part.py"
    told = subprocess.run(
        [sys.executable, script, tmp_path, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1 and "has no retain_perturbed.jsonl" in told.stderr
    assert not (tmp_path / "out").exists()
