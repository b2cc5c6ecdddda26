"""Lists facts: searched by their texts or by meaning, filtered, sorted and counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from litestar import get
from litestar.params import QueryParameter

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.edits import WithToken
from colmlm.api.schema.schemas import Limit, after_of, require_past, shown_to
from colmlm.api.wire.answers import CountedPage, cursor
from colmlm.api.wire.requests import MAX_ID
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts.records import FactFound, FactSearch
from colmlm.kb.lookup.options import NEAREST

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
Corpus = Annotated[str | None, QueryParameter(max_length=1000, description="Only of this corpus")]
OfDocument = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_ID, description="Only facts that were read from this document")
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


@get("/facts", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
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
    cursor_: Annotated[
        str | None,
        QueryParameter(
            name="cursor",
            min_length=1,
            max_length=200,
            description="The `next` of the page before; none: the first",
        ),
    ] = None,
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
        "order": sort,
        "after": after_of(cursor_, "facts"),
        "limit": limit,
    }
    require_shown(request, sought)
    page = shown_to(request, ports).search(nearest=nearest(ports, near, sought), **sought)
    return CountedPage(
        items=list(page.facts),
        next=None if page.next_after is None else cursor("facts", (page.next_after,)),
        total=page.total,
        is_exact=page.is_exact,
    )


def require_shown(request: WithToken, sought: FactSearch) -> None:
    """Raises `RightMissing` where the search is for what only those may see who may audit."""
    if sought.get("state", "live") != "live" or any(
        sought.get(name) is not None for name in ("actor", "kind", "since", "until")
    ):
        require_past(request)


def nearest(ports: Ports, question: str | None, sought: FactSearch) -> list[int] | None:
    """Gives the live facts nearest to a question, nearest first. Raises `ModelMissing` without an encoder."""
    said = (question, sought.get("actor"), sought.get("kind"), sought.get("corpus"))
    if any("\x00" in text for text in said if text is not None):
        raise InvalidQuery("a text holds no NUL character")
    if question is None:
        return None
    if sought.get("text"):
        raise InvalidQuery("facts are sought by a text or by what they are near to, not by both")
    asked = question
    (ranking,) = ports.encoded(
        lambda encoder: ports.kb.lookups.nearest(
            encoder.encode_questions([asked]),
            checkpoint_id=encoder.checkpoint.checkpoint_id,
            k=NEAREST,
            accepted_only=None,
        )
    )
    return [hit.fact_id for hit in ranking.hits]


def time_of(name: str, said: str | None) -> datetime | None:
    """Reads a time in ISO 8601, in UTC if it names no zone. Raises `InvalidQuery`."""
    if said is None:
        return None
    try:
        time = datetime.fromisoformat(said)
    except ValueError as error:
        raise InvalidQuery(f"{name} is no time, such as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
