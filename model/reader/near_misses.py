"""Near misses: a question with one word exchanged, so that the passage that answered it no longer does.

People ask for what a document does not say in nearly the words of what it says: the limit for children where it has
that for adults. Sets of questions hardly have such. So a word of a question becomes another of its kind: a number
another number, a name another name, and any other word one that stands near it in the table of the base's tokens, where
"north" is near "south", and that an encoder of sentences does not take for a word of the same meaning.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from safetensors.torch import load_file
from torch.nn import functional as F

from colmlm.model.annotate.windows import WordTokenizer
from colmlm.model.annotate.words import Word, fold, root, words
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.text.sentence_encoder import MeanSentenceEncoder

NEAR = 8  # words near one, of which one is drawn
ALIKE = 0.7  # the cosine of two words that mean nearly the same
_TABLE = "embeddings.word_embeddings.weight"
_AT_ONCE = 1024
_ENDINGS = ("ing", "ed", "est", "ly", "s")
_CONTRARY = {
    "first": "last", "last": "first", "before": "after", "after": "before", "most": "least", "more": "less",
    "with": "without", "since": "until", "under": "over", "old": "new", "found": "lost", "began": "ended",
    "start": "end", "started": "ended", "during": "before", "between": "outside",
}  # fmt: skip
_LEAST_LETTERS, _COMMON_START = 3, 4
_NEGATED = 0.06  # of the questions: the verb is negated, and no word exchanged
_BE = ("is", "are", "was", "were")
_AUXILIARY = ("did", "does", "do", "can", "could", "has", "have", "had", "will", "would")


class NearMisses:
    """Exchanges words of questions. `near` gives words of the same kind for a folded word."""

    def __init__(self, near: Mapping[str, Sequence[str]]) -> None:
        self.near = near

    @classmethod
    def load(cls, base: Path, encoder: MeanSentenceEncoder, questions: Iterable[str]) -> Self:
        """Finds the words near those of the questions in the table of the base in this directory.

        The `encoder` leaves out those that mean the same.
        """
        tokenizer = WordTokenizer.load(base / "tokenizer.json").tokenizer
        asked = {word.folded for question in questions for word in words(question) if not word.is_number}
        known = {
            text: token
            for text, token in tokenizer.get_vocab().items()
            if text.isalpha() and text.isascii() and len(text) >= _LEAST_LETTERS
        }
        weights = load_file(base / WEIGHTS)
        table_VD = F.normalize(
            next(weights[name] for name in weights if name.endswith(_TABLE)).float(), dim=1
        )
        texts = list(known)
        own_ND = table_VD[list(known.values())]
        wanted = [text for text in texts if text in asked]
        near: dict[str, list[str]] = {}
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            nearest_BN = (table_VD[[known[text] for text in some]] @ own_ND.T).topk(4 * NEAR, dim=1).indices
            for text, row in zip(some, nearest_BN.tolist(), strict=True):
                near[text] = [texts[n] for n in row if _differs(text, texts[n])]
        return cls(_meaning_another(near, encoder))

    def of(self, question: str, passage: str, rng: random.Random) -> str | None:
        """Exchanges a word of the question for one that its passage does not say of it; None where no word can be."""
        if rng.random() < _NEGATED and (negated := _negated(question)) is not None:
            return negated
        own = list(words(question))
        there = defaultdict[tuple[bool, bool], list[str]](list)
        asked = {word.key for word in own}
        for word in words(passage):
            if word.key not in asked and (word.is_number or not word.is_ordinary):
                there[word.is_number, word.is_capitalised].append(passage[word.start : word.end])
        telling = [word for word in own if self._can(word, there)]
        if not telling:
            return None
        word = rng.choice(telling)
        said = question[word.start : word.end]
        return f"{question[: word.start]}{self._other(word, said, there, rng)}{question[word.end :]}"

    def _can(self, word: Word, there: Mapping[tuple[bool, bool], Sequence[str]]) -> bool:
        if word.is_number:
            return True
        if word.is_ordinary or (word.is_capitalised and word.start == 0):
            return word.folded in _CONTRARY
        return bool(self.near.get(word.folded) or (word.is_capitalised and there.get((False, True))))

    def _other(
        self, word: Word, said: str, there: Mapping[tuple[bool, bool], Sequence[str]], rng: random.Random
    ) -> str:
        """Draws the word in place of another."""
        if word.is_number:
            others = [text for text in there.get((True, False), ()) if len(text) == len(said)]
            return rng.choice(others) if others and rng.random() < 0.5 else _number(said, rng)
        if word.is_ordinary:
            return _CONTRARY[word.folded]
        near, names = self.near.get(word.folded, ()), there.get((False, True), ())
        if word.is_capitalised and names and (not near or rng.random() < 0.5):
            return rng.choice(names)
        other = rng.choice(near)
        return other.capitalize() if word.is_capitalised else other


def _meaning_another(near: Mapping[str, Sequence[str]], encoder: MeanSentenceEncoder) -> dict[str, list[str]]:
    """Leaves out the words that mean nearly the same as the one they are near."""
    all_words = sorted({*near, *(other for others in near.values() for other in others)})
    place = {word: n for n, word in enumerate(all_words)}
    vectors_ND = encoder.encode(all_words)
    kept: dict[str, list[str]] = {}
    for word, others in near.items():
        cosines_N = vectors_ND[[place[other] for other in others]] @ vectors_ND[place[word]]
        far = [other for other, cosine in zip(others, cosines_N, strict=True) if cosine < ALIKE]
        if far:
            kept[word] = far[:NEAR]
    return kept


def _form(word: str) -> str:
    return next((ending for ending in _ENDINGS if word.endswith(ending)), "")


def _differs(word: str, other: str) -> bool:
    """Tells whether two words have one grammatical form, and are not forms of one word."""
    if _form(word) != _form(other):
        return False
    start = min(_COMMON_START, len(word), len(other))
    return word[:start] != other[:start] and root(fold(word)) != root(fold(other))


def _number(said: str, rng: random.Random) -> str:
    """Draws another number of as many digits."""
    digits = [at for at, character in enumerate(said) if character.isdigit()]
    at = rng.choice(digits)
    other = rng.choice([digit for digit in "123456789" if digit != said[at]])
    return f"{said[:at]}{other}{said[at + 1 :]}"


def _negated(question: str) -> str | None:
    """Puts "not" behind a form of "be", or behind another verb and the first word of its subject."""
    said = question.split(" ")
    if "not" in said:
        return None
    for at, word in enumerate(said):
        behind = at + (1 if word.lower() in _BE else 2)
        if word.lower() in (*_BE, *_AUXILIARY) and behind + 1 < len(said):
            return " ".join([*said[:behind], "not", *said[behind:]])
    return None
