"""SQuAD as an annotated corpus: paragraphs become documents, answers become fact spans.

Reads the official nested JSON (``{"data": [{"title", "paragraphs": [{"context", "qas"}]}]}``) and the
flat JSON Lines form (``{"title", "context", "qas": [{"question", "answer", "answer_start"}]}``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kb.corpus import AnnotatedDocument, FactSpan, Parsed, Refusal, check_spans


def read_squad(path: Path) -> Iterator[Parsed]:
    """Every paragraph of a SQuAD file. The id is a hash of title and paragraph: stable and unique."""
    with path.open(encoding="utf-8") as source:
        nested = path.suffix == ".json"
        paragraphs = _nested(path, source.read()) if nested else _flat(path, source)
        for where, paragraph in paragraphs:
            yield paragraph if isinstance(paragraph, Parsed) else _paragraph(where, paragraph)


def _flat(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, Parsed | Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        where = f"{path.name}:{number}"
        if not line.strip():
            continue
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            yield where, Parsed(None, (Refusal(where, error.pos, f"not JSON: {error.msg}"),))


def _nested(path: Path, text: str) -> Iterator[tuple[str, Parsed | Mapping[str, Any]]]:
    try:
        data = json.loads(text)["data"]
        articles = [(article.get("title"), article["paragraphs"]) for article in data]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield path.name, Parsed(None, (Refusal(path.name, 0, f"not a SQuAD file: {error}"),))
        return
    for title, paragraphs in articles:
        for number, paragraph in enumerate(paragraphs):
            yield f"{path.name}:{title}/{number}", {**paragraph, "title": title}


def _paragraph(where: str, record: Mapping[str, Any]) -> Parsed:
    context = record.get("context") if isinstance(record, Mapping) else None
    if not isinstance(context, str) or not context.strip():
        return Parsed(None, (Refusal(where, 0, "no 'context'"),))
    title = record.get("title")
    title = title.replace("_", " ") if isinstance(title, str) else None
    external_id = hashlib.sha256(f"{title}\n{context}".encode()).hexdigest()[:16]
    spans: list[FactSpan] = []
    malformed: list[Refusal] = []
    for qa in record.get("qas", ()):
        try:
            spans.append(_answer(qa))
        except (KeyError, TypeError, IndexError) as error:
            malformed.append(Refusal(external_id, 0, f"malformed question: {error!r}"))
    sound = [s for s in spans if context[s.start : s.end] == s.value]
    _, wrong = check_spans(external_id, context, [s for s in spans if s not in sound])
    kept = resolve_overlaps(sound)
    document = AnnotatedDocument(external_id, context, kept, title=title)
    return Parsed(document, (*malformed, *wrong), overlaps_resolved=len(sound) - len(kept))


def _answer(qa: Mapping[str, Any]) -> FactSpan:
    answer, start = (
        (qa["answer"], qa["answer_start"])
        if "answer" in qa
        else (qa["answers"][0]["text"], qa["answers"][0]["answer_start"])
    )
    if not isinstance(answer, str) or not isinstance(start, int) or not isinstance(qa["question"], str):
        raise TypeError("question and answer must be strings, answer_start an integer")
    return FactSpan(start, start + len(answer), answer, qa["question"].strip(), answer)


def resolve_overlaps(spans: Sequence[FactSpan]) -> tuple[FactSpan, ...]:
    """The largest set of spans that are apart: earliest end first, which is optimal for counts.

    Of equal spans with several questions the first stays.
    """
    kept: list[FactSpan] = []
    for span in sorted(spans, key=lambda s: (s.end, -s.start)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return tuple(kept)
