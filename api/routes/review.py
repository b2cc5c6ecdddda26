"""Review: the inbox of proposed facts, verdicts on facts, and where only accepted facts answer."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from colmlm.api.middleware.auth import CorpusLimit, Right, in_thread
from colmlm.api.ports import FromPorts
from colmlm.api.routes.parameters import Cursor, Limit, WithToken, after_of, edit_in_scope, shown_to
from colmlm.api.routes.responses import edit_result, on_record
from colmlm.api.wire import (
    MAX_FACTS_PER_EDIT,
    MAX_ID,
    EditResult,
    Id,
    InboxPage,
    Request,
    VerdictResult,
    Version,
    Why,
)
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.facts.records import ReviewVerdict

OfCorpus = Annotated[str | None, QueryParameter(max_length=1000, description="Only of this corpus")]
OfDocument = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only of this document")]
OfKind = Annotated[
    Literal["any", "cited", "doubted", "contradicting", "unasked"],
    QueryParameter(
        description="All; those that outputs cite; those that the annotator's check doubts; those of the 2,000 newest "
        "contradictions; or those without a question"
    ),
]


class FactVerdict(Request, frozen=True, kw_only=True):
    """A verdict on a fact, which counts while the fact has the version and the review that were read."""

    fact_id: Id
    verdict: Literal["accept", "reject", "propose"]
    version: Version
    review: Literal["proposed", "accepted", "rejected"] = "proposed"


class Verdicts(Why, frozen=True, kw_only=True):
    """Verdicts on facts, one each."""

    verdicts: Annotated[list[FactVerdict], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class ReviewLimit(Why, frozen=True, kw_only=True):
    """Choose whether only accepted facts answer: of a corpus, or in a keyset."""

    accepted_only: bool
    corpus: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    keyset_id: Id | None = None


@get("/review", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_proposed(
    ports: FromPorts,
    request: WithToken,
    corpus: OfCorpus = None,
    document_id: OfDocument = None,
    kind: OfKind = "any",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> InboxPage:
    """List proposed facts.

    Those first where most is at stake: cited ones by how often, then those that the annotator's own check doubts, those
    that contradict others, and the others by document and id. Each comes with what its document says around it, and
    with facts whose question has the same words. Facts are counted up to 10,000; where there are more, `is_exact` is
    false.
    """
    found = shown_to(request, ports).inbox(
        corpus=corpus, document_id=document_id, kind=kind, after=after_of(cursor, "review"), limit=limit
    )
    return InboxPage(
        items=list(found.items),
        next=None if found.next_after is None else cursor_of("review", (found.next_after,)),
        total=found.total,
        is_exact=found.is_exact,
        progress=found.progress,
    )


@post("/review/verdicts", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def settle(ports: FromPorts, request: WithToken, data: JSONBody[Verdicts]) -> VerdictResult:
    """Accept, reject or propose facts.

    Verdicts of one kind are one change. A rejected fact is deleted, and comes back with a restore or an undo. Where a
    fact was settled or edited since it was read, nothing is done to it, and `before` says what it is now.
    """
    edit_in_scope(ports, fact_ids=[one.fact_id for one in data.verdicts])
    judged = [ReviewVerdict(one.fact_id, one.verdict, one.version, one.review) for one in data.verdicts]
    done = ports.kb.review.settle(judged, **on_record(request, data))
    return VerdictResult(
        seqs=list(done.seqs),
        min_seq=max((*done.seqs, *(one.seq for one in done.before))),
        fact_ids=list(done.fact_ids),
        before=list(done.before),
    )


@post("/review/limits", status_code=200, **in_thread(Right.edit))
def limit_review(ports: FromPorts, request: WithToken, data: JSONBody[ReviewLimit]) -> EditResult:
    """Let only accepted facts answer.

    Those of a corpus, or all facts in a keyset, from this commit on and in every process; or again proposed ones too.
    """
    edit = ports.kb.review.limit(
        accepted_only=data.accepted_only,
        corpus=data.corpus,
        keyset_id=data.keyset_id,
        **on_record(request, data),
    )
    return edit_result(edit)


HANDLERS = (list_proposed, settle, limit_review)
