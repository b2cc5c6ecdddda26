"""The script that makes a smaller TOFU keeps its splits consistent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from colmlm.kb import interpreter
from tests.places import ROOT


@pytest.fixture
def tofu(tmp_path: Path) -> Path:
    """Twenty questions: eight of them are asked of what is kept, and the last four are the largest forget set."""
    names = {
        "full": range(20), "retain_perturbed": range(8), "retain90": range(16), "retain95": range(18),
        "retain99": range(19), "forget10": range(16, 20), "forget05": range(18, 20), "forget01": range(19, 20),
        "real_authors": range(30, 32), "world_facts": range(40, 42),
    }  # fmt: skip
    for name, numbers in names.items():
        lines = "".join(json.dumps({"question": f"{n}?", "answer": "Ann"}) + "\n" for n in numbers)
        (tmp_path / f"{name}.jsonl").write_text(lines)
        if not name.startswith(("full", "retain")):
            (tmp_path / f"{name}_perturbed.jsonl").write_text(lines)
    return tmp_path


def test_a_retain_and_its_forget_set_are_all_there_is(tofu: Path) -> None:
    script, out = ROOT / "benchmarks" / "tofu_part.py", tofu / "out"
    subprocess.run(interpreter.command(script, tofu, out), check=True, capture_output=True)

    def questions(name: str) -> list[str]:
        lines = (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["question"] for line in lines]

    assert questions("full") == [f"{n}?" for n in (*range(8), *range(16, 20))]
    for forget, kept in (("forget01", "retain99"), ("forget05", "retain95"), ("forget10", "retain90")):
        assert sorted(questions(kept) + questions(forget)) == sorted(questions("full"))
        assert questions(f"{forget}_perturbed") == questions(forget)
    assert questions("retain_perturbed") == ["0?", "4?"]
    assert questions("world_facts_perturbed") == questions("world_facts") == ["40?", "41?"]


def test_a_folder_without_tofu_is_told_apart(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "tofu_part.py"
    told = subprocess.run(
        interpreter.command(script, tmp_path, tmp_path / "out"), capture_output=True, text=True, check=False
    )
    assert told.returncode == 1 and "has no retain_perturbed.jsonl" in told.stderr
    assert not (tmp_path / "out").exists()
