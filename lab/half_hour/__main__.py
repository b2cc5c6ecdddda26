"""`python -m colmlm.lab.half_hour`: prepares half an hour of an accelerator, and carries it out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from colmlm.cli.output import note, print_json
from colmlm.lab.half_hour.parcels import bring_back, receive
from colmlm.lab.half_hour.places import SITE, SIZES, Place
from colmlm.lab.half_hour.steps import STEPS


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that is named."""
    options = _options(arguments)
    if options.command != "prepare":
        sys.path.insert(0, str(options.store / SITE))  # before anything imports what travelled along
    options.run(options)


def _prepare(options: argparse.Namespace) -> None:
    from colmlm.lab.half_hour.preparing import prepare

    parts = prepare(options.squad, options.dev, options.marked, options.held, options.out)
    print_json({"parts": {part.name: part.stat().st_size for part in parts}})


def _receive(options: argparse.Namespace) -> None:
    print_json({"missing": receive(options.part, options.store)})


def _write(options: argparse.Namespace) -> None:
    from colmlm.lab.half_hour.writing import write_share

    share, _, of = options.share.partition("/")
    write_share(Place(options.store, options.size), int(share), int(of))


def _run(options: argparse.Namespace) -> None:
    """Carries out the steps one after the other; each that ends brings back what it made."""
    place = Place(options.store, options.size)
    for name in options.steps:
        note(f"{name}, {options.size}")
        started = time.monotonic()
        made, figures = STEPS[name](place)
        done = {"step": name, "size": options.size, "seconds": round(time.monotonic() - started), **figures}
        log = place.run("log.jsonl")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as out:
            out.write(json.dumps(done) + "\n")
        left_out = bring_back(made, options.back) if options.back else []
        print_json(done | ({"left_out": left_out} if left_out else {}))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m colmlm.lab.half_hour", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="make the parcels, on the own machine")
    first.add_argument("--squad", type=Path, required=True, help="a SQuAD file to train on")
    first.add_argument("--dev", type=Path, required=True, help="a SQuAD file to measure recall on")
    first.add_argument("--marked", type=Path, action="append", required=True, help="marked texts to train on")
    first.add_argument("--held", type=Path, required=True, help="marked texts to measure perplexity on")
    first.add_argument("--out", type=Path, required=True)
    first.set_defaults(run=_prepare)
    part = commands.add_parser("receive", help="keep a part in the store; the last one unpacks them all")
    part.add_argument("part", type=Path)
    part.set_defaults(run=_receive)
    steps = commands.add_parser("run", help="carry out steps, in the order named")
    steps.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    steps.add_argument("--back", type=Path, help="the folder whose files come back")
    steps.set_defaults(run=_run)
    writer = commands.add_parser("write", help="write a share of the questions; `run questions` starts these")
    writer.add_argument("--share", required=True, help="which of how many, as 0/4")
    writer.set_defaults(run=_write)
    for command in (part, steps, writer):
        command.add_argument(
            "--store", type=Path, required=True, help="a folder outside of the program's tree"
        )
    for command in (steps, writer):
        command.add_argument("--size", choices=SIZES, default="full", help="smoke: ten steps; tiny: on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
