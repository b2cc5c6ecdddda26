"""Paraphrases a question by rules, in forms in which the same thing is often asked.

They are no proof against every wording; they find facts that come back by a change of case, punctuation or prompt form.
"""

from __future__ import annotations

import re

_WH = re.compile(r"(?:what|which|who|when|where) (?:is|was|are|were) (?P<rest>.+)", re.IGNORECASE)


def paraphrases(question: str) -> list[str]:
    """Gives other ways to ask `question`, in a fixed order, each once and none of them the question itself."""
    bare = question.strip().rstrip("?").strip()
    lower_first = bare[:1].lower() + bare[1:]
    forms = [
        f"Question: {question}\nAnswer:",
        question.lower(),
        bare,
        f"Tell me: {lower_first}?",
        f"Do you know {lower_first}?",
    ]
    if (asked := _WH.fullmatch(bare)) is not None:
        rest = asked["rest"]
        forms += [f"Tell me {rest}.", f"{rest[:1].upper()}{rest[1:]}?"]
    return [form for form in dict.fromkeys(forms) if form != question]
