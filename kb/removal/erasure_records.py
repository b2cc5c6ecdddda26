"""Records of erasures: what one did, how far it got, and requests that wait for a second person."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime

from colmlm.kb.facts.records import Mentioned


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a text, in code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mention:
    """The places where a document's text says one of the values; `own` marks a document of the facts themselves."""

    document_id: int
    own: bool
    spans: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class LeftRows:
    """Rows of a table whose `column` says one of the values; `ids` has the first 500 of those that have a number."""

    table: str
    column: str
    num_rows: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mentions:
    """Documents, facts, outputs and changes that say what given facts say, beside these: up to 500 of each kind, by id.

    `titles` are documents whose title, address, external id, corpus, licence or revision says one of the values,
    `facts` other facts whose value, question or answer does, and `reasons` changes whose reason, actor or payload does.
    `rows` are those of all other tables.
    """

    documents: tuple[Mention, ...] = ()
    titles: tuple[int, ...] = ()
    facts: tuple[int, ...] = ()
    generations: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()
    rows: tuple[LeftRows, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Erased:
    """What one erasure did in the database. `also_said_by` are other facts that say the same and stay.

    `left` is what else says the erased facts; it is empty where nobody looked for that, as in a restore.
    `again` are those of the facts that were erased before. `seq` is None where all of them were and nothing said
    them any more, so that no change was logged.
    """

    seq: int | None
    fact_ids: tuple[int, ...]
    again: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    generations: tuple[int, ...] = ()
    forget_runs: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    erasure_requests: tuple[int, ...] = ()
    questions: tuple[int, ...] = ()
    question_outcomes: tuple[int, ...] = ()
    feedback: tuple[int, ...] = ()
    num_keys: int = 0
    num_digests: int = 0
    also_said_by: tuple[int, ...] = ()
    left: Mentions = field(default_factory=Mentions)


@dataclass(frozen=True, slots=True)
class Level:
    """The outcome of one level. `state` is "reached", "left" (not asked for, or not possible now) or "refused".

    `left` says what files still hold and when that goes, and `remedy` what the operator can do.
    """

    level: int
    name: str
    state: str
    left: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What was erased (None: the report is on earlier erasures), and how far: `level` and all below it are reached.

    Where `level` is below `asked_level`, the facts are erased, and files hold more of them than was asked for.
    """

    erased: Erased | None
    level: int
    levels: tuple[Level, ...]
    asked_level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """A request to erase facts; `state` is "waiting", "approved" or "withdrawn". Tokens are given by name.

    `actor` asked for it with the token `asked_by`, and said to act for `on_behalf_of`.
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
