"""A small base on Peru, which the examples of every request and response are about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from colmlm.api.schema.schemas import SelectorParts
from colmlm.kb.answers.records import SaidFact
from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.facts.records import FactRecord, Source
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.log import witness
from colmlm.kb.log.records import ChangeRecord


def as_json(example: Any) -> Any:
    """Encodes a value as the JSON that a client receives."""
    return msgspec.json.decode(msgspec.json.encode(example))


AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
QUESTION, PROMPT = "What is the capital of Peru?", "The capital of Peru is"
TEXT = "The capital of Peru is Lima."
HASH, BEFORE = "5f" * 32, "a7" * 32
WHY = "request 12"
SAID = SaidFact(1, 1, "Lima")
SOURCE = Source(3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", 23, 27)
FACT = FactRecord(12, "Lima", 1, QUESTION, "Lima", SOURCE, 1, None)
CHANGE = ChangeRecord(41, "delete", (12,), 1, "ana", WHY, AT, BEFORE, HASH)
SPLICE = TracedSplice(0, 23, 27, "hit", "Lima", 12, 1, 0.93, SOURCE, True, "Lima")
TRACE = OutputTrace(7, PROMPT, " Lima.", "c0ffee", "auto", 40, AT, (SPLICE,))
HEAD = witness.Head("9b1d", 41, HASH, AT.isoformat(), "0123456789abcdef")
JOB = JobRecord(
    8, "fsck", {}, "ana", "4f1c", "running", 40, 100, "facts", None, None, 1, None, AT, AT, None, AT
)
SIGNED = {"format": witness.FORMAT, **as_json(HEAD), "signature": "bWFkZSB1cA=="}
SELECTOR = SelectorParts(text="Lima", corpus="atlas")
