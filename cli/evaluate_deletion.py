"""`colmlm evaluate deletion`: what is left of forgotten facts, by policy and radius, and what it costs the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.deletion_audit import DeletionAudit, Run, as_json
from cli.options import AsJson, CheckpointPath, examples
from cli.output import counting, note, print_json, print_table
from cli.runtime import Runtime
from model.evaluate.answers import Share

EXAMPLES = examples(
    "colmlm evaluate deletion --corpus demo --facts 50",
    "colmlm evaluate deletion --corpus squad-dev --facts 200 --radius 0.7 --radius 0.8 --radius 0.9 --json",
)
POLICIES = ("successor", "abstain")


def deletion(
    corpus: Annotated[
        str, typer.Option("--corpus", help="Whose facts; those with a question are asked for.")
    ],
    facts: Annotated[int, typer.Option("--facts", min=1, help="How many are forgotten, all together.")] = 100,
    others: Annotated[
        int, typer.Option("--others", min=1, help="How many other facts are looked up before and after.")
    ] = 300,
    radius: Annotated[
        list[float] | None,
        typer.Option(
            "--radius", min=-1, max=1, help="How near equivalents lie. Repeatable. Default: the threshold."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the facts.")] = 0,
    checkpoint: CheckpointPath = None,
    json_wanted: AsJson = False,
) -> None:
    """Forget a sample of facts in each way there is, ask for them, look others up, and undo it.

    `full` is before anything is forgotten, `off` the model without lookups: what it says there it has from its
    training, and no deletion reaches it. The model is asked at the first radius only. While this runs the facts are
    gone for everybody: use a knowledge base of your own.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        audit = DeletionAudit(runtime, corpus, facts, others, seed)
        if not audit.sample or not audit.others:
            raise typer.BadParameter("it has too few facts with a question.", param_hint="--corpus")
        report: dict[str, Any] = {
            "checkpoint": audit.checkpoint.config.name,
            "corpus": corpus,
            "facts": len(audit.sample),
            "others": len(audit.others),
        }
        before = audit.found_others()
        with counting("Asking", 4 * len(audit.sample)) as done:
            report["full"] = asdict(audit.said("forced", done))
            report["off"] = asdict(audit.said("off", done))
            radii: list[float | None] = list(radius) if radius else [None]
            runs = [
                audit.run(policy, at, before, done if number == 0 else None)
                for policy in POLICIES
                for number, at in enumerate(radii)
            ]
    report["runs"] = [as_json(run) for run in runs]
    print_json(report) if json_wanted else _show(report, runs)
    if not all(run.is_restored for run in runs):
        note("warning: not every lookup is as it was; did somebody else edit meanwhile?")


def _show(report: dict[str, Any], runs: list[Run]) -> None:
    rows = [(name, "", "", *_said(report[name]), "", "", "") for name in ("full", "off")]
    rows += [
        (
            run.policy,
            f"{run.radius:.3f}",
            str(run.forgotten),
            *_said(asdict(run.said) if run.said else None),
            f"{run.probes.leaks} of {run.probes.probes}",
            _share(run.others),
            _share(run.others_lost),
        )
        for run in runs
    ]
    asked = ("says it", "splices it", "wrong neighbour")
    print_table(("", "radius", "forgotten", *asked, "leaks", "others found", "others lost"), rows)
    note(f"{report['checkpoint']}: {report['facts']} facts of {report['corpus']}, {report['others']} others")


def _said(found: dict[str, Any] | None) -> tuple[str, str, str]:
    names = ("says", "splices", "wrong_neighbour")
    says, splices, wrong = (_share(Share(**found[name])) if found else "" for name in names)
    return says, splices, wrong


def _share(found: Share | None) -> str:
    return "" if found is None else f"{found.share:.3f} [{found.low:.3f}, {found.high:.3f}]"
