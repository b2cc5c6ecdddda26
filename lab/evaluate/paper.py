"""`colmlm evaluate paper`: repeats the paper's tables at this model's size, with one command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime, released_checkpoint
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.lab.paper import results
from colmlm.lab.paper.declared import PaperPlan, PaperStep, Places
from colmlm.lab.paper.running import Running, StepFailed
from colmlm.lab.paper.sizes import FULL, QUICK, VariantSizes
from colmlm.lab.paper.steps import declared

EXAMPLES = examples(
    "colmlm evaluate paper --quick --out results/quick",
    "colmlm evaluate paper --out results/full --skip 'tofu-*'",
    "colmlm evaluate paper --quick --out results/quick --only deletion",
)


def paper(
    out: Annotated[
        Path, typer.Option("--out", file_okay=False, help="Results go here; a run already there goes on.")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few examples and no training: within 20 minutes on two cores.")
    ] = False,
    data: Annotated[
        Path, typer.Option("--data", file_okay=False, help="The folder of the evaluation data.")
    ] = Path("../shared/data"),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="STEP", help="Run this step; may hold * and be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="STEP", help="Leave this step out; may hold * and be repeated."),
    ] = None,
    checkpoint: CheckpointPath = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the steps and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's measurements one after another and write a page of tables and plots beside the paper's figures.

    Each step is a command of its own on a knowledge base of its own, below --out; yours is not touched. A step with a
    result is not run again, and a stopped one is continued. If a step fails, the page says so, the others still run,
    and the exit code is 1.
    """
    if not data.is_dir():
        raise typer.BadParameter(f"there is no {data}.", param_hint="--data")
    sizes = QUICK if quick else FULL
    running = _running(out, data, sizes, checkpoint)
    chosen = _chosen(running.plan, only or [], skip or [])
    if dry_run:
        _list(running.plan, chosen, as_json)
        return
    _require_same(running, sizes)
    failed = _run(running, sizes, chosen)
    report = results.write(running, sizes, plots=True)
    _report(report, out, failed, as_json)
    if failed:
        raise typer.Exit(CHECK_FAILED)


def _running(out: Path, data: Path, sizes: VariantSizes, checkpoint: Path | None) -> Running:
    runtime = Runtime.from_environment(checkpoint=checkpoint)
    released = released_checkpoint()
    made_of = (runtime.user.checkpoint or released).absolute()
    places = Places(
        out=out.expanduser().absolute(),
        data=data.expanduser().absolute(),
        released=released.parent.absolute(),
    )
    return Running(places, declared(places, sizes, made_of), runtime.settings.home / "models", made_of)


def _chosen(plan: PaperPlan, only: Sequence[str], skip: Sequence[str]) -> list[PaperStep]:
    names = [step.name for step in plan.steps]
    for hint, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not any(fnmatch(name, pattern) for name in names):
                raise typer.BadParameter(
                    f"no step is {pattern}; there are {', '.join(names)}.", param_hint=hint
                )
    wanted = [step for step in plan.steps if not only or _fits(step, only)]
    return [step for step in wanted if not _fits(step, skip)]


def _fits(step: PaperStep, patterns: Sequence[str]) -> bool:
    return any(fnmatch(step.name, pattern) for pattern in patterns)


def _list(plan: PaperPlan, chosen: Sequence[PaperStep], as_json: bool) -> None:
    told = [
        {"name": step.name, "shows": step.shows, "missing": [str(path) for path in plan.missing(step)]}
        for step in chosen
    ]
    if as_json:
        print_json({"steps": told})
    else:
        print_table(("step", "what it shows", "data that is not there"),
                    [(one["name"], one["shows"], ", ".join(one["missing"])) for one in told])  # fmt: skip


def _require_same(running: Running, sizes: VariantSizes) -> None:
    """Refuses a folder of another variant, checkpoint or data, since its knowledge bases would be mistaken for this
    run's.
    """
    file = running.places.out / "run.json"
    run = {
        "variant": sizes.variant,
        "checkpoint": str(running.checkpoint),
        "data": str(running.places.data),
    }
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(run), encoding="utf-8")
    elif (found := json.loads(file.read_text(encoding="utf-8"))) != run:
        was = ", ".join(f"{name} {value}" for name, value in found.items())
        raise typer.BadParameter(f"it holds another run ({was}); name another folder.", param_hint="--out")


def _run(running: Running, sizes: VariantSizes, chosen: Sequence[PaperStep]) -> list[str]:
    """Runs each step that has no result yet, and gives the steps that failed."""
    failed = []
    for number, step in enumerate(chosen, start=1):
        where = f"step {number} of {len(chosen)}: {step.name}"
        if running.result(step) is not None:
            note(f"{where}: is there already")
            continue
        if missing := running.plan.missing(step):
            note(f"{where}: passed over, as there is no {', '.join(map(str, missing))}")
            continue
        note(f"{where}: {step.shows}")
        try:
            running.run(step)
        except StepFailed as error:
            note(f"{step.name} failed: {error}")
            failed.append(step.name)
        results.write(running, sizes, plots=False)
    return failed


def _report(report: dict[str, Any], out: Path, failed: Sequence[str], as_json: bool) -> None:
    states: dict[str, list[str]] = {}
    for one in report["steps"]:
        states.setdefault(one["state"], []).append(one["name"])
    page = out / "results.md"
    if as_json:
        print_json({"page": str(page), "results": str(out / "results.json"), "plots": report["plots"],
                    "variant": report["variant"], "failed_now": list(failed), "steps": states})  # fmt: skip
        return
    for state, names in states.items():
        say(f"{state}: {', '.join(names)}")
    say(str(page))
