"""`colmlm-lab faults`: kills what works on a base, and reports whether anything was lost or came back."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import note, print_json, progress, say
from colmlm.lab.faults.laboratory import Laboratory, RoundTally
from colmlm.lab.faults.target import FolderServer

app = typer.Typer(
    help="Kill what works on a base, and check that nothing was lost.",
    epilog=examples("colmlm-lab faults crash --rounds 20"),
)
FAULTS = ("lost", "resurrected", "mismatched", "residue", "chain_breaks", "errors")
SHOWN = 20


@app.callback()
def group() -> None:
    """Kill what works on a base, and check that nothing was lost."""


@app.command(
    epilog=examples(
        "colmlm-lab faults crash",
        "colmlm-lab faults crash --rounds 500 --seed 7 --json",
        "colmlm-lab faults crash --seed 7 --only 31",
    )
)
def crash(
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1_000_000, help="How many kills.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed is another run.")] = 1,
    only: Annotated[
        int | None,
        typer.Option("--only", min=0, help="Repeat this round, with those before it on the same base."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the temporary folder for a look at it.")
    ] = False,
) -> None:
    """Prove that a kill loses nothing: kill working processes and the database, and check every invariant.

    It works on a temporary home with a database of its own, never on yours. The exit code is 1 where an
    acknowledged edit was lost, a deleted fact came back, anything disagrees, or the change log is broken.
    """
    folder = Path(tempfile.mkdtemp(prefix="colmlm-faults-"))
    folder.chmod(0o755)  # the embedded server may run as another user
    began = time.monotonic()
    try:
        tally = _run(folder, seed, only or 0, rounds if only is None else only + 1)
    finally:
        if keep:
            note(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    report = _report(tally, seed, time.monotonic() - began)
    print_json(report) if wants_json() else _show(report)
    if any(report[fault] for fault in FAULTS):
        raise typer.Exit(CHECK_FAILED)


def _run(folder: Path, seed: int, first: int, last: int) -> RoundTally:
    with (
        FolderServer(folder / "server") as server,
        Laboratory(server, folder, seed) as laboratory,
        progress("Killing") as advance,
    ):
        for tally in laboratory.rounds(first, last):
            advance(tally.rounds, None)
        return laboratory.tally


def _report(tally: RoundTally, seed: int, seconds: float) -> dict[str, Any]:
    failures = [
        {"round": number, "seed": seed, "kind": finding.kind, "what": finding.what}
        for number, finding in tally.findings
    ]
    return {
        "rounds": tally.rounds,
        **{fault: tally.count(fault) for fault in FAULTS},
        "seed": seed,
        "seconds": round(seconds, 1),
        "seconds_per_round": round(seconds / max(tally.rounds, 1), 2),
        "acknowledged": tally.acknowledged,
        "in_doubt": tally.in_doubt,
        "server_kills": tally.server_kills,
        "rounds_of_two_processes": tally.two_children,
        "kill_points": dict(sorted(tally.kills.items())),
        "failures": failures[:100],
    }


def _show(report: dict[str, Any]) -> None:
    faults = ", ".join(f"{report[fault]} {fault.replace('_', ' ')}" for fault in FAULTS)
    say(f"{report['rounds']} rounds with seed {report['seed']}: {faults}")
    say(
        f"{report['acknowledged']} steps acknowledged, {report['in_doubt']} in doubt, {report['server_kills']} kills"
        f" of the database; {report['seconds']} s"
    )
    for point, count in report["kill_points"].items():
        say(f"  {count:5} {point}")
    for failure in report["failures"][:SHOWN]:
        say(f"round {failure['round']}: {failure['kind']}: {failure['what']}")
