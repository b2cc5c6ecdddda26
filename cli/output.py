"""Prints what commands report: one JSON object or a table on stdout, everything else on stderr.

All output goes through here, since texts come from corpora and models: invisible characters are written as escapes, so
that no text can control a terminal or look like another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any

from colmlm.kb.errors import count_of as count_of
from colmlm.kb.progress import Advance, Telling
from colmlm.kb.texts.characters import json_visible, visible_text


def print_json(value: object) -> None:
    """Print one JSON object on one line of stdout."""
    sys.stdout.write(json_visible(json.dumps(plain(value), ensure_ascii=False, allow_nan=False)) + "\n")


def plain(value: object) -> Any:
    """Convert dataclasses, tuples and times to values that JSON has; times become UTC."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value


def say(line: str = "") -> None:
    """Print a line of a report for people."""
    sys.stdout.write(visible_text(line) + "\n")


def say_values(values: Mapping[str, object], margin: str = "  ") -> None:
    """Print names with their values for people, one a line; nested values are indented below their name."""
    for name, value in values.items():
        said = f"{margin}{name.replace('_', ' ')}:"
        if isinstance(value, Mapping) and value:
            say(said)
            say_values(value, f"{margin}  ")
        else:
            say(f"{said} {shorten(format_value(value), 200)}")


def format_value(value: object) -> str:
    """Write a value of JSON for people: "yes", "–" for nothing, "steps 3, loss 0.5", "a, b"."""
    if value is None or (not value and isinstance(value, str | list | tuple | Mapping)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_nested(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_nested, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_nested(value: object) -> str:
    return (
        f"({format_value(value)})"
        if value and isinstance(value, list | tuple | Mapping)
        else format_value(value)
    )


def note(line: str) -> None:
    """Print a remark on stderr."""
    sys.stderr.write(visible_text(line) + "\n")


SHORT_CELL = 12  # columns of a terminal; the cells of a table that need no more stay on one line


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], none: str = "") -> None:
    """Print a table that fits the terminal; where stdout is no terminal, each row is one line.

    Without a row it prints the sentence `none` in place of a header above nothing.
    """
    cells = [
        ["" if cell is None else visible_text(str(cell).replace("\n", " ")) for cell in row] for row in rows
    ]
    if not cells:
        if none:
            say(none)
    elif sys.stdout.isatty():
        _draw(columns, cells)
    else:
        _print_lines([columns, *cells])


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        # Where the terminal is narrow, long cells go on in the next line, and none is cut.
        widest = max(map(cell_len, (name, *(row[number] for row in rows))))
        is_short = widest <= SHORT_CELL
        table.add_column(
            name, no_wrap=is_short, overflow="fold", min_width=widest if is_short else cell_len(name)
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def _print_lines(rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


@contextmanager
def progress(description: str) -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs; call the given function with (done, total or None).

    Where stderr is no terminal, it prints a line now and then, so that long work does not look like a hang in a log.
    """
    if not sys.stderr.isatty():
        yield _Lines(description)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


ON_STDERR = Telling(note, progress)


@contextmanager
def counting(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; call the given function with the number of further pieces that are done."""
    finished = 0
    with progress(description) as update:
        update(0, total)

        def add_done(more: int) -> None:
            nonlocal finished
            finished += more
            update(finished, total)

        yield add_done


@dataclass(slots=True)
class _Lines:
    """Prints the progress of work at most every `seconds`, with the time that is left. Short work prints nothing."""

    description: str
    seconds: float = 10.0
    last: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if not done:
            self.began = now
        if now - self.last >= self.seconds:
            self.last = now
            left = format_duration((now - self.began) / done * (total - done)) if done and total else None
            note(
                f"{self.description}: {done}"
                + (f" of {total}" if total is not None else "")
                + (f", {left} left" if left and done != total else "")
            )


def format_duration(seconds: float) -> str:
    """Write a number of seconds as a rough duration: "about 5 minutes"."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} seconds"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.0f} hours"


def counted_facts(total: int, is_exact: bool) -> str:
    """Write the number of facts: "12 facts", "More than 2,000 facts"."""
    return f"{'' if is_exact else 'More than '}{count_of(total, 'fact')}"


def these_facts(number: int) -> str:
    """Name so many facts in a question: "this fact", "these 12 facts"."""
    return "this fact" if number == 1 else f"these {count_of(number, 'fact')}"


def some_ids(ids: Sequence[int], most: int = 20) -> str:
    """List ids, separated by commas; of more than `most` only the first."""
    return f"{', '.join(map(str, ids[:most]))}{' ...' if len(ids) > most else ''}"


def shorten(text: str | None, width: int = 60) -> str:
    """Put a text on one line, cut to `width` characters, of which the last is then an ellipsis."""
    line = " ".join((text or "").split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
