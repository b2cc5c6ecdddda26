"""What requests are answered with, where that is no record of the knowledge base as it is."""

from __future__ import annotations

from datetime import datetime

import msgspec

from colmlm.kb.erasure.records import ErasureReport, ErasureRequest
from colmlm.kb.evidence.diff import FactDifference
from colmlm.kb.evidence.impact import ImpactedOutput
from colmlm.kb.facts.documents import DocumentRecord
from colmlm.kb.forgetting.records import Collateral, Rates, RunRecord, Successor, Verification
from colmlm.kb.keys.activation import GateStanding
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.lookup.records import Hit


class EditResult(msgspec.Struct, frozen=True, kw_only=True):
    """An edit in force. `seq` is its change; give `min_seq` to a lookup or a generation to read the edit back.

    `keyed` says whether every fact here can be found by lookups now; if not, rekey.
    """

    seq: int
    min_seq: int
    kind: str
    fact_ids: list[int]
    keyed: bool


class LookupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one query gave. See `kb.lookup.records.Lookup`; for the last two, `kb.lookup.history`."""

    question: str | None
    hits: list[Hit]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None
    redacted: int | None = None
    unkeyed: int | None = None


class LookupAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """In order: the questions, then the queries."""

    checkpoint_id: str
    answers: list[LookupAnswer]


class FieldError(msgspec.Struct, frozen=True):
    """One fault of a request; `field` is a path into the body, or a parameter's name."""

    field: str
    message: str
    source: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused. `about` holds the ids it is about; `errors` the faults of a malformed one.

    `request_id` is the answer's X-Request-ID, by which the server's log knows the request.
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


class DocumentText(msgspec.Struct, frozen=True, kw_only=True):
    """A document with its text as it was ingested. Facts' `start` and `end` count its Unicode code points."""

    document: DocumentRecord
    text: str


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """How many live facts of how many documents went, or would go. `seq` is the change; null where there was none."""

    dry_run: bool
    documents: int
    facts: int
    seq: int | None


class KeysetView(msgspec.Struct, frozen=True, kw_only=True):
    """A keyset, how much of it is keyed, and what its gate is worth now."""

    keyset: KeysetRecord
    gate: GateStanding


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret; see `kb.access.api_keys.ApiKeyRecord`. `state` is "in use", "expired" or "revoked"."""

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


class KeyWithToken(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its token, which is not shown again."""

    key: Key
    token: str


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What forgetting would do: `num_facts` go, of them `selected` by the selector. Lists hold up to 100.

    `equivalents` say the same elsewhere (`included`, or only listed); `conflicting` answer one of the questions with
    another value and stay. `previewed` of `affected` questions have a successor; `before` tells how probes are
    answered now. See docs/forgetting.md.
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


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its plan, and its last verification (null: none)."""

    run: RunRecord
    plan: PlanView
    verification: Verification | None


class ErasureAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased and how far that got; or, where two keys are needed, the request that waits for the second."""

    report: ErasureReport | None
    request: ErasureRequest | None


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """How many facts differ between two changes, by kind, and a page of them, by id."""

    first: int
    last: int
    counts: dict[str, int]
    items: list[FactDifference]
    next: str | None


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """A public key, with its id (the SHA-256 of its SPKI) and its fingerprint."""

    keyid: str
    fingerprint: str
    pem: str
