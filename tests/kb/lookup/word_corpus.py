"""Synthetic sentences for searches by words: words as unevenly common as those of a language, and questions about them.

Their BM25 is also computed here, over all sentences, so that a search that looks at few of them can be held against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.lookup.searchable import K1, B

VOCABULARY = 200_000
SENTENCES_PER_DOCUMENT = 5
NUM_QUESTIONS = 1000
COMMON, COMMON_ASKED = 50, 4  # the commonest words, and how many of them a question of common words has


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the place of the sentence that it asks for: its document's external id and an offset."""

    text: str
    document: str
    at: int


@dataclass(slots=True)
class WordCorpus:
    """Documents of sentences, each with one fact, its last word. A word is a number; sentence `n` has `words[n]`.

    `questions` have five words of a sentence and two of any, `asked` says of which; `common` have none but words that
    are in very many sentences.
    """

    words: list[npt.NDArray[np.int64]]
    documents: list[AnnotatedDocument] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    common: list[str] = field(default_factory=list)

    @classmethod
    def made(cls, count: int, seed: int) -> WordCorpus:
        random = np.random.default_rng([seed, count])
        share = 1 / (np.arange(VOCABULARY) + 10)
        lengths = random.integers(5, 26, size=count)
        drawn = random.choice(VOCABULARY, size=int(lengths.sum()), p=share / share.sum())
        made = cls(np.split(drawn, np.cumsum(lengths)[:-1]))
        places = made._write()
        for chosen in random.integers(count, size=NUM_QUESTIONS).tolist():
            said = made.words[chosen]
            own = random.choice(said, size=min(5, len(said)), replace=False)
            text = " ".join(map(spelt, [*own.tolist(), *random.choice(drawn, size=2).tolist()]))
            made.questions.append(Question(text, *places[chosen]))
            made.asked.append(chosen)
        made.common = [
            " ".join(map(spelt, random.choice(COMMON, size=COMMON_ASKED, replace=False).tolist()))
            for _ in range(NUM_QUESTIONS)
        ]
        return made

    def _write(self) -> list[tuple[str, int]]:
        """Makes the documents, and gives the place of each sentence in them."""
        places: list[tuple[str, int]] = []
        for number, first in enumerate(range(0, len(self.words), SENTENCES_PER_DOCUMENT)):
            text, facts = "", []
            for said in self.words[first : first + SENTENCES_PER_DOCUMENT]:
                places.append((f"d{number}", len(text)))
                text += " ".join(map(spelt, said.tolist())).capitalize()
                value = spelt(int(said[-1]))
                facts.append(FactSpan(len(text) - len(value), len(text), value))
                text += ". "
            self.documents.append(AnnotatedDocument(f"d{number}", text, tuple(facts)))
        return places


def spelt(number: int) -> str:
    """Spells a number as a word that the stemmer leaves alone, with consonants and vowels in turn."""
    letters = ""
    while True:
        number, consonant = divmod(number, 14)
        number, vowel = divmod(number, 3)
        letters += "bdfgkmpqtvwxzh"[consonant] + "aou"[vowel]
        if not number:
            return f"{letters}k"


class ExactBM25:
    """BM25 over every sentence of a corpus, by brute force."""

    def __init__(self, corpus: WordCorpus) -> None:
        self._sentences = len(corpus.words)
        self._word_T = np.concatenate(corpus.words)
        self._sentence_T = np.repeat(np.arange(self._sentences), [len(said) for said in corpus.words])
        different = np.array([len(set(said.tolist())) for said in corpus.words])
        self._norm_N = K1 * (1 - B + B * different / different.mean())
        self._number = {spelt(word): word for word in np.unique(self._word_T).tolist()}

    def scores(self, question: str) -> npt.NDArray[np.float64]:
        """Gives the score of each sentence."""
        total_N = np.zeros(self._sentences)
        for word in sorted(set(question.split())):
            at = self._sentence_T[self._word_T == self._number.get(word, -1)]
            sentences, times = np.unique(at, return_counts=True)
            weight = math.log(1 + (self._sentences - len(sentences) + 0.5) / (len(sentences) + 0.5))
            total_N[sentences] += weight * times * (K1 + 1) / (times + self._norm_N[sentences])
        return total_N

    def share_found(self, question: str, found: Sequence[int], count: int) -> float:
        """Gives which share of the `count` best sentences is among these numbers; equally good ones count alike."""
        scores_N = self.scores(question)
        count = min(count, int((scores_N > 0).sum()))
        if not count:
            return 1.0
        least = np.partition(scores_N, -count)[-count]
        return min(1.0, sum(bool(scores_N[one] >= least - 1e-6) for one in found) / count)
