"""`colmlm-lab evaluate paper`: the paper row by row, and its numbers beside this program's.

The rows and numbers are data: rows.toml and settings.toml. The page about the paper is drawn from them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.options import examples
from colmlm.kb.lookup.specs import coded_spec, paper_spec, parse_spec
from colmlm.lab.bench.machine import print_report

EXAMPLES = examples(
    "colmlm-lab evaluate paper --rows --json",
    "colmlm-lab evaluate paper --settings",
)
WIDTH = 960  # of the keys of the paper's 360M models


class RowState(StrEnum):
    """The state of a claim of the paper here."""

    shown = "shown"
    refuted = "refuted at our size"
    out_of_reach = "cannot be run here"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """A claim or setting of the paper, with the figures of both. `evidence` are files of the repository."""

    row: int
    part: str
    item: str
    state: RowState
    ours: str
    paper: str
    why: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperDeviation:
    """A difference from the paper: mended or admitted, and a phrase of the file in which a reader meets it."""

    name: str
    item: str
    state: str
    now: str
    where: str
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperSetting:
    """A number of the paper and this program's. `place` is a piece of the paper's text; `why` admits a difference."""

    setting: str
    place: str
    paper: float
    ours: float
    why: str | None = None

    @property
    def state(self) -> str:
        """Give "equal", "admitted", or "unequal" where nobody says why."""
        return "equal" if self.ours == self.paper else "admitted" if self.why else "unequal"


def paper(
    rows: Annotated[bool, typer.Option("--rows", help="The 65 rows with their states and figures.")] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="The paper's numbers beside those of this program.")
    ] = False,
) -> None:
    """Say what this program shows of the paper, row by row. Without an option it counts the states.

    A row is shown, refuted at our size with the reason, or cannot be run here with what it takes. Nothing is measured:
    figures are those of the notebook's entries that each row names.
    """
    found_rows, found_settings = list_rows(), list_settings()
    report: dict[str, Any] = {}
    if rows:
        report["rows"] = [asdict(one) for one in found_rows]
    if settings:
        report["settings"] = [
            asdict(one) | {"state": one.state, "ours": _whole_or_float(one.ours)} for one in found_settings
        ]
    if not report:
        report["rows"] = dict(Counter(str(one.state) for one in found_rows))
        report["settings"] = dict(Counter(one.state for one in found_settings))
        report["deviations"] = dict(Counter(one.state for one in list_deviations()))
    print_report(report)


def _whole_or_float(number: float) -> float | str:
    """Give a whole number as an int, so that it is printed as the paper prints it, and infinity as a text."""
    if not isfinite(number):
        return str(number)
    return int(number) if number == int(number) else number


def list_rows() -> list[PaperRow]:
    """List the rows in order."""
    return [
        PaperRow(**one | {"state": RowState(one["state"]), "evidence": tuple(one["evidence"])})
        for one in _table("rows")["row"]
    ]


def list_deviations() -> list[PaperDeviation]:
    """List the deviations in order."""
    return [PaperDeviation(**one) for one in _table("rows")["deviation"]]


def list_settings() -> list[PaperSetting]:
    """List the paper's numbers, each with the value that this program has now."""
    return [_setting_of(dict(one)) for one in _table("settings")["setting"]]


def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _setting_of(record: dict[str, Any]) -> PaperSetting:
    reads = record.pop("reads", None)
    return PaperSetting(**record | ({"ours": read_number(reads)} if reads else {}))


def read_number(reads: str) -> float:
    """Read a number from the program: ``PRESET:FIELD``, ``MODULE:NAME``, or ``MODULE:COMMAND(OPTION)``."""
    source, _, name = reads.partition(":")
    if source in _COMPUTED:
        return _COMPUTED[source](name)
    if source.startswith("colmlm."):
        name, _, option = name.removesuffix(")").partition("(")
        found = getattr(import_module(source), name)
        return float(signature(found).parameters[option].default if option else found)
    config, (field, _, less) = _preset(source), name.partition("-")
    return float(getattr(config, field) - (getattr(config, less) if less else 0))


def _preset(name: str) -> Any:
    from colmlm.model.annotate.config import QUESTION_PRESETS, SPAN_PRESETS
    from colmlm.model.training import config as training
    from colmlm.model.training.unlearning import unlearning_config

    if name == training.NPO:
        return unlearning_config(name, {})
    tuners = SPAN_PRESETS | QUESTION_PRESETS
    return tuners[name]() if name in tuners else training.preset(name)


def _number_of_lists(num_keys: str) -> float:
    spec = parse_spec(paper_spec(int(num_keys), WIDTH))
    return spec.lists if spec else 0


def _code_bytes(kind: str) -> float:
    spec = coded_spec(1, WIDTH, WIDTH // int(kind.removeprefix("pq")))
    return float(spec.rpartition("PQ")[2])


def _mix(preset: str) -> float:
    ours, other = _preset(preset).cooldown_mix
    return float(ours / other)


def _epochs(preset: str) -> float:
    config = _preset(preset)
    return float(config.steps * config.batch_documents / 4_000)


_COMPUTED = {"lists": _number_of_lists, "code_bytes": _code_bytes, "mix": _mix, "epochs": _epochs}


# The page about the paper, between two marks of docs/explanation/paper.md.

BEGINS, ENDS = "<!-- drawn by lab/paper/rows.py -->", "<!-- drawn until here -->"
TO_THE_ROOT = "../../"


def redraw(page: str) -> str:
    """Give the page with its tables drawn again."""
    before, _, rest = page.partition(BEGINS)
    return "\n\n".join((before + BEGINS, "\n".join(_drawn_lines()), ENDS + rest.partition(ENDS)[2]))


def _drawn_lines() -> Iterator[str]:
    rows, settings = list_rows(), list_settings()
    counts = Counter(one.state for one in rows)
    yield f"Of {len(rows)} rows {', '.join(f'{n} are *{state}*' for state, n in counts.most_common())}."
    for part in dict.fromkeys(one.part for one in rows):
        yield f"\n### {part}\n\n| | claim or setting | state | here | the paper | why |\n|---|---|---|---|---|---|"
        for one in rows:
            if one.part == part:
                links = " ".join(f"[[{n}]]({TO_THE_ROOT}{file})" for n, file in enumerate(one.evidence, 1))
                yield f"| {one.row} | {one.item} | *{one.state}* | {one.ours} {links} | {one.paper} | {one.why} |"
    yield "\n## Deviations\n\n| | the program differed | state | now |\n|---|---|---|---|"
    for deviation in list_deviations():
        yield f"| {deviation.name} | {deviation.item} | {deviation.state} | {deviation.now} |"
    unequal = [one for one in settings if one.state != "equal"]
    equal = len(settings) - len(unequal)
    yield f"\n## Numbers\n\nOf {len(settings)} numbers of the paper {equal} are equal here, in a preset or in the code."
    yield "The models behind our figures had others: adapters no weight decay, annotators a final rate of 1e-4."
    yield "Numbers that differ:"
    yield "\n| number | the paper | here | why |\n|---|---|---|---|"
    for number in unequal:
        yield f"| {number.setting} | {number.paper:,g} | {number.ours:,g} | {number.why} |"
