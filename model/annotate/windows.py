"""Texts as an encoder reads them: token ids, the words they belong to, and windows over long texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from colmlm.model.annotate.bio import Span


@dataclass(frozen=True, slots=True)
class Words:
    """A text's tokens. `words[i]` are the offsets of word i in code points, and `first[i]` is its first token."""

    ids: list[int]
    words: list[Span]
    first: list[int]


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Tokens ``[start, end)`` of a text, and the words whose tags are read in this window."""

    start: int
    end: int
    words: range


class WordTokenizer:
    """An encoder's tokenizer, which encodes a literal ``[SEP]`` in a text as its characters, not as the token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer
        self.cls, self.sep, self.pad = map(self._id, ("[CLS]", "[SEP]", "[PAD]"), ("<s>", "</s>", "<pad>"))

    @classmethod
    def load(cls, path: Path) -> WordTokenizer:
        """Reads a ``tokenizer.json``."""
        return cls(Tokenizer.from_file(str(path)))

    def encode(self, text: str) -> Words:
        """Encodes the words of a text in order; what the tokenizer drops (controls, blanks) is in no word."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        words: list[Span] = []
        first: list[int] = []
        word_before: int | None = None
        for token, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word is None or word != word_before:
                words.append((start, end))
                first.append(token)
            else:
                words[-1] = (words[-1][0], max(end, words[-1][1]))
            word_before = word
        return Words(list(encoding.ids), words, first)

    def framed(self, ids: list[int]) -> list[int]:
        """Puts the ids between the tokens that begin and end a sequence."""
        return [self.cls, *ids, self.sep]

    def _id(self, *names: str) -> int:
        """Gives the id of a token under the first of its names: BERT's, or RoBERTa's, which MPNet has too."""
        for name in names:
            if (token_id := self.tokenizer.token_to_id(name)) is not None:
                return int(token_id)
        raise ValueError(f"the tokenizer has no token {names[0]}: it is none of an encoder")


def windows(encoded: Words, size: int, overlap: int) -> list[WordWindow]:
    """Makes windows of at most `size` tokens that overlap by at least `overlap`.

    Each word is read in the window where its first token is furthest from a cut, and so has the most context. The ends
    of the text are no cuts.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"windows of {size} tokens cannot overlap by {overlap}")
    length = len(encoded.ids)
    starts = [*range(0, max(1, length - size), size - overlap)]
    if length > size:
        starts.append(length - size)
    context_T = np.full(length, -1, dtype=np.int64)
    owner_T = np.zeros(length, dtype=np.int64)
    for number, start in enumerate(starts):
        end = min(start + size, length)
        at_T = np.arange(start, end)
        left_T = at_T - start if start else np.full(len(at_T), length)
        right_T = end - 1 - at_T if end < length else np.full(len(at_T), length)
        here_T = np.minimum(left_T, right_T)
        better_T = here_T > context_T[start:end]
        context_T[start:end][better_T] = here_T[better_T]
        owner_T[start:end][better_T] = number
    owners = owner_T[np.array(encoded.first, dtype=np.int64)]  # never decreases from one word to the next
    bounds = np.searchsorted(owners, np.arange(len(starts) + 1))
    read = [
        WordWindow(start, min(start + size, length), range(int(bounds[n]), int(bounds[n + 1])))
        for n, start in enumerate(starts)
    ]
    return [window for window in read if window.words]
