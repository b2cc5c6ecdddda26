"""The Makefile of the paper's tables names commands that exist, and excerpts are the same each time."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from colmlm.kb import interpreter
from colmlm.lab.paper import excerpts
from tests.places import ROOT
from tests.test_docs import refusal_of

NAMED = ("triviaqa", "tofu-forget05-npo-42", "understanding-siqa", "judged-biographies-off", "perplexity-all")


@pytest.mark.parametrize("variant", ["quick", "full"])
def test_every_command_is_one_of_the_command_line(variant: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "tofu").mkdir(parents=True)
    for name in ("full", "retain90", "retain95", "retain99", "forget01", "forget05", "forget10"):
        (tmp_path / "data" / "tofu" / f"{name}.jsonl").write_text("{}\n")
    shown = subprocess.run(
        ["make", "-n", "-f", ROOT / "lab" / "paper" / "Makefile", variant,
         "COLMLM=colmlm", "LABORATORY=colmlm-lab"],
        env={"PATH": "/usr/bin:/bin", "DATA": str(tmp_path / "data"), "OUT": str(tmp_path / "out")},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    typed = [
        shlex.split(line.partition(" > ")[0])
        for line in re.findall(r" (colmlm(?:-lab)? .*)", shown.replace("\\\n", " "))
    ]
    assert len(typed) >= (40 if variant == "quick" else 180)
    assert [f"{words}: {fault}" for words in typed if (fault := refusal_of(words))] == []
    if variant == "full":
        assert [name for name in NAMED if name not in shown] == []


def test_an_excerpt_takes_rows_at_even_distances(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    rows = [{"title": str(number)} for number in range(10)]
    (tmp_path / "squad" / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    taken = list(excerpts.spread(tmp_path / "squad" / "dev.jsonl", 5))
    assert [row["title"] for row in taken] == ["0", "2", "4", "6", "8"]
    asked = interpreter.command("-m", "colmlm.lab.paper.excerpts", "squad", str(tmp_path))
    subprocess.run([*asked, str(tmp_path / "out.jsonl"), "--rows", "5"], check=True)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == taken
    missing = subprocess.run(
        [*asked[:-2], "vital", *asked[-1:], "x"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and "name the folder of the evaluation data" in missing.stderr
