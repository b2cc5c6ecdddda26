"""Facts: list, read, edit, compare and repair them. Every edit takes a reason and is one change in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from colmlm.api.middleware.auth import CorpusLimit, Right, in_thread
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import (
    Corpus,
    Cursor,
    Limit,
    OfDocument,
    PathId,
    WithToken,
    after_of,
    edit_in_scope,
    require_shown,
    shown_to,
    time_of,
)
from colmlm.api.routes.responses import (
    answer_edit,
    edit_result,
    encode_trace,
    key_and_answer,
    on_record,
    plan_deletion,
)
from colmlm.api.wire import (
    MAX_FACTS_PER_EDIT,
    CountedPage,
    EditResult,
    Id,
    Question,
    Request,
    T,
    Value,
    Version,
    Why,
)
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.evidence.provenance import fact_account
from colmlm.kb.evidence.records import FactTrace
from colmlm.kb.facts.records import (
    AlsoSaid,
    ComparedCounts,
    FactDraft,
    FactEdit,
    FactFound,
    FactPage,
    FactPair,
    FactRecord,
    FactSearch,
    Marking,
    PairPage,
    StaleFact,
    StalePage,
)
from colmlm.kb.lookup.options import NEAREST, every_fact_in_scope
from colmlm.kb.principal import as_service


class NewFact(Why, frozen=True, kw_only=True):
    """A fact without a document, keyed from its question. Where it is `proposed`, somebody else is to accept it.

    `allow_erased` accepts one that was erased before, `anyway` one whose question another fact answers otherwise.
    """

    question: Question
    value: Value
    answer: Value | None = None
    proposed: bool = False
    allow_erased: bool = False
    anyway: bool = False


class NewValue(Why, frozen=True, kw_only=True):
    """The new value of a fact, its new question, or both. Null leaves either as it is.

    `anyway` accepts what another fact contradicts.
    """

    value: Value | None = None
    question: Question | None = None
    version: Version | None = None
    anyway: bool = False


class OneFact(Why, frozen=True, kw_only=True):
    """The reason for deleting a fact. With `abstain`, queries nearest to it get no match."""

    abstain: bool = False


class FactSet(Why, frozen=True, kw_only=True):
    """Facts to restore, all or none."""

    fact_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class FactsToRead(Request, frozen=True, kw_only=True):
    """Facts by their ids, in the order in which they are answered."""

    fact_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class DeletedSet(FactSet, frozen=True, kw_only=True):
    """Facts to delete, all or none. With `abstain`, queries nearest to one get no match instead of the runner-up.

    A `dry_run` deletes nothing, and tells which other facts say the same.
    """

    abstain: bool = False
    dry_run: bool = False


@get("/facts/{fact_id:int}", **in_thread(Right.read, scoped=CorpusLimit.rows))
def read_fact(ports: FromPorts, request: WithToken, fact_id: PathId) -> FactRecord:
    """Read a fact.

    Gives its present state, deleted or not. Its earlier values need the right `audit`; `withheld` says that they were
    left out.
    """
    return shown_to(request, ports).fact(fact_id)


@post("/facts/read", status_code=200, **in_thread(Right.read, scoped=CorpusLimit.rows))
def read_facts(ports: FromPorts, request: WithToken, data: JSONBody[FactsToRead]) -> list[FactRecord]:
    """Read many facts.

    In the order they are asked for, each as `GET /v1/facts/{fact_id}` reads it; all of them, or none.
    """
    return shown_to(request, ports).facts(ports.kb.facts.show_many(data.fact_ids))


@get("/facts/{fact_id:int}/trace", **in_thread(Right.read, scoped=CorpusLimit.rows))
def trace_fact(ports: FromPorts, request: WithToken, fact_id: PathId) -> Response[FactTrace]:
    """Read a fact's history.

    Gives its source sentence, every value it has had and when, its changes, and the stored outputs that used it.
    Without the right `audit`, its earlier values are masked. `Accept: application/ld+json` gives it in the terms of W3C
    PROV as JSON-LD, `application/provenance+json` as PROV-JSON.
    """
    return encode_trace(ports, request, shown_to(request, ports).trace_fact(fact_id), fact_account)


@post("/facts", **in_thread(Right.edit))
def insert_fact(ports: FromPorts, request: WithToken, data: JSONBody[NewFact]) -> EditResult:
    """Add a fact that no document says.

    If the server has an encoder, lookups find it at once; otherwise `keyed` is false and it waits for a rekey. Where
    another fact answers its question otherwise it is refused with 409, which names that fact.
    """
    edit = ports.kb.facts.add(
        data.question,
        data.value,
        answer=data.answer,
        proposed=data.proposed,
        **on_record(request, data),
        allow_erased=data.allow_erased,
        anyway=data.anyway,
    )
    return key_and_answer(ports, edit)


@patch("/facts/{fact_id:int}", **in_thread(Right.edit, scoped=CorpusLimit.targets))
def update_fact(
    ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[NewValue]
) -> EditResult:
    """Edit a fact's value or question.

    Every process uses the new value from this commit on, and no longer finds the fact by its former question. The text
    of the fact's document does not change.
    """
    edit_in_scope(ports, fact_ids=[fact_id])
    edit = ports.kb.facts.edit(
        fact_id,
        data.value,
        question=data.question,
        version=data.version,
        **on_record(request, data),
        anyway=data.anyway,
    )
    return answer_edit(ports, edit)


@delete("/facts", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def delete_facts(ports: FromPorts, request: WithToken, data: JSONBody[DeletedSet]) -> EditResult:
    """Delete facts.

    All of them or none. The deletion takes effect at once in every process, and can be undone.
    """
    edit_in_scope(ports, fact_ids=data.fact_ids)
    if data.dry_run:
        return plan_deletion(ports, data.fact_ids)
    return edit_result(ports.kb.facts.delete(data.fact_ids, **on_record(request, data), abstain=data.abstain))


@delete("/facts/{fact_id:int}", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def delete_fact(ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[OneFact]) -> EditResult:
    """Delete one fact.

    The deletion takes effect at once in every process, and can be undone.
    """
    edit_in_scope(ports, fact_ids=[fact_id])
    return edit_result(ports.kb.facts.delete([fact_id], **on_record(request, data), abstain=data.abstain))


@post("/facts/restore", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def restore_facts(ports: FromPorts, request: WithToken, data: JSONBody[FactSet]) -> EditResult:
    """Bring deleted facts back.

    All of them or none, with their last values.
    """
    edit_in_scope(ports, fact_ids=data.fact_ids)
    edit = ports.kb.facts.restore(data.fact_ids, **on_record(request, data))
    return key_and_answer(ports, edit)  # a keyset made while they were deleted lacks their keys


# Lists facts: searched by their texts or by meaning, filtered, sorted and counted.

Text = Annotated[
    str | None,
    QueryParameter(
        max_length=1000, description="Its words are in the value, the question, or the sentence or title"
    ),
]
Literally = Annotated[
    bool, QueryParameter(description="Find the text as it stands, in value or question, and nothing else")
]
Near = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=1000, description="A question: the live facts whose keys are nearest to it"
    ),
]
WhichState = Annotated[
    Literal["live", "deleted", "erased", "all"],
    QueryParameter(
        name="state", description="The live ones, those that were deleted or erased, those erased, or all"
    ),
]
ByActor = Annotated[
    str | None, QueryParameter(max_length=200, description="Only what this person or token added or edited")
]
ByKind = Annotated[
    str | None,
    QueryParameter(max_length=100, description="Only what a change of this kind added or edited"),
]
Since = Annotated[
    str | None,
    QueryParameter(format="date-time", description="Only what was added or edited from this time on"),
]
Until = Annotated[
    str | None,
    QueryParameter(format="date-time", description="Only what was added or edited up to this time"),
]
Sort = Annotated[
    Literal["best", "id", "newest"],
    QueryParameter(description="Best first (without a text or question by id), by id, or newest first"),
]

OfReview = Annotated[
    Literal["proposed", "accepted", "rejected"] | None,
    QueryParameter(
        description="Only facts with this review; rejected ones are deleted, so ask for those too"
    ),
]


@get("/facts", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_facts(
    ports: FromPorts,
    request: WithToken,
    text: Text = None,
    literally: Literally = False,
    near: Near = None,
    corpus: Corpus = None,
    document_id: OfDocument = None,
    which: WhichState = "live",
    actor: ByActor = None,
    kind: ByKind = None,
    since: Since = None,
    until: Until = None,
    review: OfReview = None,
    sort: Sort = "best",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> CountedPage[FactFound]:
    """List facts.

    Those that fit every filter. `found` says where the words of `text` are. Facts are counted up to 10,000, by a text
    counted and listed up to 2,000; where there are more, `is_exact` is false. Deleted facts, and filters by changes
    (`actor`, `kind`, `since`, `until`), need the right `audit`.
    """
    sought: FactSearch = {
        "text": text,
        "literally": literally,
        "corpus": corpus,
        "document_id": document_id,
        "state": which,
        "actor": actor,
        "kind": kind,
        "since": time_of("since", since),
        "until": time_of("until", until),
        "review": review,
        "sort": sort,
        "after": after_of(cursor, "facts"),
        "limit": limit,
    }
    require_shown(request, sought)
    found = shown_to(request, ports).search(nearest=nearest(ports, near, sought), **sought)
    return _count_page(found.facts, found, "facts")


def nearest(ports: Ports, question: str | None, sought: FactSearch) -> list[int] | None:
    """Give the ids of live facts nearest to a question (None: no question). Raise `ModelMissing` without an encoder."""
    said = (question, sought.get("actor"), sought.get("kind"), sought.get("corpus"))
    if any("\x00" in text for text in said if text is not None):
        raise InvalidQuery("the text holds a NUL character. Remove it")
    if question is None:
        return None
    if sought.get("text"):
        raise InvalidQuery("it has both a text and a fact to be near. Give one of them")
    asked, every_fact = question, every_fact_in_scope()
    with as_service():  # an index is of all corpora; the filter is not
        (ranking,) = ports.ask_with_encoder(
            lambda encoder: ports.kb.lookups.nearest(
                encoder.encode_questions([asked]),
                checkpoint_id=encoder.checkpoint.checkpoint_id,
                k=NEAREST,
                fact_filter=every_fact,
            )
        )
    return [hit.fact_id for hit in ranking.hits]


# Comparisons: list facts that contradict, say the same or are stale, and note that both of two are right.

OnlyNoted = Annotated[
    bool,
    QueryParameter(description="Only those of which somebody said that both are right; else only the others"),
]


class BothRight(Why, frozen=True, kw_only=True):
    """Two facts that contradict each other and are both right; without `both_right` that is taken back."""

    fact_ids: Annotated[list[Id], Meta(min_length=2, max_length=2)]
    both_right: bool = True


@get("/facts/contradictions", **in_thread(Right.read))
def list_contradictions(
    ports: FromPorts,
    request: WithToken,
    corpus: Corpus = None,
    noted: OnlyNoted = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> CountedPage[FactPair]:
    """List contradictions.

    Pairs of live facts that answer one question with two values, as edits and the job `compare` found them, counted up
    to 10,000. `answering` is the fact that answers.
    """
    after = after_of(cursor, "contradictions")
    found = shown_to(request, ports).pairs(
        "contradictions", corpus=corpus, noted=noted, after=after, limit=limit
    )
    return _count_page(found.pairs, found, "contradictions")


@get("/facts/duplicates", **in_thread(Right.read))
def list_duplicates(
    ports: FromPorts, request: WithToken, corpus: Corpus = None, cursor: Cursor = None, limit: Limit = 50
) -> CountedPage[FactPair]:
    """List duplicates.

    Pairs of live facts that answer one question with the same value.
    """
    after = after_of(cursor, "duplicates")
    found = shown_to(request, ports).pairs("duplicates", corpus=corpus, after=after, limit=limit)
    return _count_page(found.pairs, found, "duplicates")


@get("/facts/stale", **in_thread(Right.read))
def list_stale_facts(
    ports: FromPorts, request: WithToken, corpus: Corpus = None, cursor: Cursor = None, limit: Limit = 50
) -> CountedPage[StaleFact]:
    """List stale facts.

    Live facts whose document has a newer text: those restored since (`replaced`), or corrected before.
    """
    found = shown_to(request, ports).stale(corpus=corpus, after=after_of(cursor, "stale"), limit=limit)
    return _count_page(found.facts, found, "stale")


@get("/facts/compared", **in_thread(Right.read))
def count_compared(ports: FromPorts) -> ComparedCounts:
    """Count contradictions, duplicates and stale facts.

    None of them is counted beyond 10,000.
    """
    return ports.kb.comparisons.counts()


@post("/facts/also-said", status_code=200, **in_thread(Right.read))
def read_also_said(ports: FromPorts, data: JSONBody[FactsToRead]) -> list[AlsoSaid]:
    """Read which other facts say the same.

    Of facts that may be deleted: those of them that others, which are not among them, say too.
    """
    return ports.kb.comparisons.also_said(data.fact_ids)


@post("/facts/contradictions", status_code=200, **in_thread(Right.edit))
def note_both_right(ports: FromPorts, request: WithToken, data: JSONBody[BothRight]) -> EditResult:
    """Note that two facts are both right.

    They are no contradiction any more, until one of them is edited; the nearer one answers.
    """
    one, other = data.fact_ids
    signed = on_record(request, data)
    return edit_result(ports.kb.comparisons.note_both_right(one, other, **signed, both_right=data.both_right))


def _count_page(items: Sequence[T], found: FactPage | PairPage | StalePage, of: str) -> CountedPage[T]:
    end = None if found.next_after is None else cursor_of(of, (found.next_after,))
    return CountedPage(items=list(items), next=end, total=found.total, is_exact=found.is_exact)


# Batches: add or edit many facts in one change, all or none.


class Draft(Request, frozen=True, kw_only=True):
    """A fact without a document, keyed from its question."""

    question: Question
    value: Value
    answer: Value | None = None


class NewFacts(Why, frozen=True, kw_only=True):
    """Facts to add.

    `allow_erased` accepts facts that were erased before, `anyway` facts that contradict others.
    """

    facts: Annotated[list[Draft], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]
    allow_erased: bool = False
    anyway: bool = False


class Corrected(Request, frozen=True, kw_only=True):
    """The new value of a fact, its new question, or both. Null leaves either as it is."""

    fact_id: Id
    value: Value | None = None
    question: Question | None = None
    version: Version | None = None


class NewValues(Why, frozen=True, kw_only=True):
    """Facts to edit. A fact may be named only once. `anyway` accepts what other facts contradict."""

    facts: Annotated[list[Corrected], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]
    anyway: bool = False


@post("/facts/batch", **in_thread(Right.edit))
def insert_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewFacts]) -> EditResult:
    """Add many facts.

    All facts are added in one change, or none; `fact_ids` are in the order of the request.
    """
    drafts = [FactDraft(draft.question, draft.value, draft.answer) for draft in data.facts]
    edit = ports.kb.facts.add_many(
        drafts, **on_record(request, data), allow_erased=data.allow_erased, anyway=data.anyway
    )
    return key_and_answer(ports, edit)


@patch("/facts/batch", **in_thread(Right.edit, scoped=CorpusLimit.targets))
def update_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewValues]) -> EditResult:
    """Edit many facts.

    All facts get their new values and questions in one change, or none.
    """
    fact_edits = [FactEdit(one.fact_id, one.value, one.question, one.version) for one in data.facts]
    edit_in_scope(ports, fact_ids=[one.fact_id for one in data.facts])
    edit = ports.kb.facts.edit_many(fact_edits, **on_record(request, data), anyway=data.anyway)
    return answer_edit(ports, edit)


# Mending: mark facts in documents, move their spans, and undo edits. Each is one change in the log.

Offset = Annotated[int, Meta(ge=0, le=2**31 - 1, description="In Unicode code points of the document's text")]


class Span(Why, frozen=True, kw_only=True):
    """A stretch of a document: its offsets; or its exact text, which must be there once; or both, which must agree.

    `allow_erased` accepts one whose fact was erased before, `anyway` one whose question another fact answers otherwise.
    """

    start: Offset | None = None
    end: Offset | None = None
    text: Value | None = None
    allow_erased: bool = False
    anyway: bool = False

    @property
    def marking(self) -> Marking:
        return {"start": self.start, "end": self.end, "text": self.text}


class NewMark(Span, frozen=True, kw_only=True):
    """A fact to add to a document, whose words at the span are its value."""

    question: Question | None = None
    answer: Value | None = None


@post("/documents/{document_id:int}/facts", **in_thread(Right.edit, scoped=CorpusLimit.targets))
def mark_fact(
    ports: FromPorts, request: WithToken, document_id: PathId, data: JSONBody[NewMark]
) -> EditResult:
    """Add a fact to a document.

    Its value is what the document says at the span, which may overlap no other fact. If the server has an encoder,
    lookups find it at once.
    """
    edit_in_scope(ports, document_id=document_id)
    edit = ports.kb.facts.add_to(
        document_id,
        data.marking,
        question=data.question,
        answer=data.answer,
        **on_record(request, data),
        allow_erased=data.allow_erased,
        anyway=data.anyway,
    )
    return key_and_answer(ports, edit)


class NewPlace(Span, frozen=True, kw_only=True):
    """Choose where to move the span of a fact, also with the `question` that it answers from then on."""

    question: Question | None = None
    version: Version | None = None


@post("/facts/{fact_id:int}/move", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def move_fact(ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[NewPlace]) -> EditResult:
    """Move a fact's span.

    Within its document, whose words there become its value. Where it stood before stays in its history.
    """
    edit_in_scope(ports, fact_ids=[fact_id])
    edit = ports.kb.facts.move(
        fact_id,
        data.marking,
        **on_record(request, data),
        allow_erased=data.allow_erased,
        question=data.question,
        version=data.version,
        anyway=data.anyway,
    )
    return answer_edit(ports, edit)


@post("/changes/{seq:int}/undo", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def undo_change(ports: FromPorts, request: WithToken, seq: PathId, data: JSONBody[Why]) -> EditResult:
    """Undo an edit of facts.

    Takes back what one insert, update, move, delete, restore, verdict or note that both are right did, all of it. It is
    refused where one of its facts was edited since.
    """
    edit_in_scope(ports, seq=seq)
    edit = ports.kb.facts.undo(seq, **on_record(request, data))
    # What is restored may lack keys of a keyset that was made meanwhile.
    return key_and_answer(ports, edit) if edit.kind == "restore" else answer_edit(ports, edit)


HANDLERS = (
    list_facts, list_contradictions, list_duplicates, list_stale_facts, count_compared, read_also_said,
    note_both_right, read_fact, read_facts, trace_fact, insert_fact, update_fact, delete_facts, delete_fact,
    restore_facts, insert_facts, update_facts, mark_fact, move_fact, undo_change,
)  # fmt: skip
