"""`colmlm-lab evaluate choices`: measures multiple choice by likelihood, as lm_eval does, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import FromTheFirst, fill_log, open_log
from colmlm.lab.methods.methods import Method, answerer
from colmlm.model.evaluate.continuations import (
    ITEMS_TOGETHER,
    Item,
    Likely,
    ScoredChoices,
    WithLookups,
    choose,
    with_shots,
)
from colmlm.model.evaluate.run_log import Row, RunLog, bootstrap
from colmlm.model.lm.checkpoint import Checkpoint

EXAMPLES = examples(
    "colmlm-lab evaluate choices items.jsonl --limit 100",
    "colmlm-lab evaluate choices csqa.jsonl --shots csqa.shots.jsonl --seed 0 --seed 1 --seed 2 --json",
    "colmlm-lab evaluate choices items.jsonl --mode auto --out scored.jsonl",
)
SHOTS = 5


class ChoicesMode(StrEnum):
    off = "off"
    auto = "auto"


class _Line(msgspec.Struct, frozen=True):
    context: Annotated[str, msgspec.Meta(min_length=1)]
    choices: Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=2)]
    answer: Annotated[int, msgspec.Meta(ge=0)]


def choices(
    items: Annotated[
        Path,
        typer.Argument(
            metavar="ITEMS",
            exists=True,
            dir_okay=False,
            help="JSON Lines of context, choices and answer (from 0).",
        ),
    ],
    limit: FromTheFirst = None,
    shots: Annotated[
        Path | None,
        typer.Option(
            "--shots", exists=True, dir_okay=False, help="Items to draw solved exemplars from. Default: none."
        ),
    ] = None,
    num_shots: Annotated[
        int, typer.Option("--num-shots", min=1, help="With --shots: how many each.")
    ] = SHOTS,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="Draws the exemplars; one run each. Default: 0.")
    ] = None,
    mode: Annotated[
        ChoicesMode, typer.Option("--mode", help="Whether the model may look up while a choice is scored.")
    ] = ChoicesMode.off,
    threshold: Threshold = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", dir_okay=False, help="Keep each score here, as JSON Lines, and go on from there."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Count the items whose right choice is the likeliest after the context.

    It counts as lm_eval does: `acc` by the log-probability of a choice, `acc_norm` by that divided by its characters.
    With several seeds it gives the mean and how far they differ. Intervals are 95 %, over the items.
    """
    asked = read_items(items)[:limit]
    if not asked:
        raise typer.BadParameter(f"{items} has no item; name a file with some.", param_hint="ITEMS")
    exemplars = _exemplars(shots, num_shots)
    seeds, count = list(dict.fromkeys(seed or [0])) if shots else [0], num_shots if shots else 0
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        loaded, likely, run = _scorer(runtime, mode, threshold)
        run |= {"shots": count, "shots_sha256": _digest(shots), "items_sha256": _digest(items)}
        log = open_log(out, run)
        for one in seeds:
            _score(loaded, list(with_shots(asked, exemplars, count, one)), likely, log, one)
    by_seed = {one: [ScoredChoices(**log.rows[_name(one, n)]) for n in range(len(asked))] for one in seeds}
    report = {"checkpoint": loaded.config.name, "items": len(asked), **run, **_summary(by_seed)}
    print_report(report)


def _exemplars(shots: Path | None, at_least: int) -> list[Item]:
    found = read_items(shots, "--shots") if shots else []
    if shots and len(found) < at_least:
        raise typer.BadParameter(
            f"it has {len(found)} items, and --num-shots is {at_least}; lower that, or name another file.",
            param_hint="--shots",
        )
    return found


def _scorer(
    runtime: Runtime, mode: ChoicesMode, threshold: float | None
) -> tuple[Checkpoint, Likely | None, dict[str, Any]]:
    """Give the checkpoint, its scorer with lookups (None: without), and what identifies both to a later run."""
    if mode is ChoicesMode.off:
        loaded = runtime.checkpoint
        return loaded, None, {"mode": "off", "checkpoint_id": loaded.checkpoint_id}
    runtime.open()
    who = answerer(runtime, Method.co_lmlm, runtime.user.checkpoint, mode, ())
    assert who.decoder.lookup is not None
    likely = WithLookups(who.decoder.checkpoint, who.decoder.lookup, threshold=threshold)
    return (
        who.decoder.checkpoint,
        likely,
        who.run | {"threshold": threshold, "seq": runtime.kb.log.head_seq()},
    )


def _score(
    checkpoint: Checkpoint, asked: Sequence[Item], likely: Likely | None, log: RunLog, seed: int
) -> None:
    """Score the items that the log lacks."""

    def score_items(some: Sequence[Item]) -> list[Row]:
        try:
            return [asdict(one) for one in choose(checkpoint, some, likely)]
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", param_hint="ITEMS") from error

    wanted = {_name(seed, number): item for number, item in enumerate(asked)}
    fill_log(log, wanted, score_items, batch=ITEMS_TOGETHER, doing="Scoring", what="scores")


def _name(seed: int, number: int) -> str:
    return f"{seed}:{number}"


def _digest(file: Path | None) -> str | None:
    return None if file is None else sha256(file.read_bytes()).hexdigest()


def _summary(by_seed: dict[int, list[ScoredChoices]]) -> dict[str, Any]:
    right = {
        "acc": np.array([[one.is_right for one in chosen] for chosen in by_seed.values()]),
        "acc_norm": np.array([[one.is_right_by_character for one in chosen] for chosen in by_seed.values()]),
    }
    items = next(iter(right.values())).shape[1]

    def means(draw: Any) -> dict[str, float]:
        drawn = draw(items)
        return {name: float(right_SN[:, drawn].mean()) for name, right_SN in right.items()}

    each = {name: [float(row.mean()) for row in right_SN] for name, right_SN in right.items()}
    return {
        **{name: fmean(shares) for name, shares in each.items()},
        "intervals": bootstrap(means),
        "by_seed": [
            {"seed": seed, **{name: shares[n] for name, shares in each.items()}}
            for n, seed in enumerate(by_seed)
        ],
        "deviation": {name: stdev(shares) if shares[1:] else None for name, shares in each.items()},
    }


def read_items(file: Path, named: str = "ITEMS") -> list[Item]:
    """Read the items of a file. Raises `BadParameter` where a line is none."""
    read = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            found = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise typer.BadParameter(
                f"line {number} is no item ({error}); write context, choices and answer as JSON.",
                param_hint=named,
            ) from error
        if found.answer >= len(found.choices):
            raise typer.BadParameter(
                f"line {number} has no choice {found.answer}; count the choices from 0.", param_hint=named
            )
        read.append(Item(found.context, tuple(found.choices), found.answer))
    return read
