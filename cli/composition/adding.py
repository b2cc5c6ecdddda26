"""Adds raw documents to a corpus: reads, annotates, ingests and keys them, for the command line and for jobs."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.bulk.errands import keying_elsewhere
from colmlm.cli.composition.calibrating import AnswerCalibrating
from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import count_of, format_duration
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal
from colmlm.kb.corpus.raw.blocks import USUAL, FieldNames
from colmlm.kb.corpus.raw.reading import OnParsed, read_raw
from colmlm.kb.facts.corpora import DocumentStanding
from colmlm.kb.principal import scope_of_caller
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.kb.corpus.raw.files import FoundFiles
    from colmlm.kb.facts.records import IngestReport
    from colmlm.kb.keys.records import KeysetRecord
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.service import KnowledgeBase
    from colmlm.model.annotate.checks import RejectedAnnotation


# Documents of a transaction: an interruption loses at most their annotation, and until then none of them is found.
COMMIT_EVERY, COMMIT_EVERY_ASKED = 20, 4
MEASURED_DOCUMENTS, MEASURED_CHARACTERS = (
    8,
    8_000,
)  # annotated, and keyed of these, to tell how long the rest takes
WORTH_MEASURING, WORTH_TELLING = 50_000, 20.0  # bytes of files, and seconds

Load = Callable[
    [Callable[[], None]], Any
]  # loads an annotator, which calls what it is given while it works elsewhere


@dataclass(frozen=True, slots=True)
class AddedDocument:
    """A document that was added, and the numbers of its facts, of those with a question, and of rejected ones."""

    document: str
    title: str | None
    facts: int
    questions: int
    rejected: int


@dataclass(slots=True)
class AddingTally:
    """Counts of the documents that one run has added, refused and rejected so far.

    `to_try` has questions about their facts, each with the fact that answers it.
    """

    standings: Counter[DocumentStanding] = field(default_factory=Counter)
    characters: int = 0
    added: list[AddedDocument] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    to_try: list[QuestionToTry] = field(default_factory=list)


@dataclass(slots=True)
class Adding:
    """One run that adds the documents of found files to a corpus. Files in the folder `kept_in` are temporary, so their
    documents get no URI. Ids that are `taken` belong to documents of other files. `on_parsed` is called with a
    file's path and each `Parsed` of it, and `before_piece` before each piece of an ingest is stored.

    If it `asks`, its annotator also writes questions; if it `verifies` them, they get keys. The time for the rest is
    measured on the first documents, and noted if it is `worth_telling` seconds or more. `read` counts the bytes read,
    and `pending` has that count for each document that is still to be annotated. `tick` shows the progress.
    """

    runtime: Runtime
    corpus: str
    found: FoundFiles
    encoding: str | None = None
    fields: FieldNames = USUAL
    again: bool = False
    asks: bool = False
    verifies: bool = True
    kept_in: Path | None = None
    taken: frozenset[str] = frozenset()
    on_parsed: OnParsed | None = None
    before_piece: Callable[[], None] | None = None
    telling: Telling = field(kw_only=True)
    worth_telling: float = WORTH_TELLING
    tally: AddingTally = field(default_factory=AddingTally)
    read: int = 0
    pending: deque[int] = field(default_factory=deque)
    tick: Callable[[], None] = lambda: None

    def documents_to_annotate(self) -> Iterator[AnnotatedDocument]:
        """Read the documents to annotate: new ones, changed ones, and with `again` also unchanged ones."""
        standings = self.runtime.kb.corpora.standings(self.corpus)
        self.tally.refusals += self.found.refusals
        reached = 0

        def on_bytes(read: int) -> None:
            nonlocal reached
            reached = read
            self.tick()

        limits = self.runtime.settings.document
        reading = read_raw(
            self.found.files,
            encoding=self.encoding,
            fields=self.fields,
            limits=limits,
            on_bytes=on_bytes,
            taken=self.taken,
            on_parsed=self.on_parsed,
        )
        for parsed in reading:
            self.tally.refusals += parsed.refusals
            if parsed.document is not None:
                document = self._drop_upload_uri(parsed.document)
                standing = standings.standing_of(document)
                self.tally.standings[standing] += 1
                if standing is not DocumentStanding.unchanged or self.again:
                    self.tally.characters += len(document.text)
                    self.pending.append(self.read)
                    yield document
            self.read = reached

    @contextmanager
    def show_progress(self) -> Iterator[None]:
        """Show progress over the bytes of all files while the block runs."""
        total = self.size // 1000
        with self.telling.progress("Reading and annotating (KB)") as advance:
            self.tick = lambda: advance(self.bytes_done // 1000, total)
            yield

    @property
    def bytes_done(self) -> int:
        """The bytes of the files before the first document that is still to be annotated."""
        return self.pending[0] if self.pending else self.read

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.found.files)

    def count_work(self) -> None:
        """Read and count all documents to annotate, without annotating one."""
        with self.show_progress():
            for _ in self.documents_to_annotate():
                self.pending.clear()

    def _drop_upload_uri(self, document: AnnotatedDocument) -> AnnotatedDocument:
        if self.kept_in is None or not (document.uri or "").startswith(self.kept_in.as_uri()):
            return document
        return replace(document, uri=None)

    def annotate_documents(self, annotator: Any, documents: Iterator[AnnotatedDocument]) -> Iterator[Parsed]:
        """Annotate the documents, and yield each as `Parsed`, as an ingest takes it."""
        began, first = time.monotonic(), self.bytes_done
        measured: list[AnnotatedDocument] = []
        for reviewed in annotator.annotate(documents):
            self.pending.popleft()
            self.tick()
            document, rejected = _with_doubts(reviewed.document, reviewed.rejected), reviewed.rejected
            questions = [fact.question for fact in document.facts if fact.question]
            self.tally.to_try += questions_to_try(document)[: MOST_TO_TRY - len(self.tally.to_try)]
            self.tally.rejected.update(one.code for one in rejected)
            self.tally.added.append(
                AddedDocument(
                    document.external_id, document.title, len(document.facts), len(questions), len(rejected)
                )
            )
            yield Parsed(document)
            if len(measured) < MEASURED_DOCUMENTS:
                measured.append(document)
                if len(measured) == MEASURED_DOCUMENTS:
                    self._tell_time(measured, time.monotonic() - began, first)
        if 0 < len(measured) < MEASURED_DOCUMENTS:
            self._tell_time(measured, time.monotonic() - began, first)

    def _tell_time(self, documents: Sequence[AnnotatedDocument], seconds: float, first: int) -> None:
        """Note how long the rest takes, measured on these documents, whose files begin at byte `first`."""
        done = self.bytes_done - first
        if done <= 0 or self.size < WORTH_MEASURING or keying_elsewhere(self.runtime, None) is not None:
            return
        characters = sum(len(document.text) for document in documents) / done * (self.size - first)
        keying = _key_seconds_per_character(self.runtime.encoder, documents) * characters
        if (left := seconds / done * (self.size - self.bytes_done) + keying) >= self.worth_telling:
            self.telling.note(
                f"{self.size // 1000} KB: {format_duration(left)} left on this machine, "
                f"{format_duration(keying)} of them for keys."
            )

    def ingest(self, load: Load, **how: Any) -> IngestReport | None:
        """Ingest documents as they are annotated. Without documents to annotate, load no model and give None."""
        with self.show_progress():
            return self._ingest(load, **how)

    def _ingest(self, load: Load, **how: Any) -> IngestReport | None:
        wanted = self.documents_to_annotate()
        if (first := next(wanted, None)) is None:
            return None
        annotator = load(self.tick)
        committed: list[IngestReport] = []
        try:
            parsed = self.annotate_documents(annotator, chain([first], wanted))
            piece = COMMIT_EVERY_ASKED if self.asks else COMMIT_EVERY
            return self.runtime.kb.corpora.ingest(
                parsed,
                self.corpus,
                commit_every=piece,
                on_piece=committed.append,
                before_piece=self.before_piece,
                generated=True,
                **how,
            )
        except BaseException:  # also where it is interrupted: what is stored by then stays
            if committed:
                done = count_of(committed[-1].documents, "document", "are")
                self.telling.note(
                    f"{done} in {self.corpus!r}, without keys of facts. "
                    "Run the same command again to go on from there."
                )
            raise

    def key(self, *, changed: bool, **how: Any) -> KeysetRecord | None:
        """Make the keys that the corpus lacks, also after an interruption; give the keyset (None: no such corpus)."""
        kb = self.runtime.kb
        if all(known.corpus != self.corpus for known in kb.corpora.all()):
            return None
        active = next((keyset for keyset in kb.keysets.all() if keyset.state == "active"), None)
        if not changed and active is not None and active.num_unkeyed == 0:
            return active
        kinds = "context,question" if self.asks and self.verifies else "context"
        return key_everything(self.runtime, corpus=self.corpus, kinds=kinds, telling=self.telling, **how)

    def recalibrate_answers(self, kb: KnowledgeBase, *, changed: bool, **who: Unpack[OnRecord]) -> str | None:
        """Calibrate answers again if documents were added, and give a line that states the threshold; else None.

        The threshold is that of all corpora, so a caller with rights on some of them leaves it.
        """
        if not changed or scope_of_caller() is not None:
            return None
        return AnswerCalibrating(self.runtime, kb, self.telling).again(**who)

    def suggested_fact(self, keyset: KeysetRecord | None) -> int | None:
        """Give the id of a new fact that its own question finds; None if there is none or the keyset is not active."""
        if keyset is None or keyset.state != "active" or not self.tally.to_try:
            return None
        return answered_fact(self.runtime, self.corpus, self.tally.to_try)


def facts_ingested(report: IngestReport | None) -> dict[str, Any]:
    """Give an ingest's `seq` and its counts of facts added or left out, for JSON; None and 0 if there was no ingest."""
    names = ("facts", "still_deleted", "suppressed", "contradictions", "duplicates")
    return {name: getattr(report, name, 0) for name in names} | {"seq": report.seq if report else None}


def _key_seconds_per_character(encoder: Encoder, documents: Iterable[AnnotatedDocument]) -> float:
    """Measure how many seconds keys take per character of text, on the beginnings of these documents."""
    beginnings: list[AnnotatedDocument] = []
    characters = 0
    for document in documents:
        text = document.text[:MEASURED_CHARACTERS]
        facts = tuple(fact for fact in document.facts if fact.end <= len(text))
        if facts and characters < MEASURED_CHARACTERS:
            beginnings.append(replace(document, text=text, facts=facts))
            characters += len(text)
    if not beginnings:
        return 0.0
    encoder.encode_documents(beginnings[:1])  # the first pass of a model also prepares it
    began = time.monotonic()
    encoder.encode_documents(beginnings)
    return (time.monotonic() - began) / characters


def _with_doubts(document: AnnotatedDocument, rejected: Iterable[RejectedAnnotation]) -> AnnotatedDocument:
    """Set the `doubt` of each fact without a question to the code for which its question was rejected; else to None."""
    codes = {(one.start, one.end): one.code for one in rejected if one.question}
    facts = tuple(
        replace(fact, doubt=codes.get((fact.start, fact.end)) if fact.question is None else None)
        for fact in document.facts
    )
    return replace(document, facts=facts)


# A question to suggest after documents were added: one that was asked, and answered from the fact that it is
# about.

MOST_TO_TRY = 12
OF_A_DOCUMENT = 3
WORDS_BESIDE = 2  # in an answer, so many words more than twice those of its value


@dataclass(frozen=True, slots=True)
class QuestionToTry:
    """A question and the fact that answers it: in this document, from `start` to `end`, with this value."""

    question: str
    document: str
    start: int
    end: int
    value: str


def questions_to_try(document: AnnotatedDocument) -> list[QuestionToTry]:
    """List up to `OF_A_DOCUMENT` questions of a document's facts, the shortest first."""
    asked = [
        QuestionToTry(fact.question, document.external_id, fact.start, fact.end, fact.value)
        for fact in document.facts
        if fact.question is not None and fact.question.endswith("?")
    ]
    return sorted(asked, key=_num_words)[:OF_A_DOCUMENT]


def _num_words(one: QuestionToTry) -> int:
    return len(one.question.split())


def answered_fact(runtime: Runtime, corpus: str, to_try: Sequence[QuestionToTry]) -> int | None:
    """Ask the questions; give the id of the first fact that its own question finds, or None (also without a reader)."""
    from colmlm.model.lm.config import BaseNotFound, CheckpointError

    try:
        answers = runtime.answers
    except (CheckpointError, BaseNotFound):
        return None
    ranked = sorted(to_try, key=_num_words)
    found = (_fact_asked_for(answers.ask(one.question, nearest=0), corpus, one) for one in ranked)
    return next((fact_id for fact_id in found if fact_id is not None), None)


def is_short_answer(value: str, answer: str) -> bool:
    """Tell whether an answer contains the value, and beside it at most as many words plus `WORDS_BESIDE`."""
    return value in answer and len(answer.split()) <= 2 * len(value.split()) + WORDS_BESIDE


def _fact_asked_for(answer: Answer, corpus: str, asked: QuestionToTry) -> int | None:
    """Give the id of the asked fact if the answer overlaps its span and has its value in few words; else None."""
    source = answer.source
    if source is None or (source.corpus, source.external_id) != (corpus, asked.document):
        return None
    touches = source.start < asked.end and asked.start < source.end
    says = touches and is_short_answer(asked.value, answer.answer or "")
    return next((fact.fact_id for fact in answer.facts if says and fact.value == asked.value), None)
