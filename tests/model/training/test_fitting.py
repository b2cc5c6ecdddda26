"""Steps that are fitted into the time of a run: smaller ones where few fit, none where not even one does."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.trainer import (
    FEWEST_STEPS,
    StepSize,
    Trainer,
    describe_fit,
    fitted_config,
    resumed_steps,
)
from tests.kb.corpora import numbered

LONG, SECONDS = 1e6, 100.0


class Slow(Trainer):
    """A run on a machine where a step of four documents is the largest that fits."""

    def fit(self, seconds_per_token: float, seconds: float) -> None:
        tokens = self.source.build(self.source.draw_documents(0)).num_tokens
        super().fit(seconds / FEWEST_STEPS / tokens * 1.9, seconds)


@pytest.fixture(scope="module")
def config(base: Path) -> TrainConfig:
    return TrainConfig(
        init=str(base), steps=6, batch_documents=8, block=4, max_length=128, learning_rate=1e-2, warmup_steps=2,
        lora_rank=4, lora_alpha=8, precision="fp32", title_fraction=0.0, memory=8,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def trainer(config: TrainConfig, run: Path, told: list[str] | None = None) -> Trainer:
    return Trainer(config, numbered(24), run, run, "tiny", None if told is None else told.append)


def losses(run: Trainer, most: int | None = None) -> list[tuple[float, ...]]:
    return [(m.step, m.tokens, m.loss, m.gradient_norm, *m.parts.values()) for m in islice(run.run(), most)]


@pytest.mark.parametrize(
    "step_seconds, documents", [(SECONDS / FEWEST_STEPS, 16), (20.0, 8), (39.0, 4), (100.0, 1), (1500.0, 1)]
)
def test_a_step_is_as_large_as_the_time_allows(step_seconds: float, documents: int):
    fitted = fitted_config(TrainConfig(), step_seconds, SECONDS)
    assert fitted.batch_documents == documents and fitted.batch_documents % fitted.block == 0


def test_a_step_of_rows_is_shrunk_by_rows():
    rows = TrainConfig(batch_rows=128, max_length=512)
    assert fitted_config(rows, 40.0, SECONDS).batch_rows == 32
    assert fitted_config(rows, 12_000.0, SECONDS).batch_rows == 1


def test_every_corpus_of_a_mix_keeps_a_document_of_each_step():
    mixed = TrainConfig(mix=(3.0, 1.0), cooldown_mix=(1.0, 1.0))
    fitted = fitted_config(mixed, 160.0, SECONDS)
    assert 2 <= fitted.batch_documents < 16


def test_a_time_in_which_no_step_fits_is_refused_with_one_that_is_long_enough():
    with pytest.raises(
        TrainingRefused, match=r"one of 1 document takes about 125 s.*Nothing was trained.*20.8 minutes"
    ):
        fitted_config(TrainConfig(), 2000.0, SECONDS)


def test_a_run_says_how_its_steps_fit(config: TrainConfig):
    smaller = replace(config, batch_documents=4)
    assert describe_fit(config, smaller, 20.0, SECONDS) == (
        "a step of 4 documents takes about 10 s here, so some 6 fit into 1.7 minutes; "
        "one of 8 documents would take 20 s"
    )


def test_timing_a_probe_changes_no_step(config: TrainConfig, run: Path, tmp_path: Path):
    """A run whose steps all fit has the losses of one that no time limits, whatever it remembers of earlier steps."""
    told: list[str] = []
    limited = losses(trainer(replace(config, max_seconds=LONG), run, told))
    assert limited == losses(trainer(config, tmp_path / "other"))
    assert told[0].startswith("a step of 8 documents takes about")
    assert told[1:] == ["step 1 of at most 6: 8 documents of 24 a step"]


def test_a_run_of_fitted_steps_goes_on_with_them(config: TrainConfig, run: Path, tmp_path: Path):
    asked = replace(config, max_seconds=LONG)
    every = losses(Slow(asked, numbered(24), tmp_path / "whole", run, "tiny"))
    cut = Slow(asked, numbered(24), run, run, "tiny")
    before = losses(cut, 3)
    cut.loop.save()
    kept = json.loads((run / "colmlm.json").read_text())["training"]
    assert (kept["config"]["batch_documents"], kept["asked_steps"]["batch_documents"]) == (4, 8)
    for again in (asked, cut.config):
        assert resumed_steps(again, run) == (cut.config, StepSize.of(asked))
    assert before + losses(trainer(asked, run)) == every
    other = replace(asked, batch_documents=12)
    assert asdict(resumed_steps(other, run)[1])["batch_documents"] == 12
