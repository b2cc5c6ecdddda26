"""Corpora and their documents: count, read, ingest, delete and export them, and say how long they are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post, put
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import (
    Corpus,
    Cursor,
    Limit,
    PathId,
    WithToken,
    after_of,
    edit_in_scope,
    page,
    require_past,
    shown_to,
    time_of,
)
from colmlm.api.routes.responses import key_at_once, on_record
from colmlm.api.wire import Deleted, DocumentText, Page, Request, Why
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.corpus.format import AnnotatedDocument, Refusal, parse_record, to_record
from colmlm.kb.errors import refusals
from colmlm.kb.facts.records import CorpusStats, DocumentRecord, FactRecord
from colmlm.kb.log.records import OnRecord
from colmlm.kb.removal.holds import Retention
from colmlm.kb.removal.records import RetentionPlan, RetentionRule, RetentionTerms

JSON_LINES = "application/jsonl"

Name = Annotated[str, PathParameter(min_length=1, max_length=1000, description="The corpus")]
LiveOnly = Annotated[
    bool, QueryParameter(description="Only live facts that the text still says, as a training wants them")
]
State = Annotated[
    Literal["live", "deleted", "all"],
    QueryParameter(
        name="state", description="Which facts: the live ones, those that were deleted or erased, or both"
    ),
]
DELETED = {"live": False, "deleted": True, "all": None}


class Deletion(Why, frozen=True, kw_only=True):
    """The reason for a deletion. With `dry_run` it only counts what would be deleted."""

    dry_run: bool = False


@get("/corpora", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_corpora(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[CorpusStats]:
    """List the corpora.

    In order of name, each with its numbers of documents, live facts, deleted facts and characters.
    """
    start, corpora = after_of(cursor, "corpora"), ports.kb.corpora.all()
    end = start + limit
    more = cursor_of("corpora", (end,)) if end < len(corpora) else None
    return Page(items=corpora[start:end], next=more)


@get("/corpora/{corpus:str}", **in_thread(Right.read, scoped=CorpusLimit.rows))
def read_corpus(ports: FromPorts, corpus: Name) -> CorpusStats:
    """Count a corpus.

    Gives its numbers of documents, live facts, deleted facts and characters.
    """
    for stats in ports.kb.corpora.all():
        if stats.corpus == corpus:
            return stats
    raise refusals.corpus_not_found(corpus)


@delete("/corpora/{corpus:str}", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def delete_corpus(ports: FromPorts, request: WithToken, corpus: Name, data: JSONBody[Deletion]) -> Deleted:
    """Delete every live fact of a corpus.

    They are deleted in one change. The texts stay, and the facts can be restored.
    """
    edit_in_scope(ports, corpus=corpus)
    return delete_of(ports, corpus, None, on_record(request, data), data)


def delete_of(
    ports: FromPorts, corpus: str, external_ids: list[str] | None, signed: OnRecord, data: Deletion
) -> Deleted:
    """Delete the live facts of these documents of a corpus (None: of all its documents), or count them in a dry run."""
    documents, facts = ports.kb.corpora.count(corpus, external_ids)
    if data.dry_run:
        return Deleted(dry_run=True, documents=documents, facts=facts, seq=None)
    edit = ports.kb.corpora.delete(corpus, external_ids, **signed)
    seq = edit.seq if edit.fact_ids else None
    return Deleted(dry_run=False, documents=documents, facts=len(edit.fact_ids), seq=seq)


@get("/corpora/{corpus:str}/export", media_type=JSON_LINES, **in_thread(Right.train, Limiter.long_reads))
def export_corpus(ports: FromPorts, request: WithToken, corpus: Name, live_only: LiveOnly = False) -> Stream:
    """Export a corpus.

    JSON Lines, one document per line, in the format that an ingest takes, with every fact, also corrected and deleted
    ones. That needs the right `audit`. Without it `live_only` is required, and the values that facts no longer have are
    masked.
    """
    if not live_only:
        require_past(request)
    documents = (
        shown_to(request, ports).export(corpus)
        if live_only
        else ports.kb.corpora.export(corpus, live_only=False)
    )
    return Stream(_lines(documents), media_type=JSON_LINES)


def _lines(documents: Iterator[AnnotatedDocument]) -> Iterator[str]:
    for document in documents:
        yield json.dumps(to_record(document), ensure_ascii=False) + "\n"


# Retention: after how many days the documents of a corpus go.

Days = Annotated[int, Meta(ge=1, le=36_500, description="After so many days")]
Moment = Annotated[str | None, QueryParameter(max_length=100, description="As of this time; none: now")]
TriedDays = Annotated[int | None, QueryParameter(ge=1, le=36_500, description="Of a rule to try")]
TriedAction = Annotated[Literal["delete", "erase"], QueryParameter(description="Of a rule to try")]
TriedStart = Annotated[Literal["seen", "date"], QueryParameter(description="Of a rule to try")]


class NewRetentionRule(Why, frozen=True, kw_only=True):
    """A rule: documents go after so many `days`, by this `action`.

    `counts_from`: "seen" counts from when a document was added or last found unchanged, "date" from its own date, which
    its `revision` begins with, and else as "seen".
    """

    days: Days
    action: Literal["delete", "erase"]
    counts_from: Literal["seen", "date"] = "seen"


@get("/retention-rules", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_retention_rules(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[RetentionRule]:
    """List the retention rules.

    In order of their corpora, which have one at most.
    """
    start, rules = after_of(cursor, "retention rules"), Retention(ports.kb).rules()
    end = start + limit
    more = cursor_of("retention rules", (end,)) if end < len(rules) else None
    return Page(items=rules[start:end], next=more)


@get("/corpora/{corpus:str}/retention", **in_thread(Right.audit, Limiter.long_reads))
def read_retention(
    ports: FromPorts,
    corpus: Name,
    now: Moment = None,
    days: TriedDays = None,
    action: TriedAction = "delete",
    counts_from: TriedStart = "seen",
    limit: Limit = 50,
) -> RetentionPlan:
    """Read what a retention rule does.

    Gives the rule of the corpus, or one to try where `days` is given, how many documents it would take now, the first
    of them, and when the next one goes. Changes nothing.
    """
    terms: RetentionTerms | None = None
    if days is not None:
        terms = {"days": days, "action": action, "counts_from": counts_from}
    return Retention(ports.kb).plan(corpus, now=time_of("now", now), terms=terms, limit=limit)


@put("/corpora/{corpus:str}/retention", **in_thread(Right.admin))
def set_retention(
    ports: FromPorts, request: WithToken, corpus: Name, data: JSONBody[NewRetentionRule]
) -> RetentionRule:
    """Set the retention rule of a corpus.

    A worker carries it out from now on, in place of the one before. What a hold keeps stays.
    """
    terms: RetentionTerms = {"days": data.days, "action": data.action, "counts_from": data.counts_from}
    return Retention(ports.kb).set_rule(corpus, **terms, **on_record(request, data))


@delete("/corpora/{corpus:str}/retention", status_code=200, **in_thread(Right.admin))
def end_retention(ports: FromPorts, request: WithToken, corpus: Name, data: JSONBody[Why]) -> RetentionRule:
    """End the retention rule of a corpus.

    Its documents stay from now on. Gives the rule as it was.
    """
    return Retention(ports.kb).end_rule(corpus, **on_record(request, data))


# Documents: the texts that facts were read from.

MAX_DOCUMENTS = 100  # per request; a job takes more

Replaced = Annotated[
    bool, QueryParameter(description="Those that a newer text replaced, not the current ones")
]
Words = Annotated[str, Meta(min_length=1, max_length=10_000)]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class NewSpan(Request, frozen=True, kw_only=True):
    """A fact of a document: the text from `start` to `end`, in Unicode code points, is its value."""

    start: Offset
    end: Offset
    value: Words
    question: Words | None = None
    answer: Words | None = None


class NewDocument(Request, frozen=True, kw_only=True):
    """A text and the facts in it. `id` is its name within the corpus."""

    id: Annotated[str, Meta(min_length=1, max_length=1000)]
    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    facts: Annotated[list[NewSpan], Meta(max_length=10_000)] = msgspec.field(default_factory=list)
    title: Words | None = None
    uri: Words | None = None
    licence: Words | None = None
    revision: Words | None = None


class NewDocuments(Why, frozen=True, kw_only=True):
    """Documents to ingest into a corpus in one change. `allow_erased` accepts facts that were erased before."""

    corpus: Annotated[str, Meta(min_length=1, max_length=1000)]
    documents: Annotated[list[NewDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    allow_erased: bool = False


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ingest. `documents` are new or have a new text (`replaced`), and `facts` are new.

    `still_deleted` facts were deleted before and stay deleted; `suppressed` ones were erased before and are left out.
    `contradictions` and `duplicates` count pairs of a new fact with one that answers the same question.
    `seq` is the change, null where nothing changed. `keyed` says whether lookups find every fact now.
    """

    corpus: str
    documents: int
    facts: int
    unchanged: int
    replaced: int
    still_deleted: int
    suppressed: int
    contradictions: int
    duplicates: int
    refusals: list[Refusal]
    seq: int | None
    keyed: bool


@get("/documents", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_documents(
    ports: FromPorts,
    request: WithToken,
    corpus: Corpus = None,
    replaced: Replaced = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[DocumentRecord]:
    """List documents.

    In order of id, without their texts.
    """
    after = after_of(cursor, "documents")
    found = ports.kb.documents.find(corpus=corpus, replaced=replaced, after=after, limit=limit + 1)
    found = shown_to(request, ports).documents(found)
    return page(found, limit, "documents", lambda document: (document.document_id,))


@get("/documents/{document_id:int}", **in_thread(Right.read, scoped=CorpusLimit.rows))
def read_document(ports: FromPorts, request: WithToken, document_id: PathId) -> DocumentText:
    """Read a document.

    Gives its text and where it came from. A replaced text is kept as evidence. Without the right `audit`, values that
    its facts no longer have are masked, and so is all of a replaced text; the digest is of the text as it is shown.
    """
    document, text = shown_to(request, ports).document(document_id)
    return DocumentText(document=document, text=text)


@get("/documents/{document_id:int}/facts", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_document_facts(
    ports: FromPorts,
    request: WithToken,
    document_id: PathId,
    which: State = "live",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[FactRecord]:
    """List a document's facts.

    In order of id; `source` gives each fact's offsets in the text. Deleted facts need the right `audit`.
    """
    if which != "live":
        require_past(request)
    after = after_of(cursor, "document facts")
    found = ports.kb.documents.facts(document_id, deleted=DELETED[which], after=after, limit=limit + 1)
    found = shown_to(request, ports).facts(found)
    return page(found, limit, "document facts", lambda fact: (fact.fact_id,))


@post("/documents", **in_thread(Right.edit, scoped=CorpusLimit.targets))
def ingest_documents(ports: FromPorts, request: WithToken, data: JSONBody[NewDocuments]) -> Ingested:
    """Take annotated documents into a corpus.

    A document whose id exists with another text replaces it; one with the same text changes nothing. A document or fact
    that fails a check is refused with its place and the reason, and the rest is taken.
    """
    edit_in_scope(ports, corpus=data.corpus)
    records: list[dict[str, Any]] = [msgspec.to_builtins(document) for document in data.documents]
    parsed = (parse_record(record, f"document {n}") for n, record in enumerate(records))
    report = ports.kb.corpora.ingest(
        parsed, data.corpus, **on_record(request, data), allow_erased=data.allow_erased
    )
    return Ingested(
        corpus=report.corpus,
        documents=report.documents,
        facts=report.facts,
        unchanged=report.unchanged,
        replaced=report.replaced,
        still_deleted=report.still_deleted,
        suppressed=report.suppressed,
        contradictions=report.contradictions,
        duplicates=report.duplicates,
        refusals=list(report.refusals),
        seq=report.seq,
        keyed=report.facts == 0 or key_at_once(ports, _facts_of(ports, data)),
    )


def _facts_of(ports: Ports, data: NewDocuments) -> list[int]:
    return ports.kb.facts.ids_of(data.corpus, [document.id for document in data.documents])


@delete("/documents/{document_id:int}", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def delete_document(
    ports: FromPorts, request: WithToken, document_id: PathId, data: JSONBody[Deletion]
) -> Deleted:
    """Delete every live fact of a document.

    The facts of all texts it has had are deleted in one change. The texts stay, and the facts can be restored.
    """
    document, _ = ports.kb.documents.read(document_id)
    edit_in_scope(ports, document_id=document_id)
    return delete_of(ports, document.corpus, [document.external_id], on_record(request, data), data)


HANDLERS = (
    list_retention_rules,
    read_retention,
    set_retention,
    end_retention,
    list_corpora,
    read_corpus,
    delete_corpus,
    export_corpus,
    list_documents,
    read_document,
    list_document_facts,
    ingest_documents,
    delete_document,
)
