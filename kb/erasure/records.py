"""What erasures take and give."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from colmlm.kb.erasure.mentions import Mentions
from colmlm.kb.facts.redaction import Mentioned


@dataclass(frozen=True, slots=True)
class Erased:
    """What one erasure did in the database. `also_said_by` are other facts that say the same and still stand.

    `left` is what else says them; it is empty where an erasure was not looked at closely, as in a restore.
    `again` are those of the facts that were erased before. `seq` is None where that was all, and nothing said them.
    """

    seq: int | None
    fact_ids: tuple[int, ...]
    again: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    generations: tuple[int, ...] = ()
    forget_runs: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    erasure_requests: tuple[int, ...] = ()
    num_keys: int = 0
    num_digests: int = 0
    also_said_by: tuple[int, ...] = ()
    left: Mentions = field(default_factory=Mentions)


@dataclass(frozen=True, slots=True)
class Level:
    """How one level went. `state` is reached, left (not asked for, or something is in the way) or refused.

    `left` says what is still there, or when the last of it goes, and `remedy` what to do.
    """

    level: int
    name: str
    state: str
    left: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What was erased (None: that had been done before), and how far: `level` and all below it are reached."""

    erased: Erased | None
    level: int
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """An erasure that was asked for; `state` is waiting, approved or withdrawn. Keys are named.

    `actor` is who asked, with the key `asked_by`, and `on_behalf_of` whom they said to act for.
    """

    erasure_request_id: int
    state: str
    fact_ids: tuple[int, ...]
    actor: str
    reason: str
    asked_by: str
    at: datetime
    decided_by: str | None
    decided_at: datetime | None
    seq: int | None
    on_behalf_of: str | None = None
    mentions: Mentioned | None = None
