"""Questions for the dense marks: written by several processes that share the accelerator, verified, and made tokens.

What a process writes is a file of documents, appended to batch by batch, so that one that was cut off goes on.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from colmlm.kb import interpreter
from colmlm.kb.answers.reading import Reader
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.lab.half_hour.places import (
    DEV,
    MARKED,
    QUESTIONS,
    READER,
    SCRATCH,
    Place,
    annotated,
    co_lmlm,
    scratch,
)
from colmlm.model.annotate.annotators import QuestionGenerator, SpannedText
from colmlm.model.annotate.checks import review
from colmlm.model.reader.reader import ExtractiveReader
from colmlm.model.reader.verification import DocumentVerifier, Verifier
from colmlm.model.training.shards import build_shards
from colmlm.model.training.start import tokenizer_of

AT_ONCE = 16  # documents whose questions are written together


def write_questions(place: Place) -> dict[str, int]:
    """Starts the writers and waits for them; gives counts of documents and of questions, written and kept."""
    writers = place.sizes.writers
    started = [
        subprocess.Popen(
            interpreter.command(
                "-m", "colmlm.lab.half_hour", "write", "--store", place.store, "--size", place.size,
                "--share", f"{share}/{writers}",
            )
        )
        for share in range(writers)
    ]  # fmt: skip
    if failed := [share for share, writer in enumerate(started) if writer.wait()]:
        raise RuntimeError(f"writers {failed} failed; the others' questions are kept, run the step again")
    written = [document for path in place.run("questions").glob("asked-*") for document in annotated(path)]
    facts = [fact for document in written for fact in document.facts]
    return {
        "documents": len(written),
        "facts": len(facts),
        "questions": sum(1 for fact in facts if fact.question),
        "paraphrased": sum(1 for fact in facts if fact.answer and fact.answer != fact.value),
    }


def write_share(place: Place, share: int, of: int) -> None:
    """Writes one process's questions, first for the texts that recall is measured on, and makes tokens of its texts."""
    sizes, folder = place.sizes, place.run("questions")
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(
        QuestionGenerator.load(
            place.run(f"released/{QUESTIONS}"), place.cache, batch_tokens=sizes.cache_tokens
        ),
        ExtractiveReader.load(place.run(f"released/{READER}"), place.cache),
        time.monotonic() + sizes.questions_minutes * 60,
    )
    measured = [_unasked(document) for document in place.texts(DEV, sizes.measured)[share::of]]
    writer.write(measured, folder / f"dev-{share}.jsonl")
    texts = place.texts(MARKED, sizes.documents)[share::of]
    out = folder / f"asked-{share}.jsonl"
    writer.write(texts[: sizes.asked], out)
    done = annotated(out) if out.is_file() else []
    _tokens(place, share, [*done, *texts[len(done) :]])


class Writer:
    """Writes questions until an instant of the monotonic clock; keeps those that lead the reader back to their span."""

    def __init__(self, generator: QuestionGenerator, reader: Reader, until: float) -> None:
        self.generator, self.verifier, self.until = generator, Verifier(reader), until

    def write(self, documents: Sequence[AnnotatedDocument], path: Path) -> None:
        """Appends the documents with their questions, beginning after those that the file holds."""
        begin = len(annotated(path)) if path.is_file() else 0
        with path.open("a") as out:
            for at in range(begin, len(documents), AT_ONCE):
                if time.monotonic() > self.until:
                    return
                asked = self._asked(documents[at : at + AT_ONCE])
                out.writelines(json.dumps(to_record(document)) + "\n" for document in asked)
                out.flush()

    def _asked(self, documents: Sequence[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
        """Yields the documents; facts that had a question keep it."""
        open_spans = [[fact for fact in document.facts if fact.question is None] for document in documents]
        written = self.generator.annotate(
            [
                SpannedText(document.text, [(fact.start, fact.end) for fact in spans], document.title)
                for document, spans in zip(documents, open_spans, strict=True)
            ]
        )
        for document, spans, questions in zip(documents, open_spans, written, strict=True):
            found = {
                span.start: replace(span, question=one.question, answer=one.answer)
                for span, one in zip(spans, questions, strict=True)
                if one is not None
            }
            facts = tuple(found.get(fact.start, fact) for fact in document.facts)
            sound = {fact.start: fact for fact in review(replace(document, facts=facts)).document.facts}
            verified = self.verifier.of(document)
            yield replace(
                document,
                facts=tuple(
                    _kept(sound[fact.start], verified)
                    if fact.start in found and fact.start in sound
                    else fact
                    for fact in document.facts
                ),
            )


def _kept(fact: FactSpan, verified: DocumentVerifier) -> FactSpan:
    """Takes a question back that does not lead the reader to its fact."""
    is_good = fact.question is None or verified(fact) is None
    return fact if is_good else replace(fact, question=None, answer=None)


def _unasked(document: AnnotatedDocument) -> AnnotatedDocument:
    return replace(
        document, facts=tuple(replace(fact, question=None, answer=None) for fact in document.facts)
    )


def _tokens(place: Place, share: int, documents: Sequence[AnnotatedDocument]) -> None:
    """Makes shards of the documents for each method that is trained on them."""
    for config in (co_lmlm(place.sizes), scratch(place.sizes, SCRATCH[1])):
        target = place.run("questions") / f"shards-{config.method}-{share}"
        tokenizer = tokenizer_of(config, place.cache)
        for _ in build_shards(documents, target, tokenizer, config):
            pass
