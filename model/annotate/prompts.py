r"""The prompts of the question generator and what it writes (section 3.3).

A document is one *prefix*: its title and its text, with the spans marked and numbered::

    Peru\n\nThe capital of Peru is [1: Lima]. Its great lake is [2: Titicaca].

To ask about a span, a short *suffix* names it, and the model continues with two lines and the end of the text::

    \n\n[1: Lima]\nQuestion: What is the capital of Peru?\nAnswer: Lima

A question must not mention what the document tells later, or it would leak a fact that is still to come. So a suffix
sees the prefix only up to the end of the sentence that holds its span: its *stop*. It is not the end of the span, since
the subject of a sentence often comes after it ("In <1981> the river rose"). As attention is causal, hiding the rest
changes nothing in the states before it, and one pass over the prefix serves all its spans.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from colmlm.kb.corpus.format import unstorable
from colmlm.kb.texts.searched import sentence_around, sentence_ends
from colmlm.model.annotate.bio import Span
from colmlm.model.text.tokens import FactTokenizer

NUMBERS = 99  # numbers begin again after this; a prefix shows fewer spans
LONGEST_SENTENCE = 400  # the most code points after a span that count as its sentence
LONGEST_VALUE = 200
_WRITTEN = re.compile(r"\s*(?P<question>[^\n]*\S)[^\S\n]*\nAnswer:[^\S\n]*(?P<answer>[^\n]*\S)[^\S\n]*")


@dataclass(frozen=True, slots=True)
class GeneratedQuestion:
    """A question that a span answers, and the answer in the form of a snippet."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Marked:
    """A document's tokens: the lead of every window of it, its text with the spans marked, and each span's stop.

    `stops[i]` counts the tokens of `ids` that span i may see.
    """

    lead: list[int]
    ids: list[int]
    stops: list[int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that are read once, the spans (by their place in the document) that ask there, and their stops in it."""

    ids: list[int]
    spans: list[int]
    stops: list[int]


def mark(
    tokenizer: FactTokenizer, text: str, spans: Sequence[Span], title: str | None, *, first: int = 1
) -> Marked:
    """Makes the tokens of a document, with `spans` (sorted, without overlap) numbered from `first` on."""
    ends = sentence_stops(text, spans)
    cuts = sorted({0, len(text), *ends, *(offset for span in spans for offset in span)})
    marked = {start: number(i, first) for i, (start, _) in enumerate(spans)}
    ids: list[int] = []
    reached: dict[int, int] = {0: 0}
    space = ""
    for start, end in pairwise(cuts):
        piece = text[start:end]
        if start in marked:
            piece = f"{space}[{marked[start]}: {piece}]"
            space = ""
        else:
            piece, space = (piece[:-1], " ") if end in marked and piece.endswith(" ") else (piece, "")
        ids += tokenizer.encode(piece)
        reached[end] = len(ids)
    lead = tokenizer.prompt(f"{title}\n\n" if title else "")
    return Marked(lead, ids, [reached[end] for end in ends])


def number(index: int, first: int = 1) -> int:
    """Gives the number that span `index` of a document is marked with."""
    return (index + first - 1) % NUMBERS + 1


def suffix(tokenizer: FactTokenizer, value: str, number: int) -> list[int]:
    """Makes the tokens that ask about one span."""
    return tokenizer.encode(f"\n\n[{number}: {value[:LONGEST_VALUE]}]\nQuestion:")


def target(tokenizer: FactTokenizer, written: GeneratedQuestion) -> list[int]:
    """Makes the tokens that the model is to write after a suffix."""
    lines = f" {' '.join(written.question.split())}\nAnswer: {' '.join(written.answer.split())}"
    return [*tokenizer.encode(lines), tokenizer.end_of_text]


def parse(written: str) -> GeneratedQuestion | None:
    """Reads the question and the answer that the model wrote; gives None unless both are there, on their lines."""
    match = _WRITTEN.match(written)
    if match is None or unstorable(match.group()) is not None:
        return None
    return GeneratedQuestion(" ".join(match["question"].split()), " ".join(match["answer"].split()))


def prefixes(marked: Marked, size: int) -> Iterator[Prefix]:
    """Yields the prefixes of at most `size` tokens in which a document's spans ask; there is mostly one.

    Windows begin at multiples of half a window, and a span asks in the first that reaches its stop, so it sees at least
    half a window of the text before it.
    """
    lead = marked.lead[: size // 4]
    room = size - len(lead)
    half = max(1, room // 2)
    chosen: dict[int, list[int]] = {}
    for span, stop in enumerate(marked.stops):
        start = (stop - room + half) // half * half if stop > room else 0
        chosen.setdefault(start, []).append(span)
    for start, spans in chosen.items():
        stops = [len(lead) + marked.stops[span] - start for span in spans]
        ids = lead + marked.ids[start : max(marked.stops[span] for span in spans)]
        yield Prefix(ids, spans, stops)


def one_each(prefix: Prefix) -> list[Prefix]:
    """Gives each span its own part of the prefix, as it would be read without sharing."""
    return [
        Prefix(prefix.ids[:stop], [span], [stop])
        for span, stop in zip(prefix.spans, prefix.stops, strict=True)
    ]


def sentence_stops(text: str, spans: Sequence[Span]) -> list[int]:
    """Finds where the sentence that holds each span ends, without the blanks that follow.

    In a long sentence it is `LONGEST_SENTENCE` code points after the span. A stop within another span moves before it.
    """
    ends, starts = sentence_ends(text), [start for start, _ in spans]
    stops: list[int] = []
    for start, end in spans:
        _, sentence = sentence_around(ends, start, end)
        last = min(sentence, end + LONGEST_SENTENCE)
        if last < sentence and " " in text[end:last]:
            last = text.rindex(" ", end, last)
        stop = end + len(text[end:last].rstrip())
        before, other = spans[bisect_left(starts, stop) - 1]
        stops.append(before if stop < other else stop)
    return stops
