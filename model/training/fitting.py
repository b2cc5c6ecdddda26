"""Fitting of steps into the time of a run: a step takes fewer documents where too few of its size would fit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from colmlm.model.lm.config import CONFIG_FILE
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.corpora import DataError
from colmlm.model.training.state import STATE_FILE
from colmlm.model.training.streams import apportion

FEWEST_STEPS = 10  # that a run makes in its time, unless a step of one document takes longer
FIRST_TOKENS = 32  # of a document, that are timed before all of it
LOOK_AHEAD = 4 / 3  # several micro-batches cost one more forward; a backward costs two


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """The settings of a run that say how much a step takes."""

    batch_documents: int
    batch_rows: int | None
    block: int

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(batch_documents=config.batch_documents, batch_rows=config.batch_rows, block=config.block)

    def __str__(self) -> str:
        number, what = self.batch_rows or self.batch_documents, "row" if self.batch_rows else "document"
        return f"{number} {what}{'' if number == 1 else 's'}"


def resumed_steps(config: TrainConfig, directory: Path) -> tuple[TrainConfig, StepSize]:
    """Give the config with the steps of the run in `directory`, and what was asked for when that run began.

    A run keeps the steps that it was given, whether those or the ones it was asked for are named again.
    """
    asked = StepSize.of(config)
    if not (directory / STATE_FILE).is_file() or not (directory / CONFIG_FILE).is_file():
        return config, asked
    training = json.loads((directory / CONFIG_FILE).read_text()).get("training", {})
    before = training.get("asked_steps")
    now = {name: training.get("config", {}).get(name) for name in asdict(asked)}
    if before is None or asdict(asked) not in (before, now):
        return config, asked
    return replace(config, **now), StepSize(**before)


def fitted_config(config: TrainConfig, step_seconds: float, seconds: float) -> TrainConfig:
    """Give the config with the largest steps, at most its own, of which `FEWEST_STEPS` fit into these seconds.

    Where none is that small, the smallest step is taken. Raises DataError where not even that fits.
    """
    most = config.batch_rows or config.batch_documents
    each = step_seconds / most
    fitted = (
        config
        if each * most * FEWEST_STEPS <= seconds
        else _smaller(config, int(seconds / FEWEST_STEPS / each))
    )
    size = StepSize.of(fitted)
    if (needed := each * (size.batch_rows or size.batch_documents)) > seconds:
        raise DataError(
            f"no step fits into the time of this run: one of {size} takes about {needed:.0f} s here, and "
            f"{max(0.0, seconds):.0f} s are left. Nothing was trained; allow at least "
            f"{needed * FEWEST_STEPS / 60:.1f} minutes (--max-minutes), or cut documents (--max-length)"
        )
    return fitted


def described_fit(asked: TrainConfig, fitted: TrainConfig, step_seconds: float, seconds: float) -> str:
    """Say how long a step takes, how many fit, and whether they were made smaller for that."""
    before, after = StepSize.of(asked), StepSize.of(fitted)
    share = (after.batch_rows or after.batch_documents) / (before.batch_rows or before.batch_documents)
    each = step_seconds * share
    number = min(fitted.steps, max(1, int(seconds / max(each, 1e-9))))
    taken = f"a step of {after} takes about {each:.2g} s here, so some {number} fit into {seconds / 60:.2g} minutes"
    return taken if before == after else f"{taken}; one of {before} would take {step_seconds:.2g} s"


def _smaller(config: TrainConfig, number: int) -> TrainConfig:
    """Give the config with steps of about this many documents or rows, as few as its mixes and blocks allow."""
    if config.batch_rows is not None:
        return replace(config, batch_rows=max(1, min(number, config.batch_rows)))
    for documents in range(max(1, number), config.batch_documents):
        block = min(config.block, documents)
        smaller = replace(config, batch_documents=documents // block * block, block=block)
        if _divides(smaller):
            return smaller
    return config


def _divides(config: TrainConfig) -> bool:
    """Tell whether every corpus of both mixes gets a document of each step."""
    try:
        for mix in (config.mix, config.cooldown_mix):
            apportion(config.batch_documents, mix or (1.0,))
    except DataError:
        return False
    return True
