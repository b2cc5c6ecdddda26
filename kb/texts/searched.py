"""Searched texts: the sentences by which a text is found, the words that find them, and the frames of facts.

What these rules give is stored (`kb.facts.sentences`), so a change of them, or of those in `kb.texts.structure`, needs
a migration that writes the sentences anew.

A frame is a digest of the words around a fact in its sentence, by which facts of equal sentences are found. Two facts
with one frame stand in the same sentence apart from their values. They say the same where the values do, and else
contradict each other. Case, accents and punctuation do not count. Frames are stored too (the column `frame` of facts),
and a migration would set them to NULL. The rules for pronouns are made for English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from colmlm.kb.texts.structure import TextStructure, structure_of
from colmlm.kb.texts.wording import UNSPACED, Span

MOST_WORDS = 60
MOST_CHARACTERS = 500  # at most 2,000 bytes, which PostgreSQL still takes for one word
MOST_SAID = 600  # characters of a passage
MOST_READ = (
    700  # characters from a question, a lead-in or a term to the end of a sentence that is read with it
)

_ENDS_IN_NUMBER = re.compile(r"(?:\A|\n)[^\S\n]*\(?[0-9]+(?:\.[0-9]+)*\.[^\S\n]+\Z")
_BLANKLESS = re.compile(r"\S+")
_SEARCHED = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_ASCII_SEARCHED = re.compile("[a-z0-9]+")  # the same, and faster
# Accents, as few questions have them, and what does not show.
_DROPPED = re.compile(
    "[\u0300-\u036f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)


def searched_words(text: str) -> str:
    """Give the words of a text with a blank between them: letters and digits, without capitals and accents.

    No locale of a server reads the result in another way.
    """
    if text.isascii():
        return " ".join(_ASCII_SEARCHED.findall(text.lower()))
    return " ".join(_SEARCHED.findall(_fold_text(text)))


def _fold_text(text: str) -> str:
    bare = _DROPPED.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return unicodedata.normalize("NFKC", bare)


class SearchedSentence(NamedTuple):
    """A sentence of a text, in offsets.

    Reading begins at `read_from`. The lines `led_by`, such as headings, lead it, the outermost first. `own` is the
    sentence without the headings and blanks around it. `passage` holds the lines that an answer may say with it.
    """

    start: int
    end: int
    read_from: int
    led_by: tuple[Span, ...]
    own: Span
    passage: Span


def searched_sentences(text: str) -> list[SearchedSentence]:
    """Give a text's sentences. They cover it without a gap, and none is blank; a blank text has none.

    A heading belongs to the sentence below it. A sentence of more than 60 words or 500 characters, without the blanks
    around it, is cut into several, at line ends where it has some. It is read from the sentence before it in its
    section, or from the question, lead-in or term that it stands under, where that is near.
    """
    structure = structure_of(text)
    spans = _sentence_spans(text, structure)
    bare = [_below_headings(text, span, structure) for span in spans]
    led = [structure.led_by(start) for start, _ in bare]
    joined = [_together(text, bare, led, one, one + 1) for one in range(len(bare) - 1)]
    found: list[SearchedSentence] = []
    for number, (start, end) in enumerate(spans):
        section = structure.section_of(start)
        read_from = spans[number - 1][0] if number and spans[number - 1][0] >= section else start
        near = [first for first, _ in led[number] if section <= first and end - first <= MOST_READ]
        read_from = min((read_from, *near[-1:], start))
        passage = _passage(bare, joined, number)
        found.append(SearchedSentence(start, end, read_from, led[number], bare[number], passage))
    return found


def _below_headings(text: str, span: Span, structure: TextStructure) -> Span:
    """Give the offsets of a sentence without outer blanks, and without headings that it begins with."""
    start, end = span
    end = start + len(text[start:end].rstrip())
    while True:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        heading = structure.heading_at(start)
        if heading is None or heading[1] >= end:
            return start, end
        start = heading[1]


def _passage(bare: Sequence[Span], joined: Sequence[bool], number: int) -> Span:
    """Give the stretch of sentences around one that are in its paragraph or list, up to `MOST_SAID` characters.

    `joined[i]` tells whether sentences i and i + 1 stand together.
    """
    first = last = number
    start, end = bare[number]
    goes_on = goes_back = True
    while goes_on or goes_back:  # onwards first: what a sentence begins is mostly ended below it
        goes_on = goes_on and last < len(joined) and joined[last] and bare[last + 1][1] - start <= MOST_SAID
        if goes_on:
            last += 1
            end = bare[last][1]
        goes_back = goes_back and first > 0 and joined[first - 1] and end - bare[first - 1][0] <= MOST_SAID
        if goes_back:
            first -= 1
            start = bare[first][0]
    return start, end


def _together(text: str, bare: Sequence[Span], led: Sequence[tuple[Span, ...]], one: int, other: int) -> bool:
    """Tell whether two sentences, one after the other, stand in one paragraph, or under one lead-in."""
    between = text[bare[one][1] : bare[other][0]]
    if between.count("\n") < 2 or not between.isspace():
        return between.isspace()
    lead = bare[one] if text[bare[one][0] : bare[one][1]].endswith(":") else None
    is_led = lead is not None and bool(led[other]) and lead[0] <= led[other][-1][0] < lead[1]
    return is_led or (bool(led[one]) and led[one] == led[other] and text[led[one][-1][1] - 1] == ":")


def searched_spans(text: str) -> list[Span]:
    """Give the offsets of the sentences that `searched_sentences` gives, each with the heading above it."""
    return _sentence_spans(text, structure_of(text))


def _sentence_spans(text: str, structure: TextStructure) -> list[Span]:
    spans: list[Span] = []
    start = 0
    for end in sentence_ends(text):
        if end < len(text) and _ENDS_IN_NUMBER.search(text, max(start, end - 20), end):
            continue  # "1.3. " begins an item
        if not text[start:end].isspace() and not (
            end < len(text) and _is_heading(text, start, end, structure)
        ):
            spans += cut_into_parts(text, start, end)
            start = end
    return spans


def _is_heading(text: str, start: int, end: int, structure: TextStructure) -> bool:
    """Tell whether ``text[start:end]`` ends in a heading, or within one, and the text goes on below it."""
    last = start + len(text[start:end].rstrip())
    return structure.heading_at(last - 1) is not None and bool(text[end:].strip())


def cut_into_parts(text: str, start: int, end: int) -> list[Span]:
    """Cut ``text[start:end]`` into parts of at most 60 words and 500 characters, at line ends where possible."""
    if _fits(text, start, end):
        return [(start, end)]
    spans: list[Span] = []
    begin = at = start
    for line in _line_ends(text, start, end):
        if not text[begin:at].isspace() and at > begin and not _fits(text, begin, line):
            spans += _cut(text, begin, at)
            begin = at
        at = line
    return spans + _cut(text, begin, end)


def _fits(text: str, start: int, end: int) -> bool:
    return end - start <= MOST_CHARACTERS and len(text[start:end].split()) <= MOST_WORDS


def _line_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Yield the offset behind each line of ``text[start:end]``. Blank lines at its end belong to the last one."""
    filled = start + len(text[start:end].rstrip())
    at = text.find("\n", start, filled)
    while at >= 0:
        yield at + 1
        at = text.find("\n", at + 1, filled)
    yield end


def _cut(text: str, start: int, end: int) -> list[Span]:
    """Cut ``text[start:end]`` between words, into parts of about as many words each."""
    if _fits(text, start, end):
        return [(start, end)]
    words = [piece for found in _BLANKLESS.finditer(text, start, end) for piece in _split(*found.span())]
    pieces = -(-len(words) // MOST_WORDS)
    most = -(-len(words) // pieces)
    starts, first, count = [start], words[0][0], 0
    for word, stop in words:
        if count == most or stop - first > MOST_CHARACTERS:
            starts.append(word)
            first, count = word, 0
        count += 1
    return list(pairwise([*starts, end]))


def _split(start: int, end: int) -> Iterator[Span]:
    """Split the span of a word into spans of at most `MOST_CHARACTERS` characters."""
    for at in range(start, end, MOST_CHARACTERS):
        yield at, min(at + MOST_CHARACTERS, end)


def quote_lexeme(lexeme: str) -> str:
    """Quote a lexeme for a query of text search."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


UNFRAMED = 0  # the frame of a fact whose sentence says too little around it, or is none


FEWEST_AROUND, LONGEST_FRAMED = 3, 600


_ERASED = "\u2588"  # what stands for each erased character


# A sentence with one of these speaks of what its document is about.
_PRONOUN_WORDS = "he she it they we i you his her its their our my him them this these those"

_PRONOUNS = frozenset(_PRONOUN_WORDS.split())


def frame_of(title: str | None, text: str, ends: Sequence[int], start: int, end: int) -> int:
    """Compute the frame of the fact at ``text[start:end]``, a 64-bit digest; `ends` is from `sentence_ends`.

    The title counts where the sentence has a pronoun. The value counts where the sentence begins with it: it then is
    the subject, and with another value it is another statement and no contradiction. A sentence that is too long, has
    too few other words or contains erased words gives `UNFRAMED`.
    """
    first, last = sentence_around(ends, start, end)
    if last - first > LONGEST_FRAMED:
        return UNFRAMED
    before, after = searched_words(text[first:start]), searched_words(text[end:last])
    words = [*before.split(), *after.split()]
    if len(words) < FEWEST_AROUND:
        return UNFRAMED
    title = "" if _PRONOUNS.isdisjoint(words) else title or ""
    if _ERASED in text[first:last] or _ERASED in title:
        return UNFRAMED
    about, subject = searched_words(title), "" if before else searched_words(text[start:end])
    digest = blake2b("\n".join((before, after, about, subject)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) or 1
