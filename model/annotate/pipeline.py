"""Annotate raw documents with the two light annotators (section 3.3): spans, then a question for each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, check_spans, to_record
from colmlm.model.annotate.checks import Fault, Rejected, Reviewed, review
from colmlm.model.annotate.config import ResultsUnusable

BATCH = 8  # the number of documents whose spans are found together

Offsets = tuple[int, int]


class QuestionAndAnswer(Protocol):
    """A question about a span, and the answer as a snippet."""

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> str: ...


class SpanFinder(Protocol):
    """Find the fact spans of texts as offsets in code points, sorted and without overlap."""

    def spans(self, texts: Sequence[str]) -> Sequence[Sequence[Offsets]]: ...


class QuestionWriter(Protocol):
    """Write a question and an answer for each span of a text, or None (`model.annotate.annotators`)."""

    def questions(
        self, text: str, spans: Sequence[Offsets], title: str | None
    ) -> Sequence[QuestionAndAnswer | None]: ...


class QuestionVerifier(Protocol):
    """Give, for a document, what finds that a span's question leads elsewhere (`model.reader.verification`)."""

    def of(self, document: AnnotatedDocument) -> Callable[[FactSpan], Fault | None]: ...


@dataclass(frozen=True, slots=True)
class Annotator:
    """Annotate documents; without a question generator their facts have no questions.

    Every question goes through `model.annotate.checks.review`, and where there is a `verifier` must lead it back to its
    span. `drop_unquestioned` drops the facts whose question was
    rejected or not written; without it they stay, and are found by their context.
    """

    span_annotator: SpanFinder
    question_generator: QuestionWriter | None = None
    drop_unquestioned: bool = False
    verifier: QuestionVerifier | None = None

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[Reviewed]:
        """Yield the documents with their facts, in order; facts that they had before are discarded.

        Documents for which `skip` is true are left out. The spans of a batch are found together, and batches are made
        of all documents, so that a document gets the same facts whichever of its neighbours were done before.
        """
        remaining = iter(documents)
        while batch := list(islice(remaining, BATCH)):
            wanted = [document for document in batch if skip is None or not skip(document)]
            if not wanted:
                continue
            found = self.span_annotator.spans([document.text for document in batch])
            for document, spans in zip(batch, found, strict=True):
                if document in wanted:
                    yield self._document(document, spans)

    def _document(self, document: AnnotatedDocument, found: Sequence[Offsets]) -> Reviewed:
        text = document.text
        spans = [FactSpan(start, end, text[start:end]) for start, end in found]
        sound, refusals = check_spans(document.external_id, text, spans)
        rejected = tuple(
            Rejected(r.document, r.offset, r.offset, "span", f"The span is refused: {r.reason}.")
            for r in refusals
        )
        asked = replace(document, facts=tuple(self._with_questions(document, sound)))
        reviewed = review(
            asked,
            drop_unquestioned=self.drop_unquestioned and self.question_generator is not None,
            verify=self.verifier.of(asked) if self.verifier else lambda _: None,
        )
        return Reviewed(reviewed.document, rejected + reviewed.rejected)

    def _with_questions(self, document: AnnotatedDocument, spans: Sequence[FactSpan]) -> Iterator[FactSpan]:
        """Yield the spans, each with a question and an answer if they were written."""
        if self.question_generator is None or not spans:
            yield from spans
            return
        offsets = [(span.start, span.end) for span in spans]
        written = self.question_generator.questions(document.text, offsets, document.title)
        for span, one in zip(spans, written, strict=True):
            if one is None:
                yield span
            else:
                yield replace(span, question=one.question.strip() or None, answer=one.answer.strip() or None)


# An annotated corpus that grows by whole documents, with a file of rejects beside it.
#
# A run that was interrupted, even by a kill, continues where it was: an incomplete last line is cut off,
# documents that are in the file are skipped, and rejects of a document that is not in it yet are dropped, as
# it is annotated again.


def rejects_beside(path: Path) -> Path:
    """Give the path of the rejects beside a file of results: ``mine.jsonl`` has ``mine.rejects.jsonl``."""
    return path.with_name(f"{path.name.removesuffix('.jsonl')}.rejects.jsonl")


class Results:
    """The two files, open to append by one process at a time. A context manager.

    `done` has the ids of the documents in the file. Raises `ResultsUnusable` if the file is no annotated corpus, or
    another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rejects_path = path, rejects_beside(path)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._texts = dict(self._whole_lines())
        except BlockingIOError:
            self._file.close()
            raise ResultsUnusable(
                f"{path}: another process writes it. Wait for it, or name another."
            ) from None
        except BaseException:
            self._file.close()
            raise
        self._rejects = self._open_rejects()

    @property
    def num_done(self) -> int:
        return len(self._texts)

    def has(self, document: AnnotatedDocument) -> bool:
        """Tell whether the document is in the file. Raises `ResultsUnusable` if it is there with another text."""
        known = self._texts.get(document.external_id)
        if known is not None and known != _digest(document.text):
            raise ResultsUnusable(
                f"{self.path}: it has {document.external_id!r} with another text, which has changed since. "
                "Name another file, or remove this one to annotate everything anew."
            )
        return known is not None

    def append(self, reviewed: Reviewed) -> None:
        """Add a document. Its rejects are written first, so that a document in the file has all its rejects."""
        self.reject(*reviewed.rejected)
        document = reviewed.document
        self._file.write(json.dumps(to_record(document), ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self._texts[document.external_id] = _digest(document.text)

    def reject(self, *rejected: Rejected) -> None:
        """Add rejects alone: a document that could not be annotated is tried again by the next run."""
        for one in rejected:
            self._rejects.write(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n")
        self._rejects.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file, self._rejects:  # both are closed, also where there is no space for the rest of one
            for file in (self._rejects, self._file):
                os.fsync(file.fileno())

    def _whole_lines(self) -> Iterator[tuple[str, str]]:
        """Yield each document's id and its text's digest; what follows the last line end is cut off."""
        self._file.seek(0)
        reached = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            reached += len(line)
            record = _record(line)
            if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
                raise ResultsUnusable(
                    f"{self.path}: line {number} is no annotated document. Name another file."
                )
            yield record["id"], _digest(record["text"])
        self._file.truncate(reached)

    def _open_rejects(self) -> Any:
        """Open the rejects, keeping those of documents in the file and dropping the others."""
        if self.rejects_path.exists():
            lines = self.rejects_path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if _record(line).get("document") in self._texts]
            if kept != lines:
                scratch = self.rejects_path.with_suffix(".tmp")
                scratch.write_bytes(b"".join(kept))
                os.replace(scratch, self.rejects_path)
        return self.rejects_path.open("ab")


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
