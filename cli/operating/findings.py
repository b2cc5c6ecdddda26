"""Findings of `colmlm doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of one check: `state` is ok, warning or failed; `remedy` says what to do where it is not ok."""

    check: str
    state: str
    found: str
    remedy: str | None = None


Findings = Iterator[CheckResult]
