"""What a gate lets pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """The limits that a keyset must keep. At most `sample` questions, and as many prefixes, are encoded."""

    sample: int = 500
    min_recall_at_1: float = 0.98
    min_recall_at_10: float = 0.95
    max_facts_lost: int = 0
    max_question_loss: float = 0.02
    min_agreement: float = 0.7
