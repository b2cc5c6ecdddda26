"""Frames: digests of the words around a fact in its sentence, by which facts of equal sentences are found.

Two facts with one frame stand in the same sentence apart from their values. They say the same where the values do, and
else contradict each other. Case, accents and punctuation do not count.

What the digests cover is stored (the column `frame` of facts), so a change of these rules needs a migration that sets
them to NULL. The rules for pronouns are made for English.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from colmlm.kb.texts.searched import searched_words
from colmlm.kb.texts.sentences import sentence_around

UNFRAMED = 0  # the frame of a fact whose sentence says too little around it, or is none


FEWEST_WORDS, MOST_CHARACTERS = 3, 600


_ERASED = "\u2588"  # what stands for each erased character


# A sentence with one of these speaks of what its document is about.
_PRONOUN_WORDS = "he she it they we i you his her its their our my him them this these those"


_PRONOUNS = frozenset(_PRONOUN_WORDS.split())


def frame_of(title: str | None, text: str, ends: Sequence[int], start: int, end: int) -> int:
    """Compute the frame of the fact at ``text[start:end]``; `ends` is from `sentence_ends`.

    The title counts where the sentence has a pronoun. The value counts where the sentence begins with it, since it
    then is what the sentence is about: with another value it is another statement and no contradiction.
    Where words of these were erased, nobody knows what they said, and the sentence is like no other.
    """
    first, last = sentence_around(ends, start, end)
    if last - first > MOST_CHARACTERS:
        return UNFRAMED
    before, after = searched_words(text[first:start]), searched_words(text[end:last])
    words = [*before.split(), *after.split()]
    if len(words) < FEWEST_WORDS:
        return UNFRAMED
    title = "" if _PRONOUNS.isdisjoint(words) else title or ""
    if _ERASED in text[first:last] or _ERASED in title:
        return UNFRAMED
    about, subject = searched_words(title), "" if before else searched_words(text[start:end])
    digest = blake2b("\n".join((before, after, about, subject)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) or 1
