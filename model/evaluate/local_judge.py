"""A judge by strings alone, for use without a large model. Its scores cannot be compared with published ones."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from colmlm.kb.texts.searched import sentence_ends
from colmlm.model.evaluate.answers import FIRST_CHARACTERS
from colmlm.model.evaluate.judge import Opinion

_ARTICLES = {"a", "an", "the"}
_DECLINES = (
    "i do not know",
    "i don t know",
    "i am not sure",
    "i m not sure",
    "unknown",
    "not known",
    "no idea",
)
_TELLING = re.compile(r"[A-Z][\w'’-]*|\d[\d,.]*\d|\d")


class LocalJudge:
    """Accepts an answer with a gold answer among its first words, ignoring case, accents, articles and punctuation.

    A claim is a sentence, and is supported if the passages hold all its numbers and names; one without any is not
    judged.
    """

    comparable = False
    name = "local"

    def grade(self, question: str, references: Sequence[str], said: str) -> Opinion[str]:
        words = f" {normalised(said[:FIRST_CHARACTERS])} "
        if any(f" {wanted} " in words for one in references if (wanted := normalised(one))):
            return Opinion("correct", said)
        declines = not words.strip() or words.strip().startswith(_DECLINES)
        return Opinion("not_attempted" if declines else "incorrect", said)

    def claims(self, topic: str, text: str) -> Opinion[list[str]]:
        start, found = 0, []
        for end in sentence_ends(text):
            found.append(text[start:end].strip())
            start = end
        return Opinion([sentence for sentence in (*found, text[start:].strip()) if sentence], text)

    def supports(self, topic: str, claim: str, passages: Sequence[str]) -> Opinion[bool]:
        known = f" {normalised(' '.join(passages))} "
        own = set(normalised(topic).split())
        telling = [normalised(found.group()) for found in _TELLING.finditer(claim) if found.start()]
        asked = [word for word in telling if word and not set(word.split()) <= own]
        return Opinion(all(f" {word} " in known for word in asked) if asked else None, claim)


def normalised(text: str) -> str:
    """Gives the words of a text in lower case, without accents, punctuation and articles."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return " ".join(word for word in re.findall(r"\w+", bare) if word not in _ARTICLES)
