"""The responses that are not plain records of the knowledge base."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from colmlm.kb.evidence.records import FactDifference, ImpactedOutput
from colmlm.kb.facts.records import DocumentRecord, SettledBefore
from colmlm.kb.keys.records import GateStanding, KeysetRecord
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
    """What became of verdicts. `seqs` are their changes, one for each kind, `fact_ids` the facts that they settled.

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
    """The result of one query. `kb.lookup.ranking.Lookup` explains the fields, `kb.lookup.lookups` the last two."""

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
    """Why a request was refused. `about` holds the ids concerned, `errors` the mistakes in a malformed request.

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
    """What was decided, as change `seq` of the log."""

    seq: int


class DocumentText(msgspec.Struct, frozen=True, kw_only=True):
    """A document with its text as it was ingested. Facts' `start` and `end` count its Unicode code points."""

    document: DocumentRecord
    text: str


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """How many live facts, of how many documents, were or would be deleted.

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
    """A token without its secret (`kb.access.tokens.TokenRecord`). `state` is "in use", "expired" or "revoked"."""

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


class TokenWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its secret, which is not shown again."""

    token: Token = msgspec.field(name="key")
    secret: str = msgspec.field(name="token")


class WebhookWithSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and the secret that its messages are signed with, which is not shown again."""

    webhook: Webhook
    secret: str


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What forgetting would do: `num_facts` facts would be deleted, of which the selector chose `selected`.

    `equivalents` are facts that say the same elsewhere (`included`, or only listed); `conflicting` facts answer one of
    the questions with another value and stay. `previewed` of the `affected` questions would get a successor; `before`
    tells how checks are answered now. `read` questions were read in the whole base (0: without a reader), and survivors
    would still answer them. Lists hold up to 100 entries. See docs/forgetting.md.
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
    """How many facts differ between two changes, by kind of difference, and a page of them in order of id."""

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
    """Encode the cursor of the page after this place of a list."""
    said = json.dumps([of, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(said).decode().rstrip("=")


def place_in(cursor: str) -> Any:
    """Decode what a cursor holds: the name of its list, and the place. Raises `ValueError` where it is none."""
    return json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
