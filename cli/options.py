"""Options and arguments that several commands share, with the checks of their values and of who can be asked."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from colmlm.kb.texts.characters import parse_moment

P = ParamSpec("P")
T = TypeVar("T")

MAX_BIGINT = 2**63 - 1


@dataclass(slots=True)
class ProgramOptions:
    """The options of the whole program, which may stand before the command or after it; and the command's words."""

    as_json: bool = False
    server: str | None = None
    token_file: Path | None = None
    command: tuple[str, ...] = ()


_IN_USE: ContextVar[ProgramOptions | None] = ContextVar("options of the program", default=None)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@contextmanager
def using_options(given: ProgramOptions) -> Iterator[None]:
    """Let `program_options` return these options while the block runs."""
    before = _IN_USE.set(given)
    try:
        yield
    finally:
        _IN_USE.reset(before)


def program_options() -> ProgramOptions:
    """Give the options of the program with which the command runs."""
    return _IN_USE.get() or ProgramOptions()


def wants_json() -> bool:
    """Tell whether the command is to print one JSON object."""
    return program_options().as_json


def without_json(command: Callable[P, T]) -> Callable[P, T]:
    """Mark a command that refuses --json, since it prints no report or has a form of its own."""
    command.takes_json = False  # type: ignore[attr-defined]  # what Command reads
    return command


def examples(*lines: str) -> str:
    """Make the end of a command's help: examples, as they would be typed."""
    return "\n\n".join(("Examples:", *(f"  {line}" for line in lines)))


class AnswerMode(StrEnum):
    read = "read"
    paper = "paper"


class RankedBy(StrEnum):
    key = "key"
    words = "words"
    reader = "reader"


def no_nan(value: float | None) -> float | None:
    """Give a finite number or None as it is. Raises `BadParameter` for nan and inf."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number, such as 0.5.")
    return value


def above_zero(value: float) -> float:
    """Give a number above zero as it is. Raises `BadParameter` for others, as the bounds of options are inclusive."""
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value} is not above 0; give a larger number.")
    return value


def parse_span(text: str) -> timedelta:
    """Read a span of time such as 90d, 12h or 30m; 0 is none."""
    found = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    if found is None and text != "0":
        raise typer.BadParameter(f"{text!r} is no span of time, such as 90d, 12h or 30m.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta(0)


def parse_time(said: str) -> datetime:
    """Read a date, an ISO 8601 time, an age such as 1d, or "yesterday"; a time without a zone is UTC."""
    now = datetime.now(UTC)
    if said == "yesterday":
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    try:
        return now - parse_span(said) if said.endswith(tuple(_UNITS)) else parse_moment(said)
    except ValueError as error:
        raise typer.BadParameter(
            f"{said!r} is no time, such as 2026-01-31, 2026-01-31T12:00+01:00, 1d or yesterday."
        ) from error


def parse_place(said: str | int) -> int:
    """Read a place in a ranked list, "4.12" or as in JSON, as one number: rank times `PLACE`, plus the id."""
    from colmlm.kb.facts.records import PLACE

    found = re.fullmatch(r"(?:([0-9]{1,3})\.)?([0-9]{1,19})", str(said))
    if found is None or (place := int(found[1] or 0) * PLACE + int(found[2])) > MAX_BIGINT:
        raise typer.BadParameter(f"{said!r} is no place, such as 4.12.")
    return place


def format_place(place: int) -> str:
    """Write a place in a ranked list: the rank and the id, "4.12"; only the id where there is no rank."""
    from colmlm.kb.facts.records import PLACE

    rank, last = divmod(place, PLACE)
    return f"{rank}.{last}" if rank else str(last)


def principal_name(shown: str | None) -> str | None:
    """Remove the kind from a principal as a table shows it: "token desk" becomes "desk", "local ann" becomes "ann"."""
    return shown and shown.removeprefix("token ").removeprefix("local ")


def some_text(value: str | None) -> str | None:
    """Refuse a text that is blank or was not UTF-8 on the command line: neither can be encoded or stored."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is blank; give a text.")
    if value is not None and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise typer.BadParameter("it is not UTF-8; write it in that encoding.")
    return value


def some_texts(values: list[str] | None) -> list[str] | None:
    """Check each value as `some_text` does."""
    for value in values or ():
        some_text(value)
    return values


def each_once(fact_ids: Sequence[int]) -> list[int]:
    """Remove repeated ids, keeping the order."""
    return list(dict.fromkeys(fact_ids))


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Server = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="Work with the knowledge base there. Default: COLMLM_SERVER, or here."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        exists=True,
        dir_okay=False,
        help="Holds your token's secret. Default: COLMLM_TOKEN_FILE.",
    ),
]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor", callback=some_text, help="For whom this is done. Default: COLMLM_ACTOR or your user name."
    ),
]
Reason = Annotated[
    str, typer.Option("--reason", callback=some_text, help="Why; it is kept with the change, for auditors.")
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Also where another fact answers the question otherwise.")
]
AllowErased = Annotated[
    bool, typer.Option("--allow-erased", help="Bring back, as new facts, what was erased before.")
]
AllowPrivate = Annotated[
    bool,
    typer.Option("--allow-private", help="Fetch from hosts of private networks and of this machine, too."),
]
FactId = Annotated[int, typer.Argument(metavar="FACT_ID", min=1, help="The fact's id.")]
FactIds = Annotated[list[int], typer.Argument(metavar="FACT_ID...", min=1, help="Ids of facts.")]
Place = Annotated[
    int,
    typer.Option("--after", parser=parse_place, metavar="PLACE", help="Go on after this place."),
]
After = Annotated[int, typer.Option("--after", min=0, max=MAX_BIGINT, help="Go on after this id.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many to show.")]
CheckpointPath = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        exists=True,
        file_okay=False,
        help="A checkpoint directory. Default: COLMLM_CHECKPOINT, else the active keyset's, else the released one.",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        min=-1,
        max=1,
        callback=no_nan,
        help="Least score of a hit. Default: the keyset's own.",
    ),
]
MinSeq = Annotated[
    int | None,
    typer.Option("--min-seq", min=0, max=MAX_BIGINT, help="Wait until the index has applied this change."),
]
AsOf = Annotated[
    int | None,
    typer.Option("--as-of", min=0, max=MAX_BIGINT, help="Answer as the knowledge base stood at this change."),
]
KeysetId = Annotated[
    int, typer.Argument(metavar="KEYSET_ID", min=1, max=MAX_BIGINT, help="See `colmlm keysets list`.")
]
AcceptedOnly = Annotated[
    bool, typer.Option("--accepted-only", help="Find no fact that is only proposed (colmlm review).")
]
CorporaAsked = Annotated[
    list[str] | None,
    typer.Option("--corpus", callback=some_texts, help="Only documents of this corpus; may be repeated."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say what answered: a server, or this process.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and stop.")]
WhyUnlessDry = Annotated[
    str | None, typer.Option("--reason", callback=some_text, help="Why; required unless --dry-run.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write here; default: stdout.")
]
NewDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="A new or empty directory.")
]
MaxMinutes = Annotated[
    float | None,
    typer.Option("--max-minutes", callback=lambda v: v if v is None else above_zero(v), help="Most minutes."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def is_attended() -> bool:
    """Tell whether stdin is a terminal, so that somebody can be asked."""
    return sys.stdin.isatty()


def require_somebody(answered: bool, what: str) -> None:
    """Raise `BadParameter` if --yes was not given and nobody can be asked; `what` completes "pass --yes to"."""
    if not answered and (wants_json() or not is_attended()):
        cause = "with --json nobody is asked" if wants_json() else "there is nobody to ask"
        raise typer.BadParameter(f"{cause}; pass --yes to {what}.", param_hint="--yes")


def require_with(option: str, **given: object) -> None:
    """Raise `BadParameter` if any `given` option is set, since these have an effect only together with `option`."""
    if names := given_options(**given):
        counts, them = ("they count", "them") if "," in names else ("it counts", "it")
        cause = f"{counts} beside {option} alone; pass {option} too, or leave {them} out."
        raise typer.BadParameter(cause, param_hint=names)


def given_options(**given: object) -> str:
    """List the options that were given, as they are typed, by the names of their parameters: "--corpus, --dry-run"."""
    ours = [name for name, value in given.items() if value is not None and value is not False and value != []]
    return ", ".join(f"--{name.replace('_', '-')}" for name in ours)


def require_empty(target: Path) -> None:
    """Raise `BadParameter` if a directory that a command would write is not empty."""
    if target.is_dir() and any(target.iterdir()):
        raise typer.BadParameter(f"{target} is not empty; name a new directory.", param_hint="DIR")


def require_reason(reason: str | None, *, unless: bool = False) -> None:
    """Raise `BadParameter` if no reason was given, `unless` the command changes nothing."""
    if reason is None and not unless:
        raise typer.BadParameter("say why, as in --reason 'asked by its author'.", param_hint="--reason")
