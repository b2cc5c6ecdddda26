"""`colmlm demo`: shows that an edit of the knowledge base is an edit of what the model says."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import print_json, print_table, progress, say, shorten

if TYPE_CHECKING:
    from colmlm.cli.contents.demonstration import Demonstration, DemoRun

EXAMPLES = examples("colmlm demo", "colmlm demo --facts 5 --mode forced", "colmlm demo --json > demo.json")


class DemoMode(StrEnum):
    auto = "auto"
    forced = "forced"


def demo(
    facts: Annotated[
        int, typer.Option("--facts", min=1, max=10_000, help="How many facts to show it on.")
    ] = 20,
    mode: Annotated[
        DemoMode, typer.Option("--mode", help="Let the model decide when to look up, or look up at once.")
    ] = DemoMode.auto,
    corpus: Annotated[str, typer.Option("--corpus", help="Whose facts.")] = "demo",
    checkpoint: CheckpointPath = None,
) -> None:
    """Ask for facts, delete them, ask again, restore them, ask a third time. Run `colmlm up` first.

    The knowledge base is left as it was before. Facts that the model does not find to begin with are counted and
    skipped. The exit code is 0 where the first run passes and no lookup of any run returned a deleted fact.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.kb.facts.find(corpus=corpus, limit=1)  # raises for an unknown corpus before a model is loaded
        from colmlm.cli.contents.demonstration import Demonstration

        demonstration = Demonstration(runtime, corpus, mode)
        runs = _run(demonstration, facts)
    report = _report(demonstration, runs)
    print_json(report) if wants_json() else _show(report, runs)
    if not runs or not runs[0].passed or any(run.leaked for run in runs):
        raise typer.Exit(CHECK_FAILED)


def _run(demonstration: Demonstration, wanted: int) -> list[DemoRun]:
    runs: list[DemoRun] = []
    with progress("Deleting and restoring facts") as advance:
        advance(0, wanted)
        for run in demonstration.runs(wanted):
            if run is not None:
                runs.append(run)
            advance(len(runs), wanted)
    return runs


def _report(demonstration: Demonstration, runs: list[DemoRun]) -> dict[str, Any]:
    """Give the fields of the first run, then all runs and the counts, for JSON."""
    nothing = dict.fromkeys(("prompt", "before", "deleted_seq", "after", "restored"))
    shown = [{**asdict(run), "passed": run.passed} for run in runs]
    first = (
        {name: value for name, value in shown[0].items() if name not in ("passed", "reasons")}
        if shown
        else nothing
    )
    return {
        **first,
        "leaked": runs[0].leaked if runs else False,
        "mode": str(demonstration.mode),
        "checkpoint_id": demonstration.checkpoint_id,
        "passed": sum(run.passed for run in runs),
        "total": len(runs),
        "tried": demonstration.tried,
        "not_found_before": demonstration.not_found_before,
        "leaks": sum(run.leaked for run in runs),
        "parametric_runs": sum(run.parametric for run in runs),
        "runs": shown,
    }


def _show(report: dict[str, Any], runs: list[DemoRun]) -> None:
    if not runs:
        say(f"None of {report['tried']} facts was found by the model, so there is nothing to show.")
        return
    first = runs[0]
    say(first.prompt)
    say(f"  before:   {first.before.output.strip()}")
    say(
        f"            fact {first.before.fact_id}, {first.before.document}[{first.before.start}:{first.before.end}]"
    )
    say(f"  deleted:  {len(first.deleted)} statement(s) of it, change {first.deleted_seq}")
    say(f"  after:    {_after(first)}")
    say(f"  restored: {first.restored.output.strip()}")
    say()
    print_table(("fact", "question", "before", "after", "passed"), map(_row, runs))
    for run in runs:
        for reason in run.reasons:
            say(f"fact {run.fact_id}: {reason}")
    say(
        f"{report['passed']} of {report['total']} passed; leaks {report['leaks']}; said from the model's own weights "
        f"{report['parametric_runs']}; not found to begin with {report['not_found_before']} of {report['tried']}"
    )


def _after(run: DemoRun) -> str:
    """Give what was said after the delete, and say so where no fact stands behind it."""
    said = run.after.output.strip()
    if run.parametric:
        return f"{said} (uncited, from its weights)"
    return said if run.after.fact_id is not None else f"{said} (uncited)"


def _row(run: DemoRun) -> tuple[object, ...]:
    return (
        run.fact_id, shorten(run.question, 50), shorten(run.before.output, 30), shorten(_after(run), 60),
        "yes" if run.passed else "NO",
    )  # fmt: skip
