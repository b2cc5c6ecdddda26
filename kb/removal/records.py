"""Records of forgetting: plans, verifications and runs, without any text of a fact.

Plans and verifications are stored as JSON in `forget_run` and may outlive an erasure, so they name facts by id;
whoever shows them reads the texts that are still there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Self

import msgspec

from colmlm.kb.answers.records import SaidFact
from colmlm.kb.facts.records import Source
from colmlm.kb.log.records import OnRecord

LEVELS = (
    "not forgotten: a fact of the run was found",
    "not retrievable: no check got a fact of the run",
    "not retrievable, and out of the index of the process that checked",
)
SAMPLE = 500
DEFAULT_POLICY: Final = "abstain"  # the fact that is nearest after a deletion is nearly always a wrong one
READ = "read"  # the class of checks that are asked of the whole base with words and reader


class Planning(OnRecord, total=False):
    """How facts to forget are chosen, beside the selector, and what their questions get afterwards.

    `equivalents`: "include" them in the set, "only-list" them, or "exclude" them from the plan. `radius` (None: the
    keyset's threshold) is the score that an equivalent's key must reach. `policy`: with "abstain" a question
    gets no match, with "successor" the next fact. A selector that no fact fits is refused, unless `allow_empty`.
    """

    equivalents: str
    radius: float | None
    policy: str
    allow_empty: bool


@dataclass(frozen=True, slots=True)
class Successor:
    """What a question for a forgotten fact would get. `outcome` is "answers", "abstained" or "no_match".

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
    """How the checks of one class were answered; the five outcomes add up to `probes`, their number.

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
    """What forgetting a set of facts would do. `fact_ids` are the facts to forget, with `equivalents` if `included`.

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
        """Gives the plan for JSON, without what the run's own row holds."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_THE_ROW}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], **of_the_row: Any) -> Self:
        """Reads a stored plan, and passes over what only a later release knows."""
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
        """Reads a stored verification, and passes over what only a later release knows."""
        return msgspec.convert(stored, cls)


@dataclass(frozen=True, slots=True)
class Drift:
    """What changed since a plan. It cannot be applied where facts are `stale`; the others are new and not in it."""

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


# Paraphrases a question by rules, in forms in which the same thing is often asked.
#
# They are no proof against every wording; they find facts that come back by a change of case, punctuation or
# prompt form.

_WH = re.compile(r"(?:what|which|who|when|where) (?:is|was|are|were) (?P<rest>.+)", re.IGNORECASE)


def paraphrases(question: str) -> list[str]:
    """Gives other ways to ask `question`, in a fixed order, each once and none of them the question itself."""
    bare = question.strip().rstrip("?").strip()
    lower_first = bare[:1].lower() + bare[1:]
    forms = [
        f"Question: {question}\nAnswer:",
        question.lower(),
        bare,
        f"Tell me: {lower_first}?",
        f"Do you know {lower_first}?",
    ]
    if (asked := _WH.fullmatch(bare)) is not None:
        rest = asked["rest"]
        forms += [f"Tell me {rest}.", f"{rest[:1].upper()}{rest[1:]}?"]
    return [form for form in dict.fromkeys(forms) if form != question]
