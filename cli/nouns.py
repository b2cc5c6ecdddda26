"""What commands ask of a knowledge base, here or elsewhere: a protocol for each noun, in the records of `kb`.

`KnowledgeBase` and its verb classes meet them in process (`cli.local`), clients of the API over HTTP (`cli.remote`).
A command takes a `Base` and does not know which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from cli.generator import StoringGenerator
    from kb.denials import DenialRecord
    from kb.diff import Diff
    from kb.documents import DocumentRecord
    from kb.impact import Impact
    from kb.records import (
        ChangeRecord,
        CorpusStats,
        Edit,
        FactRecord,
        FactTrace,
        GenerationRecord,
        Lookup,
        OutputTrace,
    )
    from kb.statistics import Statistics
    from kb.witness import AuditReport, Head


class Verbs(Protocol):
    """Of `KnowledgeBase`."""

    def facts(
        self,
        *,
        corpus: str | None = None,
        document_id: int | None = None,
        text: str | None = None,
        deleted: bool | None = False,
        after: int = 0,
        limit: int = 50,
    ) -> list[FactRecord]: ...

    def fact(self, fact_id: int) -> FactRecord: ...

    def update(self, fact_id: int, value: str, *, actor: str, reason: str) -> Edit: ...

    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit: ...

    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit: ...

    def corpora(self) -> list[CorpusStats]: ...

    def generations(self, after: int = 0, limit: int = 50) -> list[GenerationRecord]: ...

    def trace_output(self, generation_id: int) -> OutputTrace: ...

    def trace_fact(self, fact_id: int) -> FactTrace: ...


class Log(Protocol):
    """The change log and what follows from it."""

    def changes(
        self,
        after: int,
        limit: int,
        *,
        actor: str | None = None,
        kind: str | None = None,
        fact_id: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ChangeRecord]: ...

    def diff(self, first: int, last: int, *, corpus: str | None, after: int, limit: int) -> Diff: ...

    def denials(self, *, after: int, limit: int) -> list[DenialRecord]: ...

    def impact(self, fact_id: int) -> Impact: ...

    def verify(self, witnessed: Head | None) -> AuditReport: ...

    def head(self) -> dict[str, Any]: ...

    def export(self) -> Iterator[str]:
        """Lines: the signed head, then every change."""
        ...


class DocumentVerbs(Protocol):
    """Of `kb.documents.Documents`."""

    def find(
        self, *, corpus: str | None = None, replaced: bool = False, after: int = 0, limit: int = 50
    ) -> list[DocumentRecord]: ...

    def read(self, document_id: int) -> tuple[DocumentRecord, str]: ...


class Base(Protocol):
    """A knowledge base, here or elsewhere."""

    @property
    def server(self) -> str | None:
        """Its address, where it is elsewhere."""
        ...

    @property
    def kb(self) -> Verbs: ...

    @property
    def log(self) -> Log: ...

    @property
    def documents(self) -> DocumentVerbs: ...

    def actor(self, named: str | None) -> str:
        """Who an edit is recorded under; elsewhere "" where nobody is named: the key's own name."""
        ...

    def only_here(self, **given: object) -> None:
        """Refuse those of these options that are given, where they cannot be heeded elsewhere."""
        ...

    def use_checkpoint(self, path: Path | None) -> None:
        """Encode with this checkpoint, None: the settings' own. Elsewhere the server encodes with its own."""
        ...

    def insert(
        self,
        question: str,
        value: str,
        *,
        answer: str | None,
        actor: str,
        reason: str,
        allow_erased: bool,
        is_keyed: bool,
    ) -> tuple[Edit, bool]:
        """Add a fact and key it, unless it is not to be; and whether it has a key now."""
        ...

    def look_up(
        self, question: str, *, k: int, threshold: float | None, min_seq: int | None, as_of: int | None
    ) -> Lookup: ...

    def generator(
        self, checkpoint: Path | None, as_of: int | None
    ) -> AbstractContextManager[StoringGenerator]:
        """Decodes on this machine; looks up and stores in this base."""
        ...

    def statistics(self) -> Statistics: ...
