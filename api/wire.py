"""The requests and responses of the API as types that server and clients share. They need no web framework."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import FactDifference, ImpactedOutput
from colmlm.kb.facts.records import DocumentRecord, SettledBefore
from colmlm.kb.keys.records import GateStanding, KeysetRecord
from colmlm.kb.lookup.options import AcceptedOnly, CorporaNames, FullAnswerOptions
from colmlm.kb.lookup.records import Hit
from colmlm.kb.misses.records import MissGroup
from colmlm.kb.removal.records import (
    Collateral,
    ErasureReport,
    ErasureRequest,
    Rates,
    RunRecord,
    Successor,
    Survivor,
    Verification,
)
from colmlm.kb.review.records import InboxItem, ReviewProgress
from colmlm.kb.webhooks.records import Webhook

MAX_ID = 2**63 - 1
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_QUERIES = 64
MAX_PAGE = 500
MAX_FACTS_PER_EDIT = 1000
MAX_FACTS_TO_ENCODE = 1000
MAX_CHARS_TO_ENCODE = 200_000
Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
Seq = Annotated[int, Meta(ge=0, le=MAX_ID)]
SEEN = "Wait until this change is seen, to read an edit back; 404 where nobody made it, 503 where it takes too long"
MinSeq = Annotated[int, Meta(ge=0, le=MAX_ID, description=SEEN)]
Threshold = Annotated[float, Meta(ge=-1, le=1)]
DecodingThreshold = Annotated[
    float,
    Meta(
        ge=-1,
        le=1,
        description="The least score of a fact, by the scale of the `ranking`. Where nobody named one and the reader "
        "decides on a question, it is a probability and only raises the threshold of answers: no fact is cited that "
        "an answer is refused by; name the ranking `reader` to lower it, or `key` for a cosine",
    ),
]
Reason = Annotated[str, Meta(min_length=1, max_length=1000, description="Why; it stays in the change log")]
Behalf = Annotated[
    str,
    Meta(
        min_length=1, max_length=200, description="On whose behalf; kept beside the token, which is the actor"
    ),
]
OldBehalf = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The former name of `on_behalf_of`, heeded without that"),
]
Question = Annotated[str, Meta(min_length=1, max_length=2000)]
Value = Annotated[str, Meta(min_length=1, max_length=10_000)]
Version = Annotated[
    int,
    Meta(ge=1, le=2**31 - 1, description="The version that was read: 409 where the fact has another by now"),
]
Vector = Annotated[list[float], Meta(min_length=1, max_length=16_384)]


OnMiss = Annotated[
    Literal["abstain", "continue"],
    Meta(
        description="What follows a lookup that finds nothing: nothing more is said, or the model's own words. "
        "Default: a prompt that ends in `Answer:` abstains, any other continues"
    ),
]


RankingName = Annotated[
    Literal["key", "words", "reader"],
    Meta(
        description="What lookups find facts by: the key alone, the key and words, or these and a reader, whose score "
        "and threshold are probabilities"
    ),
]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all request bodies. It refuses unknown fields: a misspelt `threshold` would give a wrong result."""


class Why(Request, frozen=True, kw_only=True):
    """The reason for an edit, and on whose behalf it is made."""

    reason: Reason
    on_behalf_of: Behalf | None = None
    actor: OldBehalf | None = None


class SpanToEncode(Request, frozen=True, kw_only=True):
    """A fact's span in a document: from the code point `start` up to `end`."""

    start: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    end: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class DocumentToEncode(Request, frozen=True, kw_only=True):
    """A document whose facts get keys, and their spans in the order of the text, without overlap."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_CHARS_TO_ENCODE)]
    title: Annotated[str, Meta(max_length=10_000)] | None = None
    facts: Annotated[list[SpanToEncode], Meta(min_length=1, max_length=MAX_FACTS_TO_ENCODE)]


class TextsToEncode(Request, frozen=True, kw_only=True):
    """Questions, and documents with facts, whose keys a client stores itself.

    All documents together have at most 1000 facts, and 200,000 characters in texts and titles.
    """

    questions: Annotated[list[Question], Meta(max_length=MAX_QUERIES)] = []
    documents: Annotated[list[DocumentToEncode], Meta(max_length=MAX_QUERIES)] = []


class LookupRequest(Request, frozen=True, kw_only=True):
    """At least one question, which the server encodes, or query, which the checkpoint `checkpoint_id` made.

    With a `ranking` by more than the key each query has one of the `texts`; a question is its own.
    """

    questions: Annotated[list[Question], Meta(max_length=MAX_QUERIES)] = []
    queries: Annotated[list[Vector], Meta(max_length=MAX_QUERIES)] = []
    checkpoint_id: Annotated[str, Meta(max_length=200)] | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 1
    threshold: Threshold | None = None
    min_seq: MinSeq | None = None
    as_of: Annotated[Seq | None, Meta(description="Answer as the base stood at this change")] = None
    ranking: RankingName = "key"
    texts: Annotated[list[Annotated[str, Meta(max_length=2000)]], Meta(max_length=MAX_QUERIES)] = []
    accepted_only: AcceptedOnly = False
    corpora: CorporaNames = ()


class QuestionRequest(FullAnswerOptions, Request, frozen=True, kw_only=True):
    """A question to answer. `threshold` is a probability, or in the mode `paper` a cosine."""

    question: Question
    mode: Literal["read", "paper"] = "read"


class LookupFields(Request, frozen=True, kw_only=True):
    """Record what a request to decode says of its lookups."""

    threshold: DecodingThreshold | None = None
    min_seq: MinSeq | None = None
    fact_bias: Annotated[float, Meta(ge=-100, le=100)] | None = None
    on_miss: OnMiss | None = None
    ranking: RankingName | None = None
    accepted_only: AcceptedOnly = False
    corpora: CorporaNames = ()


class NewGeneration(LookupFields, frozen=True, kw_only=True):
    """A `kb.evidence.generation.GenerationRequest`. With `stream` the response is server-sent events."""

    prompt: Annotated[str, Meta(min_length=1)]
    mode: Literal["auto", "forced", "off"] = "auto"
    max_tokens: Annotated[int, Meta(ge=1, le=512)] = 64
    min_tokens: Annotated[int, Meta(ge=0, le=512)] = 0
    temperature: Annotated[float, Meta(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] = 1.2
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=8)] = []
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    stream: bool = False

    def request(self) -> GenerationRequest:
        fields = msgspec.structs.asdict(self)
        del fields["stream"]
        return GenerationRequest(**{**fields, "stop": tuple(self.stop)})


# Tells which host names mean this machine.

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_loopback(host: str) -> bool:
    """Tell whether what is sent to this host stays on this machine, whatever the resolver says of other names."""
    return host.lower() in LOOPBACK


# Lookups by vectors: their paths, limits and media types.

MAX_VECTORS = 1024
MAX_DIM = 16_384
LOOKUPS, VECTORS = "/v1/lookups", "/v1/lookups/vectors"
OCTETS = b"application/octet-stream"
JSON, MSGPACK = "application/json", "application/msgpack"


# The responses that are not plain records of the knowledge base.


class EditResult(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that has been committed. `seq` is its change.

    A lookup or a generation given `min_seq` sees the edit. `keyed` says whether lookups can find every one of these
    facts now; if not, rekey. `also_said_by` are other facts with the same value, for the same question or in the same
    sentence; of a `dry_run` nothing was done, and `seq` is the last change.
    """

    seq: int
    min_seq: int
    kind: str
    fact_ids: list[int]
    keyed: bool
    also_said_by: list[int] = []
    dry_run: bool = False


class VerdictResult(msgspec.Struct, frozen=True, kw_only=True):
    """Record what became of verdicts. `seqs` are their changes, one for each kind, `fact_ids` the facts that they
    settled.

    `before` are those that were settled or edited before, as they are now: their verdicts were not carried out.
    """

    seqs: list[int]
    min_seq: int
    fact_ids: list[int]
    before: list[SettledBefore]


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the inbox, with how many facts it has in all, more than `total` unless `is_exact`, and the progress."""

    items: list[InboxItem]
    next: str | None
    total: int
    is_exact: bool
    progress: ReviewProgress


class LookupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one query. `kb.lookup.records.Lookup` explains the fields, `kb.lookup.lookups` the last two."""

    question: str | None
    hits: list[Hit]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None
    redacted: int | None = None
    unkeyed: int | None = None


class LookupAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a lookup in order: those of the questions, then those of the queries."""

    checkpoint_id: str
    answers: list[LookupAnswer]


class EncodedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of questions, and of the facts of each document, as unit vectors of the checkpoint that made them."""

    checkpoint_id: str
    questions: list[list[float]]
    documents: list[list[list[float]]]


class FieldError(msgspec.Struct, frozen=True):
    """One mistake in a request. `field` is a path into the body, or a parameter's name."""

    field: str
    message: str
    source: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record why a request was refused. `about` holds the ids concerned, `errors` the mistakes in a malformed request.

    `request_id` is the response's X-Request-ID, which the server's log names too.
    """

    type: str
    title: str
    status: int
    detail: str
    about: dict[str, int | list[int]] = {}
    errors: list[FieldError] = []
    request_id: str | None = None


class FactImpact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact and a page of its uses, oldest first. `next` is the cursor of the page after it."""

    fact_id: int
    is_live: bool
    erased_seq: int | None
    items: list[ImpactedOutput]
    next: str | None


class MissList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups of misses, and how many there are of this state. `ungrouped` misses are in no group yet.

    `kept` is false where the server keeps no questions.
    """

    items: list[MissGroup]
    next: str | None
    total: int
    ungrouped: int
    kept: bool


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """Record what was decided, as change `seq` of the log."""

    seq: int


class DocumentText(msgspec.Struct, frozen=True, kw_only=True):
    """A document with its text as it was ingested. Facts' `start` and `end` count its Unicode code points."""

    document: DocumentRecord
    text: str


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Count how many live facts, of how many documents, were or would be deleted.

    `seq` is the change; null where there was none.
    """

    dry_run: bool
    documents: int
    facts: int
    seq: int | None


class KeysetView(msgspec.Struct, frozen=True, kw_only=True):
    """A keyset with its progress, and whether its gate still lets it be activated."""

    keyset: KeysetRecord
    gate: GateStanding


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret (`kb.access.records.TokenRecord`). `state` is "in use", "expired" or "revoked".

    Where `corpora` are named, it has its rights on these alone. That of a person has an `issuer` and no secret.
    """

    key_id: int
    name: str
    role: str
    state: str
    prefix: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    rate_limit: int | None
    rotated_at: datetime | None
    previous_until: datetime | None
    previous_used_at: datetime | None
    revoked_at: datetime | None
    corpora: tuple[str, ...] | None = None
    issuer: str | None = None


class TokenWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its secret, which is not shown again."""

    token: Token = msgspec.field(name="key")
    secret: str = msgspec.field(name="token")


class WebhookWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and the secret that its messages are signed with, which is not shown again."""

    webhook: Webhook
    secret: str


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """Record what forgetting would do: `num_facts` facts would be deleted, of which the selector chose `selected`.

    `equivalents` are facts that say the same elsewhere (`included`, or only listed); `conflicting` facts answer one of
    the questions with another value and stay. `previewed` of the `affected` questions would get a successor; `before`
    tells how checks are answered now. `read` questions were read in the whole base (0: without a reader), and survivors
    would still answer them. Lists hold up to 100 entries. See docs/facts/forget.md.
    """

    num_facts: int
    selected: int
    num_equivalents: int
    equivalents: list[int]
    included: bool
    num_conflicting: int
    conflicting: list[int]
    successors: list[Successor]
    affected: int
    previewed: int
    collateral: Collateral
    live_facts: int
    unkeyed: int
    keyset_id: int
    checkpoint_id: str
    threshold: float
    radius: float
    before: dict[str, Rates]
    read: int
    num_survivors: int
    survivors: list[Survivor]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A forget run, its plan, and its last verification (null: none)."""

    run: RunRecord
    plan: PlanView
    verification: Verification | None


class ErasureAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an erasure; or, where two tokens are needed, the request that waits for the second."""

    report: ErasureReport | None
    request: ErasureRequest | None


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """Count how many facts differ between two changes, by kind of difference, and a page of them in order of id."""

    first: int
    last: int
    counts: dict[str, int]
    items: list[FactDifference]
    next: str | None


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public key that evidence is signed with, with its id (the SHA-256 of its SPKI) and its fingerprint."""

    keyid: str
    fingerprint: str
    pem: str


# Pages: all lists are paginated alike. A request takes `cursor`, a page gives `next`; null is the end.
#
# A cursor holds where the last page ended, and of which list. It is opaque: clients pass it back unchanged.

T = TypeVar("T")
Place = tuple[int, ...]
NEWEST_CHANGES = "newest changes"  # the list of changes from the newest on, whose cursors are its own


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next` is the cursor of the page after it; null where this is the last."""

    items: list[T]
    next: str | None


class CountedPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list, with how many things the whole list has; there are more than `total` unless `is_exact`."""

    items: list[T]
    next: str | None
    total: int
    is_exact: bool


def cursor(of: str, place: Place) -> str:
    """Encode the cursor of the page after `place` in the list that is named `of`."""
    said = json.dumps([of, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(said).decode().rstrip("=")


def place_in(cursor: str) -> Any:
    """Decode a cursor to the name of its list and the place of `cursor`. Raises `ValueError` if it is not a cursor."""
    return json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
