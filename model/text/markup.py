"""The markup of each method: the tokens that it adds to a vocabulary, and Rel-LMLM's texts, which have calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    FactSpan,
    InlineError,
    Parsed,
    Refusal,
    parse_json,
    unstorable_characters,
)

# The tokens that each method adds to a vocabulary, and how a lookup is written with them.
#
# Co-LMLM asks with the hidden state at one token (section 3.1), LMLM-Asker with a question in words, and Rel-LMLM
# with an entity and a relation in words (section 4.6, appendix A). A standard model never asks.


Span = tuple[int, int]  # start and end of a part of a text, in characters


@dataclass(frozen=True, slots=True)
class Markup:
    """The markup of a method, which writes a lookup as ``opens [query] asks value closes``.

    `tokens` are the last ones of the vocabulary, in this order. `asks` is None where the state at `opens` is the query
    itself. `parts` separates the parts of a query in words, which plain text has on separate lines. `key` ends a
    question whose state at that token is a key.
    """

    method: str
    tokens: tuple[str, ...] = ()
    opens: str | None = None
    asks: str | None = None
    closes: str | None = None
    parts: str | None = None
    key: str | None = None


FACT, FACT_END, FACT_Q = "<FACT>", "</FACT>", "<FACT-q>"
QUESTION, QUESTION_END = "<QUESTION>", "</QUESTION>"
ENTITY, RELATION, RETURN, END = "<|db_entity|>", "<|db_relationship|>", "<|db_return|>", "<|db_end|>"
CO_LMLM = Markup("co-lmlm", (FACT, FACT_END, FACT_Q), opens=FACT, closes=FACT_END, key=FACT_Q)
STANDARD = Markup("standard")
ASKER = Markup(
    "asker", (QUESTION, QUESTION_END, FACT_END), opens=QUESTION, asks=QUESTION_END, closes=FACT_END
)
REL_LMLM = Markup(
    "rel-lmlm", (ENTITY, RELATION, RETURN, END), opens=ENTITY, asks=RETURN, closes=END, parts=RELATION
)
MARKUPS = {markup.method: markup for markup in (CO_LMLM, STANDARD, ASKER, REL_LMLM)}


# Rel-LMLM's training texts, read from a JSON file: each has calls `[dblookup('entity', 'relation') -> value]`.
#
# A call becomes a fact span: its value replaces the call in the text, and its question is the entity and the
# relation on separate lines, as `REL_LMLM` writes a query in words. The text after the span stays
# unchanged and mostly says the value once more, since such a model is trained to look up, read and repeat. Nothing
# is guessed: a document with a call that cannot be read is refused with the offset and the reason.

OPENS = "[dblookup("
_CALL = re.compile(r"\[dblookup\('(?P<entity>.+?)', ?'(?P<relation>.+?)'\) ?-> ?")


def read_triplets(path: Path) -> Iterator[Parsed]:
    """Yield a document, or a refusal, for each annotated example in a JSON file. Its id hashes the annotated text."""
    record = parse_json(path.read_bytes(), path.name)
    if isinstance(record, Refusal):
        yield Parsed(None, (record,))
        return
    examples = record.get("examples") if isinstance(record, dict) else None
    if not isinstance(examples, list):
        yield Parsed(None, (Refusal(path.name, 0, "no list 'examples'"),))
        return
    for number, example in enumerate(examples):
        yield _document(f"{path.name}:{number}", example)


def _document(where: str, example: Any) -> Parsed:
    marked = example.get("annotated_text") if isinstance(example, dict) else None
    if not isinstance(marked, str) or not marked.strip():
        return Parsed(None, (Refusal(where, 0, "no 'annotated_text'"),))
    if (fault := unstorable_characters(marked)) is not None:
        return Parsed(None, (Refusal(where, *fault),))
    try:
        text, spans = parse_calls(marked)
    except InlineError as error:
        return Parsed(None, (Refusal(where, error.offset, error.reason),))
    external_id = hashlib.sha256(marked.encode()).hexdigest()[:16]
    return Parsed(AnnotatedDocument(external_id, text, spans))


def parse_calls(marked: str) -> tuple[str, tuple[FactSpan, ...]]:
    """Give the text with each call replaced by its value, and all spans. Raises `InlineError` for a bad call."""
    pieces: list[str] = []
    spans: list[FactSpan] = []
    length = at = 0
    while (start := marked.find(OPENS, at)) >= 0:
        entity, relation, value, end = _call(marked, start)
        length += start - at
        spans.append(FactSpan(length, length + len(value), value, f"{entity}\n{relation}"))
        pieces += (marked[at:start], value)
        length += len(value)
        at = end
    return "".join((*pieces, marked[at:])), tuple(spans)


def _call(marked: str, start: int) -> tuple[str, str, str, int]:
    """Read the call at `start`: give its entity, relation and value, and the offset of its end."""
    call = _CALL.match(marked, start)
    if call is None or OPENS in call.group()[1:]:
        raise InlineError(start, "a call that is not [dblookup('entity', 'relation') -> value]")
    end = _closing(marked, call.end())
    value = marked[call.end() : max(end, 0)].strip()
    entity, relation = call["entity"].strip(), call["relation"].strip()
    if end < 0 or OPENS in value:
        raise InlineError(start, "a call that is never closed")
    if not (entity and relation and value):
        raise InlineError(start, "a call with an empty entity, relation or value")
    return entity, relation, value, end + 1


def _closing(text: str, at: int) -> int:
    """Give the offset of the bracket that closes the call, or -1 if none does in this line. Brackets may nest."""
    depth = 0
    for position in range(at, len(text)):
        if text[position] == "[":
            depth += 1
        elif text[position] == "]":
            if depth == 0:
                return position
            depth -= 1
        elif text[position] == "\n":
            return -1
    return -1
