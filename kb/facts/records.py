"""Facts, edits and ingests as verbs take and tell them."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.kb.corpus.format import Refusal


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact to add that no document says."""

    question: str
    value: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit did: its change `seq` (pass it as `min_seq` to read it back) and the facts it touched.

    Where not all are `keyed`, lookups find the others after the next rekey.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A span that an ingest left out and redacted, since it says what was erased."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest took and what it refused. `seq` is the last of its changes, None where nothing changed.

    `still_deleted` are facts that the file names, and that were deleted before and stay so.

    `suppressed` spans were erased before and were left out; `suppressed_at` says where they are.
    """

    corpus: str
    documents: int
    facts: int
    unchanged: int
    replaced: int
    overlaps_resolved: int
    refusals: tuple[Refusal, ...]
    seq: int | None
    still_deleted: int = 0
    suppressed: int = 0
    suppressed_at: tuple[Suppressed, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The document a fact was read from, and where in it: ``document.text[start:end]``."""

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    revision: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FactRecord:
    """A fact as it stands: its live value (the last one where it is deleted, a mark where it is erased), its source.

    `withheld` says that a text of it is past and kept from who asks: marks stand for the value, null for the others.
    """

    fact_id: int
    value: str
    version: int
    question: str | None
    answer: str | None
    source: Source | None
    created_seq: int
    deleted_seq: int | None
    erased_seq: int | None = None
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class CorpusStats:
    corpus: str
    documents: int
    facts: int
    deleted: int
    characters: int
