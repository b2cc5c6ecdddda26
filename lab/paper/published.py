"""The paper's own figures, each with its model, to compare with ours."""

from __future__ import annotations

from dataclasses import dataclass

SMALL, LARGE = "135M", "360M-FW"  # trained on 3B tokens of Wikipedia; and on 90B of FineWeb-Edu


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    model: str

    def __str__(self) -> str:
        return f"{self.value:g} ({self.model})"


_WAYS = ("auto", "forced", "off", "standard")
_TABLES = {
    "TriviaQA": (28.4, 31.7, 4.7, 6.4),
    "PopQA": (47.3, 47.2, 15.4, 15.2),
    "T-REx": (40.5, 49.8, 21.7, 38.2),
}
_WITH_PASSAGES = {
    "TriviaQA": (42.5, 48.8),
    "PopQA": (33.9, 51.8),
    "T-REx": (86.4, 86.5),
}

# Per cent of questions answered, by question set and way of asking (tables 1 to 3 and the ablations). Those of
# SimpleQA are a judge's, see sections.py.
ANSWERS = {
    f"{name}, {way}": Figure(value, f"Standard-{SMALL}" if way == "standard" else f"Co-LMLM-{SMALL}")
    for name, values in _TABLES.items()
    for way, value in zip(_WAYS, values, strict=True)
} | {
    f"{name}, {way}": Figure(value, f"{model}-{LARGE}")
    for name, values in _WITH_PASSAGES.items()
    for way, value, model in zip(("rag", "co-lmlm-rag"), values, ("Standard", "Co-LMLM"), strict=True)
}

# On Simple English Wikipedia (section 4.2). The paper plots the static and normalised forms without numbers.
PERPLEXITY = {"dynamic": Figure(11.8, f"Co-LMLM-{SMALL}"), "standard": Figure(14.4, f"Standard-{SMALL}")}

# Accuracy in per cent, five exemplars, mean of three seeds (the appendix's table).
UNDERSTANDING = {
    name: Figure(value, f"Co-LMLM-{SMALL}")
    for name, value in (
        ("CSQA", 26.7), ("HellaSwag", 29.2), ("PIQA", 56.0), ("SIQA", 40.2), ("ARC-Easy", 40.1),
    )
}  # fmt: skip
