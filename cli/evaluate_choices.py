"""`colmlm evaluate choices`: multiple choice by likelihood, in this process, for a harness over HTTP to agree with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.options import AsJson, CheckpointPath, examples
from cli.output import print_json, progress, say
from cli.runtime import Runtime
from model.evaluate.choices import ITEMS_TOGETHER, Chosen, Item, choose

EXAMPLES = examples(
    "colmlm evaluate choices items.jsonl --limit 100",
    "colmlm evaluate choices items.jsonl --checkpoint runs/mine --json",
)


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
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="How many, from the first. Default: all.")
    ] = None,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Count the items whose right choice is the likeliest after the context, without lookups.

    As lm_eval counts: `acc` by the log-probability of a choice, `acc_norm` by that divided by its characters.
    """
    asked = read_items(items)[:limit]
    if not asked:
        raise typer.BadParameter("it has no item.", param_hint="ITEMS")
    chosen: list[Chosen] = []
    with Runtime.from_environment(checkpoint=checkpoint) as runtime, progress("Scoring") as advance:
        for start in range(0, len(asked), ITEMS_TOGETHER):
            try:
                chosen += choose(runtime.checkpoint, asked[start : start + ITEMS_TOGETHER])
            except ValueError as error:
                raise typer.BadParameter(f"{error}.", param_hint="ITEMS") from error
            advance(len(chosen), len(asked))
        name = runtime.checkpoint.config.name
    report = {
        "checkpoint": name,
        "items": len(chosen),
        "acc": sum(one.is_right for one in chosen) / len(chosen),
        "acc_norm": sum(one.is_right_by_character for one in chosen) / len(chosen),
    }
    if as_json:
        print_json(report)
    else:
        say(f"{name}: {len(chosen)} items, acc {report['acc']:.4f}, acc_norm {report['acc_norm']:.4f}")


def read_items(file: Path) -> list[Item]:
    """The items of a file. Raises `BadParameter` where a line is none."""
    read = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            found = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise typer.BadParameter(f"line {number}: {error}.", param_hint="ITEMS") from error
        if found.answer >= len(found.choices):
            raise typer.BadParameter(f"line {number}: no choice {found.answer}.", param_hint="ITEMS")
        read.append(Item(found.context, tuple(found.choices), found.answer))
    return read
