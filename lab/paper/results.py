"""Collects the results in a folder into results.json, from which the page and the plots are made."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from colmlm.lab.bench.machine import machine
from colmlm.lab.paper.declared import PaperStep
from colmlm.lab.paper.page import page
from colmlm.lab.paper.plots import draw
from colmlm.lab.paper.running import Running
from colmlm.lab.paper.sizes import VariantSizes


def write(running: Running, sizes: VariantSizes, *, plots: bool) -> dict[str, Any]:
    """Writes results.json and results.md, with `plots` also the plots, and gives the content of results.json."""
    out = running.places.out
    steps = [_told(running, step) for step in running.plan.steps]
    results = {
        "variant": sizes.variant,
        "counts": {name: value for name, value in asdict(sizes).items() if name != "variant"},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": _version(),
        "machine": machine(),
        "checkpoint": running.checkpoint.name,
        "places": {name: str(folder) for name, folder in running.places.names.items()},
        "plots": draw(steps, out) if plots else [],
        "preparations": [
            {"name": one.name, "commands": running.prepared(one)}
            for one in running.plan.preparations.values()
        ],
        "steps": steps,
    }
    (out / "results.json").write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")
    (out / "results.md").write_text(page(results), encoding="utf-8")
    return results


def _told(running: Running, step: PaperStep) -> dict[str, Any]:
    """Gives a step with its state: done, failed, no data or not run."""
    found, error = running.result(step), running.error(step)
    missing = [running.places.word(str(path)) for path in running.plan.missing(step)]
    told = {
        "name": step.name,
        "section": step.section,
        "label": step.label,
        "data": step.data,
        "shows": step.shows,
        "home": step.preparations[0] if step.preparations else "none",
        "command": running.places.shown(step.argv),
        "missing": missing,
    }
    if found is not None:
        return told | {"state": "done", **found}
    if error is not None:
        return told | {"state": "failed", "error": error}
    return told | {"state": "no data" if missing else "not run"}


def _version() -> str:
    try:
        return version("colmlm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "of a source tree"
