"""The verbs of facts, outputs, documents and corpora."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from colmlm.kb.corpus.raw.blocks import USUAL, Fields

if TYPE_CHECKING:
    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.kb.corpus.raw.files import FoundFiles
    from colmlm.kb.evidence.provenance import ProvForm
    from colmlm.kb.evidence.records import (
        FactTrace,
        Feedback,
        GenerationRecord,
        Impact,
        NewFeedback,
        NewOutput,
        OutputTrace,
        Thumb,
    )
    from colmlm.kb.facts.records import (
        CorpusStats,
        Correcting,
        CorrectingOne,
        Correction,
        DocumentRecord,
        Edit,
        FactPage,
        FactRecord,
        FactSearch,
        FactsSought,
        Ingesting,
        IngestReport,
        MarkedAddition,
        Marking,
        Moving,
        Proposing,
    )
    from colmlm.kb.log.records import OnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAddition:
    """How raw documents are read, annotated and taken into a corpus.

    With `again` unchanged documents are annotated once more. `span_annotator` and `question_generator` are directories
    (None: the released ones); with `questions` every fact gets one, which is dropped where with `verify` the reader
    does not come back to the fact by it. `fields` says what the fields of records are named.
    """

    encoding: str | None = None
    fields: Fields = USUAL
    questions: bool = False
    verify: bool = True
    span_threshold: float | None = None
    span_annotator: Path | None = None
    question_generator: Path | None = None
    again: bool = False
    allow_erased: bool = False
    dry_run: bool = False


class FactVerbs(Protocol):
    """What facts can be asked for, as `kb.facts.facts.Facts` describes it."""

    def find(self, **sought: Unpack[FactsSought]) -> list[FactRecord]: ...

    def search(self, *, near: str | None = None, **sought: Unpack[FactSearch]) -> FactPage:
        """Searches facts as `kb.facts.facts.Facts` does; with `near`, those whose keys are nearest to a question."""
        ...

    def show(self, fact_id: int) -> FactRecord: ...

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]: ...

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Proposing]) -> Edit:
        """Adds a fact that no document says. Where `keyed`, makes its key from the question too."""
        ...

    def add_to(
        self, document_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[MarkedAddition]
    ) -> Edit: ...

    # Where `keyed`, the next four make the keys that they dropped.

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        keyed: bool = True,
        **how: Unpack[CorrectingOne],
    ) -> Edit: ...

    def edit_many(
        self, corrections: Sequence[Correction], *, keyed: bool = True, **how: Unpack[Correcting]
    ) -> Edit: ...

    def move(self, fact_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[Moving]) -> Edit: ...

    def undo(self, seq: int, *, keyed: bool = True, actor: str, reason: str) -> Edit: ...

    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit: ...

    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit: ...


class OutputVerbs(Protocol):
    """What stored outputs can be asked for, as `kb.evidence.outputs.Outputs` describes it."""

    def find(self, after: int = 0, limit: int = 50, thumb: Thumb | None = None) -> list[GenerationRecord]: ...

    def give_feedback(self, generation_id: int, made: NewFeedback, *, actor: str) -> Feedback:
        """Keeps what somebody says of an output."""
        ...

    def trace(self, generation_id: int) -> OutputTrace: ...

    def trace_fact(self, fact_id: int) -> FactTrace: ...

    def provenance(self, generation_id: int, form: ProvForm) -> dict[str, Any]: ...

    def provenance_of_fact(self, fact_id: int, form: ProvForm) -> dict[str, Any]: ...

    def impact(self, fact_id: int) -> Impact: ...

    def record_from_elsewhere(self, generation: NewOutput) -> OutputTrace:
        """Stores an output that a decoder of another process made."""
        ...


class DocumentVerbs(Protocol):
    """What documents can be asked for, as `kb.facts.corpora.StoredDocuments` describes it."""

    def find(
        self, *, corpus: str | None = None, replaced: bool = False, after: int = 0, limit: int = 50
    ) -> list[DocumentRecord]: ...

    def read(self, document_id: int) -> tuple[DocumentRecord, str]: ...


class CorpusVerbs(Protocol):
    """What whole corpora can be asked for. `documents` are the external ids of some of a corpus (None: all)."""

    def all(self) -> list[CorpusStats]: ...

    def count(self, corpus: str, documents: Sequence[str] | None) -> tuple[int, int]:
        """Counts the documents and live facts that a deletion would concern."""
        ...

    def delete(self, corpus: str, documents: Sequence[str] | None, *, actor: str, reason: str) -> Edit: ...

    def export(self, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]: ...

    def ingest(
        self, file: Path, format_: str, corpus: str, **how: Unpack[Ingesting]
    ) -> tuple[IngestReport, int]:
        """Ingests a file. Gives the report and the number of refusals; a server's report lists the first hundred."""
        ...

    def add(
        self, found: FoundFiles, corpus: str, how: RawAddition, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        """Annotates raw documents, ingests and keys them. Gives what `colmlm corpus add --json` prints."""
        ...
