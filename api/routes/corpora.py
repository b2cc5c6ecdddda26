"""Corpora: count them, delete the facts of one, and export one in the format of an ingest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from litestar import delete, get
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of
from colmlm.api.schema.schemas import Cursor, Limit, after_of, require_past, shown_to
from colmlm.api.wire.answers import Deleted, Page
from colmlm.api.wire.answers import cursor as cursor_of
from colmlm.api.wire.requests import Why
from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.kb.errors import CorpusNotFound
from colmlm.kb.facts.records import CorpusStats

JSON_LINES = "application/jsonl"

Name = Annotated[str, PathParameter(min_length=1, max_length=1000, description="The corpus")]
LiveOnly = Annotated[
    bool, QueryParameter(description="Only live facts that the text still says, as a training wants them")
]


class Deletion(Why, frozen=True, kw_only=True):
    """The reason for a deletion. With `dry_run` it only counts what would be deleted."""

    dry_run: bool = False


@get("/corpora", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_corpora(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[CorpusStats]:
    """List the corpora.

    In order of name, each with its numbers of documents, live facts, deleted facts and characters.
    """
    start, corpora = after_of(cursor, "corpora"), ports.kb.corpora.all()
    end = start + limit
    more = cursor_of("corpora", (end,)) if end < len(corpora) else None
    return Page(items=corpora[start:end], next=more)


@get("/corpora/{corpus:str}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_corpus(ports: FromPorts, corpus: Name) -> CorpusStats:
    """Count a corpus.

    Gives its numbers of documents, live facts, deleted facts and characters.
    """
    for stats in ports.kb.corpora.all():
        if stats.corpus == corpus:
            return stats
    raise CorpusNotFound(corpus)


@delete(
    "/corpora/{corpus:str}", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True
)
def delete_corpus(ports: FromPorts, request: WithToken, corpus: Name, data: JSONBody[Deletion]) -> Deleted:
    """Delete every live fact of a corpus.

    They are deleted in one change. The texts stay, and the facts can be restored.
    """
    return delete_of(ports, corpus, None, actor_of(request, data), data)


def delete_of(
    ports: FromPorts, corpus: str, external_ids: list[str] | None, actor: str, data: Deletion
) -> Deleted:
    """Deletes the live facts of these documents of a corpus, or of all its documents (None)."""
    documents, facts = ports.kb.corpora.count(corpus, external_ids)
    if data.dry_run:
        return Deleted(dry_run=True, documents=documents, facts=facts, seq=None)
    edit = ports.kb.corpora.delete(corpus, external_ids, actor=actor, reason=data.reason)
    seq = edit.seq if edit.fact_ids else None
    return Deleted(dry_run=False, documents=documents, facts=len(edit.fact_ids), seq=seq)


@get(
    "/corpora/{corpus:str}/export",
    opt=needs(Right.train, Lane.long_reads),
    responses=PROBLEMS,
    media_type=JSON_LINES,
    sync_to_thread=True,
)
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
