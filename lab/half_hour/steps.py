"""The steps by name. Each gives what comes back of it, and its figures.

They import what they need when they begin, since that may be among what travelled along.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colmlm.lab.half_hour.places import ADAPTER, CO_LMLM, QUESTIONS, READER, SCRATCH, Place


def _base(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    import torch

    from colmlm.model.lm.base_models import WEIGHTS, WHEEL_BASE, resolve_base
    from colmlm.model.lm.config import file_digest
    from colmlm.model.training.loop import hardware

    weights = resolve_base(WHEEL_BASE, place.cache) / WEIGHTS
    known = json.loads((place.before(ADAPTER) / "colmlm.json").read_text())["training"]["base_sha256"]
    figures = {"hardware": hardware(), "torch": torch.__version__, "same_base": file_digest(weights) == known}
    return {}, figures


def _reader(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.training import train_reader

    return {READER: train_reader(place)}, _speed(place, READER)


def _generator(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.training import train_generator

    return {QUESTIONS: train_generator(place)}, _speed(place, QUESTIONS)


def _questions(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.writing import write_questions

    counts = write_questions(place)
    asked = sorted(place.run("questions").glob("asked-*"))
    together = place.run("asked.jsonl")
    together.write_text("".join(path.read_text() for path in asked))
    return {"asked": together}, counts


def _train(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.training import train_co_lmlm

    return {CO_LMLM: train_co_lmlm(place)}, _speed(place, CO_LMLM)


def _measure(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.measuring import measure

    path = measure(place)
    return {"measure": path}, {"figures": json.loads(path.read_text())}


def _scratch(place: Place) -> tuple[dict[str, Path], dict[str, Any]]:
    from colmlm.lab.half_hour.measuring import measure_scratch
    from colmlm.lab.half_hour.training import train_scratch

    train_scratch(place)
    path = measure_scratch(place)
    speeds = {name: _speed(place, name) for name in SCRATCH}
    return {"scratch": path}, {"speeds": speeds, "figures": json.loads(path.read_text())}


def _speed(place: Place, name: str) -> dict[str, Any]:
    """Gives steps, tokens and tokens a second of a run, from its description."""
    folder = place.run(name)
    file = next(folder / one for one in ("colmlm.json", "annotator.json") if (folder / one).is_file())
    run = json.loads(file.read_text())["training"]
    speed = round(run["tokens"] / max(1, run["seconds"]))
    return {"steps": run["steps"], "tokens": run["tokens"], "tokens_per_second": speed}


STEPS: dict[str, Callable[[Place], tuple[dict[str, Path], dict[str, Any]]]] = {
    "base": _base,
    "reader": _reader,
    "generator": _generator,
    "questions": _questions,
    "train": _train,
    "measure": _measure,
    "scratch": _scratch,
}
