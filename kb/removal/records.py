"""Records of removal: plans, verifications and runs of forgetting, erasures, and checks of certificates.

Plans and verifications are stored as JSON in `forget_run` and may outlive an erasure, so they name facts by id;
whoever shows them reads the texts that are still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict

import msgspec

from colmlm.kb.answers.records import SaidFact
from colmlm.kb.facts.records import Mentioned, Mentioning, Source
from colmlm.kb.log.records import OnRecord

if TYPE_CHECKING:
    from colmlm.kb.removal.scan import ResidueReport

LEVELS = (
    "not forgotten: a fact of the run was found",
    "not retrievable: no check got a fact of the run",
    "not retrievable, and out of the index of the process that checked",
)
SAMPLE = 500
DEFAULT_POLICY: Final = "abstain"  # the fact that is nearest after a deletion is nearly always a wrong one
READ = "read"  # the class of checks that are asked of the whole base with words and reader


def level_reached(found: bool, keys_in_index: int) -> int:
    """Give a forget run's level: 0 if a forgotten fact was `found`, else 1 if the index holds a key of one, else 2."""
    if found:
        return 0
    return 1 if keys_in_index else 2


class Planning(OnRecord, total=False):
    """Set how the facts to forget are chosen, beside the selector, and what lookups for them give afterwards.

    `equivalents`, facts that say the same: "include" them in the set, "only-list" or "exclude" them. `radius` (None:
    the keyset's threshold) is the score that an equivalent's key must reach. `policy`: with "abstain" a question gets
    no match, with "successor" the next fact. A selector that no fact fits is refused, unless `allow_empty`.
    """

    equivalents: str
    radius: float | None
    policy: str
    allow_empty: bool


@dataclass(frozen=True, slots=True)
class Successor:
    """Record what a question for a forgotten fact would get. `outcome` is "answers", "abstained" or "no_match".

    `score` is that of the nearest remaining fact, whether or not it reaches the threshold. `encoded` says that the
    question was encoded; else the fact's own key was used for it.
    """

    asked_fact_id: int
    encoded: bool
    successor_id: int | None
    score: float | None
    outcome: str

    @property
    def would_answer(self) -> bool:
        return self.outcome == "answers"


@dataclass(frozen=True, slots=True)
class Collateral:
    """The effects of forgetting beside the facts themselves.

    Of `neighbours` remaining facts near the forgotten ones, the own question of `displaced` gets a forgotten fact
    first now. `generations` stored outputs spliced forgotten facts, `splices` times.
    """

    neighbours: int
    displaced: int
    generations: int
    splices: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Record how the checks of one class were answered; the five outcomes add up to `probes`, their number.

    `leaks`: a forgotten fact is among the hits. `value_leaks`: the first hit is another fact with the same value.
    `wrong_neighbours`: the first hit says something else. The others gave no hit.
    """

    probes: int
    leaks: int
    value_leaks: int
    wrong_neighbours: int
    abstained: int
    no_match: int

    def rate(self, outcome: str) -> float:
        return float(getattr(self, outcome)) / self.probes if self.probes else 0.0


OUTCOMES = ("leaks", "value_leaks", "wrong_neighbours", "abstained", "no_match")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A place outside the set that would still answer the question of a forgotten fact, by live facts that it touches,
    or the likeliest words of a passage that would be said, which may touch none.

    `document_id`, `start` and `end` say where; None of a fact without a document. `says` is "same" where it says the
    value in some wording, "longer" where it holds it, and "other" where by the reader's judgement alone it answers:
    with a wording that no rule knows, or with another value. `score` is the probability that an answer says it with all
    of the set gone.
    """

    asked_fact_id: int
    fact_ids: tuple[int, ...]
    document_id: int | None
    start: int | None
    end: int | None
    says: str
    score: float


@dataclass(frozen=True, slots=True)
class SaidSurvivor:
    """A survivor with what it says now, where its document says it (None: it has none), and the live facts there.

    What was deleted or erased since shows as U+2588.
    """

    asked_fact_id: int
    says: str
    score: float
    text: str
    source: Source | None
    facts: tuple[SaidFact, ...]


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Record what forgetting a set of facts would do. `fact_ids` are the facts to forget, with `equivalents` if
    `included`.

    `equivalents` are other facts that say the same, forgotten too or only listed; `conflicting` facts answer one of the
    questions with another value and stay. `previewed` of `affected` questions have a successor here. `before` has the
    outcomes of the checks at the time of the plan. `selector_digest` is an HMAC of the selector under this database's
    secret.
    """

    run_id: int
    policy: str
    fact_ids: tuple[int, ...]
    selected: int
    equivalents: tuple[int, ...]
    included: bool
    conflicting: tuple[int, ...]
    successors: tuple[Successor, ...]
    affected: int
    previewed: int
    collateral: Collateral
    live_facts: int
    unkeyed: int
    keyset_id: int
    checkpoint_id: str
    threshold: float
    radius: float
    planned_seq: int
    before: Mapping[str, Rates]
    selector_digest: str
    read: int = 0
    survivors: tuple[Survivor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the plan as JSON, without the fields that are columns of its run's row."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_THE_ROW}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], **of_the_row: Any) -> Self:
        """Make the plan from its stored JSON and its row's columns. Fields of newer program versions are ignored."""
        return msgspec.convert({**stored, **of_the_row}, cls)


_OF_THE_ROW = ("run_id", "policy", "fact_ids", "planned_seq")


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of verifying a forget run. It `holds` where no check found a forgotten fact and none is live.

    `still_live` and `keys_in_index` count facts and keys of the run that should not be there; with the policy
    "abstain" keys stay in the index on purpose (`tombstones`). `level` is 0 where it does not hold, 1 where no
    check got a forgotten fact, 2 where its keys are also out of the index of the process that checked. `read` questions
    were read in the whole base (0: without a reader), and `survivors` still answer them.
    """

    at: str
    seq: int
    keyset_id: int
    checkpoint_id: str
    threshold: float
    probes: Mapping[str, Rates]
    still_live: int
    tombstones: int
    keys_in_index: int
    leaked: tuple[int, ...]
    level: int
    read: int = 0
    survivors: tuple[Survivor, ...] = ()

    @property
    def holds(self) -> bool:
        return self.level > 0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Make the verification from its stored JSON. Fields of newer program versions are ignored."""
        return msgspec.convert(stored, cls)


@dataclass(frozen=True, slots=True)
class Drift:
    """List what changed since a plan. It cannot be applied where facts are `stale`; the others are new facts."""

    stale: tuple[int, ...]
    newly_selected: tuple[int, ...]
    newly_equivalent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A forget run in a list. `state` is planned, applied, restored or erased."""

    run_id: int
    state: str
    policy: str
    selector: Mapping[str, Any]
    num_facts: int
    planned_seq: int
    applied_seq: int | None
    restored_seq: int | None
    verified: bool
    level: int | None
    actor: str
    reason: str
    at: datetime
    on_behalf_of: str | None = None


# Holds and retention rules.

RetentionAction = Literal["delete", "erase"]
RetentionStart = Literal["seen", "date"]


class HeldSelection(OnRecord, total=False):
    """Name what a hold keeps: facts and documents by id, each with its whole document, and corpora by name."""

    fact_ids: Sequence[int]
    document_ids: Sequence[int]
    corpora: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold. `state` is "asked", "standing", "release-asked" (it stands), "released" or "withdrawn".

    It stands from change `seq` to change `released_seq`. Tokens are given by name, where two people were needed.
    """

    hold_id: int
    state: str
    fact_ids: tuple[int, ...]
    document_ids: tuple[int, ...]
    corpora: tuple[str, ...]
    actor: str
    reason: str
    at: datetime
    asked_by: str | None
    approved_by: str | None
    seq: int | None
    release_actor: str | None
    release_reason: str | None
    release_at: datetime | None
    release_asked_by: str | None
    release_approved_by: str | None
    released_seq: int | None


class RetentionTerms(TypedDict):
    """The terms of a retention rule: after `days` days a document is deleted or erased, as `action` says.

    `counts_from`: "seen" counts from when the document was added or last found unchanged; "date" from its own date,
    which its `revision` begins with (2026-01-31), and as "seen" where it has none.
    """

    days: int
    action: RetentionAction
    counts_from: RetentionStart


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The retention rule of a corpus, as change `seq` set it."""

    corpus: str
    days: int
    action: RetentionAction
    counts_from: RetentionStart
    seq: int


@dataclass(frozen=True, slots=True)
class DueDocument:
    """A document that a rule deletes or erases at `due_at`. While `hold_ids` has holds, it stays."""

    document_id: int
    external_id: str
    title: str | None
    due_at: datetime
    action: RetentionAction
    hold_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Tell what the rule of a corpus would do at the time `now`: `num_due` documents go, and `num_held` stay by holds.

    `documents` are the first of both, by when they were due. `next_at` is when the next one is due after `now`.
    """

    corpus: str
    rule: RetentionRule | None
    now: datetime
    num_due: int = 0
    num_held: int = 0
    next_at: datetime | None = None
    documents: tuple[DueDocument, ...] = ()


# Erasures: what one did, how far it got, and requests that wait for a second person.


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a text, in code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mention:
    """The places where a document's text says one of the values; `own` marks a document of the facts themselves.

    `source` is its corpus and its name there, as corpus/document.
    """

    document_id: int
    own: bool
    spans: tuple[Stretch, ...]
    source: str = ""


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
class LineageFinding:
    """Report whether the record of some weights lists the texts of an erasure.

    The weights are a checkpoint, annotator or reader.

    `says` is "listed" where they were trained on the texts of `documents`, "not-listed" where on none, and "unknown"
    where `why` leaves it open for the documents `uncertain`. `record` is the SHA-256 of the record (None: there is none
    to rely on), and `bases` are weights of others that the training began with, whose data are not recorded.
    """

    checkpoint: str
    name: str
    says: Literal["listed", "not-listed", "unknown"]
    documents: tuple[int, ...] = ()
    uncertain: tuple[int, ...] = ()
    why: str = ""
    record: str | None = None
    bases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Erased:
    """Record what one erasure did in the database. `also_said_by` are other facts that say the same and stay.

    `places` counts, by table and column, the places where a plan for a person blanked the name.
    `left` is what else says the erased facts; it is empty where nobody looked for that, as in a restore.
    `again` are those of the facts that were erased before. `seq` is None where all of them were and nothing from before
    said them any more, so that no change was logged. `held_documents` mention the facts, and holds keep
    them as they are. `lineage` says which weights were trained on the texts.
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
    held_documents: tuple[int, ...] = ()
    lineage: tuple[LineageFinding, ...] = ()
    left: Mentions = field(default_factory=Mentions)
    places: Mapping[str, int] = field(default_factory=dict)


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
    """Record what was erased (None: the report is on earlier erasures), and how far: `level` and all below it are
    reached.

    Where `level` is below `asked_level`, the facts are erased, and files hold more of them than was asked for.
    """

    erased: Erased | None
    level: int
    levels: tuple[Level, ...]
    asked_level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """A request to erase facts; `state` is "waiting", "approved" or "withdrawn". Tokens are given by name.

    With the plan for a person, a name is blanked at so many `num_places`, too.
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
    num_places: int = 0


@dataclass(frozen=True, slots=True)
class HeldPart:
    """List what holds kept from an erasure, as documents, or from a forget run, as facts."""

    holds: tuple[int, ...]
    documents: tuple[int, ...] = ()
    facts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateFinding:
    """The outcome of one part of a check. `found` says in words what was found, or what is wrong."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """The outcome of a check. It is `ok` only if each of `checks` is; `problems` says what is wrong with the others.

    `signed_by` is the id of the key that signed, trusted or not; `offline` says that no base was compared. `run_id` and
    `policy` are those of a forget run, `redacted_outputs` and `mentions` (how far it reached) of an erasure, and
    `num_places` counts where it blanked a person's name. `held_part` is what holds kept from being erased when it was
    issued, and `lineage` which weights were trained on it.
    """

    ok: bool
    checks: tuple[CertificateFinding, ...]
    problems: tuple[str, ...]
    offline: bool
    signed_by: str | None = None
    database: str | None = None
    run_id: int | None = None
    policy: str | None = None
    num_facts: int | None = None
    applied_seq: int | None = None
    applied_hash: str | None = None
    level: int | None = None
    reached: str | None = None
    issued_at: str | None = None
    proves: tuple[str, ...] = ()
    does_not_prove: tuple[str, ...] = ()
    redacted_outputs: tuple[int, ...] = ()
    mentions: str | None = None
    held_part: HeldPart | None = None
    lineage: tuple[str, ...] = ()
    num_places: int = 0


@dataclass(frozen=True, slots=True)
class Erasing:
    """The outcome of `erase`: a report of the erasure, or the request that waits for a second token.

    `before` and `after` are the residue, where files were scanned. `shared` counts traces that other texts hold too.
    """

    report: ErasureReport | None
    request: ErasureRequest | None = None
    before: ResidueReport | None = None
    after: ResidueReport | None = None
    shared: int = 0


class EraseOptions(Mentioning, total=False):
    """Choose how far an erasure goes: with `now` as far as the server permits.

    With `scan` all files are searched before and after. The traces that are searched for are written to `traces_out`.
    `plan` is a signed plan for a person, in place of facts.
    """

    now: bool
    scan: bool
    traces_out: Path | None
    plan: Mapping[str, Any] | None
