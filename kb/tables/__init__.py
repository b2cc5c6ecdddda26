"""The tables, as the migrations build them (`alembic check` holds the two together); nothing is created from here.

Liveness is one row: a fact is live while it has a `fact_version` with `to_seq IS NULL`. Delete closes that
row and restore opens the next, so "what was true at change n" is one range test and never a join with the log.
"""

from __future__ import annotations

from colmlm.kb.tables.declarative import Base
from colmlm.kb.tables.facts import (
    Change,
    Document,
    ErasedText,
    Fact,
    FactVersion,
    ForgetRun,
    Secret,
    Suppression,
    Tombstone,
    forget_policies,
    forget_states,
)
from colmlm.kb.tables.keys import (
    KEY_IDS,
    Attribution,
    Checkpoint,
    FactKey,
    Generation,
    Keyset,
    key_kinds,
    keyset_states,
)
from colmlm.kb.tables.service import (
    ApiKey,
    BrowserSession,
    Denial,
    ErasureRequest,
    Idempotency,
    Job,
    erasure_states,
    job_states,
    roles,
)

__all__ = [
    "KEY_IDS",
    "ApiKey",
    "Attribution",
    "Base",
    "BrowserSession",
    "Change",
    "Checkpoint",
    "Denial",
    "Document",
    "ErasedText",
    "ErasureRequest",
    "Fact",
    "FactKey",
    "FactVersion",
    "ForgetRun",
    "Generation",
    "Idempotency",
    "Job",
    "Keyset",
    "Secret",
    "Suppression",
    "Tombstone",
    "erasure_states",
    "forget_policies",
    "forget_states",
    "job_states",
    "key_kinds",
    "keyset_states",
    "roles",
]
