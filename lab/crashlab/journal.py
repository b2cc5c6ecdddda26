"""The journal that a child writes until it is killed: which steps it began, and which were acknowledged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colmlm.lab.crashlab.world import WorkloadStep


@dataclass(frozen=True, slots=True)
class StepJournal:
    """A child's journal.

    `in_doubt` is the step that was begun and not acknowledged: it must be done wholly or not at all. `purged` tells the
    level that a purge claimed, and what it left.
    """

    acknowledged: tuple[WorkloadStep, ...] = ()
    in_doubt: WorkloadStep | None = None
    killed: str | None = None
    failed: str | None = None
    stopped: str | None = None
    purged: dict[str, Any] | None = None
    wrong: tuple[dict[str, Any], ...] = field(default=())


def read_journal(file: Path, steps: list[WorkloadStep]) -> StepJournal:
    """Reads the journal of a child that was given `steps`. A last line that was cut short is ignored."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    records = [json.loads(line) for line in lines]
    begun = [record["begin"] for record in records if "begin" in record]
    done = [record["done"] for record in records if "done" in record]
    once = ("killed", "failed", "stopped", "purged")
    said = {name: value for record in records for name, value in record.items() if name in once}
    return StepJournal(
        acknowledged=tuple(steps[number] for number in done),
        in_doubt=steps[begun[-1]] if len(begun) > len(done) else None,
        wrong=tuple(record for record in records if "wrong" in record),
        **said,
    )


def has_begun(file: Path, number: int) -> bool:
    """Tells whether the child has begun this step."""
    return file.exists() and f'{{"begin": {number}}}' in file.read_text()
