"""What a gate lets pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from colmlm.kb.keys.records import RECALL


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """The limits that a keyset must keep. At most `sample` questions, and as many prefixes, are encoded.

    With it at least `min_right` of the set `questions`, where one is named, must be answered right, and at most
    `max_wrong` wrongly; one of these must be given.
    """

    sample: int = 500
    min_recall_at_1: float = RECALL
    min_recall_at_10: float = 0.95
    max_facts_lost: int = 0
    max_question_loss: float = 0.02
    min_agreement: float = 0.7
    min_recall_kept: float = 0.9
    questions: str | None = None
    min_right: float | None = None
    max_wrong: float | None = None

    @property
    def share_right(self) -> float:
        return 0.0 if self.min_right is None else self.min_right

    @property
    def share_wrong(self) -> float:
        return 1.0 if self.max_wrong is None else self.max_wrong


class GateOptions(TypedDict, total=False):
    """What a keyset is measured with: the models of both keysets (None: where they were last), and a file of plots."""

    plot: Path | None
    checkpoint: Path | None
    active_checkpoint: Path | None
