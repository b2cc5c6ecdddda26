"""`colmlm-lab evaluate timing` on a tiny model: it reports the curve, and keeps the choice where decoding finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.model.lm.checkpoint import load
from colmlm.model.text.markup import STANDARD
from tests.cli.conftest import invoke
from tests.tiny import tiny_checkpoint


def squad(path: Path, count: int) -> Path:
    lines = []
    for number in range(count):
        context = f"Place {number} lies by river {number} and has {number + 1000} people."
        answers = {f"By which river lies place {number}?": f"river {number}"}
        qas = [{"question": q, "answer": a, "answer_start": context.index(a)} for q, a in answers.items()]
        lines.append(json.dumps({"title": f"Place {number}", "context": context, "qas": qas}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def eager(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "eager", eagerness=5.0)


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_the_curve_is_reported_and_the_choice_kept(eager: Path, tmp_path: Path):
    train, dev = squad(tmp_path / "train.jsonl", 8), squad(tmp_path / "dev.jsonl", 3)
    before = load(eager, tmp_path, precision="fp32")
    ran = invoke(
        "evaluate", "timing", "--squad", train, "--hold-out", 4, "--dev", dev, "--questions", 3, "--save",
        "--checkpoint", eager, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = ran.json
    assert (report["held_out"]["documents"], report["held_out"]["sites"]) == (4, 4)
    assert report["dev"]["documents"] == 3 and report["dev"]["threshold"] == report["held_out"]["threshold"]
    rates = [point["site_rate"] for point in report["held_out"]["points"]]
    assert rates == sorted(rates) and report["held_out"]["points"][0]["bias"] == 0
    after = load(eager, tmp_path, precision="fp32")
    assert after.config.decoding["fact_bias"] == report["fact_bias"]
    assert after.checkpoint_id == before.checkpoint_id


def test_more_held_out_than_there_is_is_refused(eager: Path, tmp_path: Path):
    file = squad(tmp_path / "train.jsonl", 3)
    ran = invoke("evaluate", "timing", "--squad", file, "--hold-out", 4, "--checkpoint", eager)
    assert ran.code == 2 and "has 3 paragraphs, fewer than 4" in ran.err


def test_a_model_that_never_asks_is_refused(tmp_path: Path):
    path = tiny_checkpoint(tmp_path / "standard")
    record = json.loads((path / "colmlm.json").read_text())
    (path / "colmlm.json").write_text(json.dumps(record | {"method": STANDARD.method}))
    file = squad(tmp_path / "train.jsonl", 3)
    ran = invoke("evaluate", "timing", "--squad", file, "--hold-out", 2, "--checkpoint", path)
    assert ran.code == 2 and "method standard does not ask by its states" in ran.err
