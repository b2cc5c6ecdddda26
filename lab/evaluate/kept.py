"""Reads and continues the files in which evaluations keep their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from colmlm.cli.output import counting, note
from colmlm.kb.errors import describe_misread
from colmlm.model.evaluate.run_log import EvaluationFileError, Row, RunLog

T = TypeVar("T")


def open_log(path: Path | None, run: Row) -> RunLog:
    """Open the log of this run with the rows it has. Raises `BadParameter` where the file is of another run."""
    try:
        return RunLog.open(path, run)
    except EvaluationFileError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--out") from error


def fill_log(
    log: RunLog,
    wanted: Mapping[str, T],
    rows_of: Callable[[Sequence[T]], Iterable[Row]],
    *,
    batch: int,
    doing: str,
    what: str,
) -> None:
    """Make the rows that the log lacks of what is wanted, by name, so many at once, and keep them as made."""
    waiting = [name for name in wanted if name not in log.rows]
    if len(waiting) < len(wanted):
        note(f"{len(wanted) - len(waiting)} {what} are there already.")
    with counting(doing, len(waiting)) as done:
        for start in range(0, len(waiting), batch):
            names = waiting[start : start + batch]
            rows = rows_of([wanted[name] for name in names])
            log.add(dict(zip(names, rows, strict=True)))
            done(len(names))


def read_kept(file: Path, one_of: Callable[[Row], T], command: str) -> tuple[Row, list[T]]:
    """Read what a command ran and a record of each row that it kept.

    Raises `BadParameter` where the file is not of that command.
    """
    lines = file.read_text(encoding="utf-8").split("\n")
    try:
        run = json.loads(lines[0])["run"]
        rows = [json.loads(line) for line in lines[1:] if line]
        return run, [one_of(row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise typer.BadParameter(
            f"{file} cannot be read ({describe_misread(error)}); name a file that `evaluate {command} --out` wrote.",
            param_hint="FILE",
        ) from error


def name_of_row(row: Row) -> str:
    """Name a row by its number and a digest of its output, so that another output has another name."""
    return f"{row['row']}:{sha256(row['output'].encode()).hexdigest()[:12]}"


# Defines the options that several evaluations share.

FromTheFirst = Annotated[
    int | None, typer.Option("--limit", min=1, help="How many, from the first. Default: all.")
]
AnswerTokens = Annotated[
    int, typer.Option("--max-tokens", min=1, help="Content tokens of an answer; spliced ones are free.")
]
AnsweredTogether = Annotated[int, typer.Option("--batch", min=1, help="Questions answered together.")]
