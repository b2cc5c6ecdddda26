"""SQuAD as an annotated corpus: paragraphs become documents, answers become fact spans.

It reads the official nested JSON (``{"data": [{"title", "paragraphs": [{"context", "qas"}]}]}``) and the
flat JSON Lines form (``{"title", "context", "qas": [{"question", "answer", "answer_start"}]}``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    FactSpan,
    Parsed,
    Refusal,
    check_spans,
    parse_json,
    unstorable_characters,
)
from colmlm.kb.errors import describe_misread


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """A question with all its answers, the external id of its paragraph, and the span of its first answer there.

    A question without answers is one that its paragraph does not answer, as in SQuAD 2.0.
    """

    document: str
    question: str
    answers: tuple[str, ...]
    place: tuple[int, int] | None = None


def read_squad(path: Path) -> Iterator[Parsed]:
    """Read every paragraph of a SQuAD file. The id is a hash of title and paragraph, so it is stable and unique."""
    with path.open("rb") as source:
        paragraphs = _json_paragraphs(path, source.read()) if path.suffix == ".json" else _jsonl(path, source)
        for where, paragraph in paragraphs:
            if isinstance(paragraph, Refusal):
                yield Parsed(None, (paragraph,))
            else:
                yield _paragraph(where, paragraph)


def read_questions(path: Path, *, unanswered: bool = False) -> Iterator[SquadQuestion]:
    """Read every question that the file answers. It skips malformed ones, which `read_squad` refuses by name.

    With `unanswered` it also gives the questions that the file marks as unanswered, by null or an empty list.
    """
    with path.open("rb") as source:
        paragraphs = _json_paragraphs(path, source.read()) if path.suffix == ".json" else _jsonl(path, source)
        for _, paragraph in paragraphs:
            if isinstance(paragraph, dict) and isinstance(paragraph.get("context"), str):
                document = squad_identity(_title_with_spaces(paragraph.get("title")), paragraph["context"])
                qas = paragraph.get("qas")
                for qa in qas if isinstance(qas, list) else ():
                    one = _answered_question(document, qa) or (
                        _unanswered_question(document, qa) if unanswered else None
                    )
                    if one is not None:
                        yield one


def _answered_question(document: str, qa: Any) -> SquadQuestion | None:
    """Give the question with its well-formed answers, of which `read_squad` marks the first; None without one."""
    if not isinstance(qa, dict) or not isinstance(qa.get("question"), str):
        return None
    several = qa.get("answers")
    found = [(qa["answer"], qa.get("answer_start"))] if "answer" in qa else []
    if not found and isinstance(several, list):
        found = [(a.get("text"), a.get("answer_start")) for a in several if isinstance(a, dict)]
    answers = [(text, start) for text, start in found if isinstance(text, str) and text.strip()]
    if not qa["question"].strip() or not answers:
        return None
    text, start = answers[0]
    place = (start, start + len(text)) if type(start) is int else None
    return SquadQuestion(
        document, qa["question"].strip(), tuple(dict.fromkeys(text for text, _ in answers)), place
    )


def _unanswered_question(document: str, qa: Any) -> SquadQuestion | None:
    """Give the question if the file marks it as having no answer; else None."""
    if not isinstance(qa, dict) or not isinstance(qa.get("question"), str) or not qa["question"].strip():
        return None
    said = qa["answer"] if "answer" in qa else qa.get("answers", "")
    return SquadQuestion(document, qa["question"].strip(), ()) if said is None or said == [] else None


def _jsonl(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path.name}:{number}"
            yield where, parse_json(line, where)


def _json_paragraphs(path: Path, text: bytes) -> Iterator[tuple[str, Any]]:
    record = parse_json(text, path.name)
    if isinstance(record, Refusal):
        yield path.name, record
        return
    articles = record.get("data") if isinstance(record, dict) else None
    if not isinstance(articles, list):
        yield path.name, Refusal(path.name, 0, "not a SQuAD file: no list 'data'")
        return
    for ordinal, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            where = f"{path.name}:{ordinal}"
            yield where, Refusal(where, 0, "an article without a list 'paragraphs'")
            continue
        for number, paragraph in enumerate(paragraphs):
            titled = (
                {**paragraph, "title": article.get("title")} if isinstance(paragraph, dict) else paragraph
            )
            yield f"{path.name}:{ordinal}/{number}", titled


def _paragraph(where: str, record: object) -> Parsed:
    if not isinstance(record, dict):
        return Parsed(None, (Refusal(where, 0, "not a JSON object"),))
    context, title, qas = record.get("context"), record.get("title"), record.get("qas", [])
    if not isinstance(context, str) or not context.strip():
        return Parsed(None, (Refusal(where, 0, "no 'context'"),))
    title = _title_with_spaces(title)
    if (fault := unstorable_characters(context) or unstorable_characters(title or "")) is not None:
        return Parsed(None, (Refusal(where, *fault),))
    external_id = squad_identity(title, context)
    if not isinstance(qas, list):
        return Parsed(None, (Refusal(external_id, 0, "'qas' must be a list"),))
    sound: list[FactSpan] = []
    refusals: list[Refusal] = []
    for qa in qas:
        try:
            span = _parse_answer_span(qa)
        except (KeyError, TypeError, IndexError) as error:
            why = f"malformed question, which was left out: {describe_misread(error)}"
            refusals.append(Refusal(external_id, 0, why))
            continue
        if span is not None:
            checked, wrong = check_spans(external_id, context, [span])
            sound += checked
            refusals += wrong
    kept = resolve_overlaps(sound)
    document = AnnotatedDocument(external_id, context, kept, title=title)
    return Parsed(document, tuple(refusals), overlaps_resolved=len(sound) - len(kept))


def _title_with_spaces(title: Any) -> str | None:
    return title.replace("_", " ") if isinstance(title, str) else None


def squad_identity(title: str | None, context: str) -> str:
    """Give an external id for a document that has none: a digest of its title and text."""
    return hashlib.sha256(f"{title}\n{context}".encode()).hexdigest()[:16]


def _parse_answer_span(qa: Any) -> FactSpan | None:
    """Give the span of the question's first answer; None for a question that the paragraph does not answer."""
    if not isinstance(qa, dict):
        raise TypeError("not a JSON object")
    if "answer" not in qa and qa["answers"] == []:
        return None
    answer, start = (
        (qa["answer"], qa["answer_start"])
        if "answer" in qa
        else (qa["answers"][0]["text"], qa["answers"][0]["answer_start"])
    )
    question = qa["question"]
    if not isinstance(answer, str) or not isinstance(question, str) or unstorable_characters(question):
        raise TypeError("question and answer must be strings that can be stored")
    if not isinstance(start, int) or isinstance(start, bool):
        raise TypeError("'answer_start' must be an integer")
    return FactSpan(start, start + len(answer), answer, question.strip() or None, answer)


def resolve_overlaps(spans: Sequence[FactSpan]) -> tuple[FactSpan, ...]:
    """Give the largest set of spans without overlap, by taking the earliest end first; of equal spans the first."""
    kept: list[FactSpan] = []
    for span in sorted(spans, key=lambda s: (s.end, -s.start)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return tuple(kept)
