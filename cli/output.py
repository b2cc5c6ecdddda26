"""What commands print: one JSON object or a table on stdout, everything else on stderr.

All of it goes through here, since texts come from corpora and models: what does not show is written out, so that none
of it steers a terminal or reads otherwise than it is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colmlm.kb.nouns.telling import Advance, Telling
from colmlm.kb.texts.characters import json_visible, visible

_WIDE = 10_000  # into a file or a pipe a row is one line, however long


def print_json(value: object) -> None:
    """Print one JSON object on one line of stdout."""
    sys.stdout.write(json_visible(json.dumps(plain(value), ensure_ascii=False, allow_nan=False)) + "\n")


def plain(value: object) -> Any:
    """Dataclasses and times as JSON has them; times in UTC."""
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
    """A line of a report meant for people; nothing in it is markup, or steers the terminal."""
    _console().print(Text(visible(line)), soft_wrap=True)


def note(line: str) -> None:
    """A remark beside the report, on stderr."""
    sys.stderr.write(visible(line) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table that fits the terminal, or has one line a row where stdout is none."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else visible(str(cell).replace("\n", " "))) for cell in row))
    _console().print(table)


def _console() -> Console:
    on_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if on_terminal else _WIDE, highlight=False)


@contextmanager
def progress(description: str) -> Iterator[Advance]:
    """A bar on stderr while the block runs; call what it gives with (done, total or None).

    Where stderr is no terminal, a line now and then: work of minutes should not look like a hang in a log.
    """
    if not sys.stderr.isatty():
        yield _Lines(description)
        return
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
    """A bar that is told how many more are done."""
    finished = 0
    with progress(description) as update:
        update(0, total)

        def done(more: int) -> None:
            nonlocal finished
            finished += more
            update(finished, total)

        yield done


@dataclass(slots=True)
class _Lines:
    """Says how far the work is at most every `seconds`; short work passes in silence."""

    description: str
    seconds: float = 10.0
    last: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int | None) -> None:
        if time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            note(f"{self.description}: {done}" + (f" of {total}" if total is not None else ""))


def is_attended() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin.isatty()


def shorten(text: str | None, width: int = 60) -> str:
    """The start of a text, on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
