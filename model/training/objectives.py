"""The objectives of unlearning, by name."""

from __future__ import annotations

NPO, GRAD_ASCENT = "npo", "grad-ascent"
OBJECTIVES = (NPO, GRAD_ASCENT)
