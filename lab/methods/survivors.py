"""Plants facts as an adversary would, so that the values of forgotten facts survive in them.

Each says the same as a fact that is to be forgotten, with another wording of the question, or of question and value. Of
the wordings that the original question would still find after the forgetting, the one whose key is farthest from the
question's is planted: a closure by radius is most likely to miss it, and a lookup still finds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colmlm.cli.composition.model_encoder import ModelEncoder
from colmlm.kb.facts.records import FactDraft, FactRecord
from colmlm.kb.keys.calibration import normalise_rows
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.records import Hit
from colmlm.kb.removal.checks import paraphrases
from colmlm.kb.removal.records import ForgetPlan
from colmlm.kb.service import KnowledgeBase
from colmlm.model.evaluate.answers import Share, share

if TYPE_CHECKING:
    from colmlm.lab.methods.deletion_audit import DeletionAudit

REASON = "planted by colmlm evaluate deletion"
KINDS = ("question", "value")
RIVALS = 10  # facts searched for the nearest one of another value, which a question would find instead
FURTHER = (
    "In one word: {}",
    "{} Answer briefly.",
    "A quiz asks: {}",
    "Somebody wants to know: {}",
    "I have read about this before. {}",
    "The book leaves one thing open: {}",
)
SAID = "{}, as is well known"

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Wording:
    """A sampled fact in other words. `similarity` is the cosine of its key with that of the fact's question."""

    fact: FactRecord
    question: str
    key: Floats
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The figures of one planted fact for each of the sample, and one policy and radius of forgetting.

    `reading` says whether the plan had the whole base read for the sample's questions, too. `found` is the share of
    planted facts that the plan's closure includes, `listed` that of those it includes or lists; `by_question` and
    `by_wording` are the shares of the sample whose value a planted fact still tells when the sampled question or the
    planted wording is looked up. `similarity` is the least, median and greatest cosine of the planted keys with the
    questions' keys.
    """

    kind: str
    policy: str
    radius: float
    reading: bool
    planted: int
    similarity: tuple[float, float, float]
    found: Share
    listed: Share
    by_question: Share
    by_wording: Share


def wordings_of(question: str) -> list[str]:
    """Gives other wordings of a question, none of which counts as the same question."""
    forms = [*paraphrases(question), *(form.format(question) for form in FURTHER)]
    return [form for form in dict.fromkeys(forms) if normalise_rows(form) != normalise_rows(question)]


def choose(
    kb: KnowledgeBase,
    keyset: KeysetHead,
    encoder: ModelEncoder,
    sample: Sequence[FactRecord],
    asked_ND: Floats,
) -> list[Wording]:
    """Chooses the wording to plant for each fact. `asked_ND` are the keys of the facts' own questions."""
    rivals = kb.lookups.find(asked_ND, checkpoint_id=keyset.checkpoint_id, k=RIVALS, threshold=-1)
    found = []
    for fact, asked_D, near in zip(sample, asked_ND, rivals, strict=True):
        others = [hit.score for hit in near.hits if normalise_rows(hit.value) != normalise_rows(fact.value)]
        least = max([keyset.threshold, *others[:1]])
        forms = wordings_of(fact.question or "")
        keys = encoder.encode_questions(forms)
        scores = keys @ asked_D
        enough = np.flatnonzero(scores > least)
        at = int(enough[scores[enough].argmin()] if len(enough) else scores.argmax())
        found.append(Wording(fact, forms[at], keys[at], round(float(scores[at]), 4)))
    return found


@contextmanager
def planted(
    kb: KnowledgeBase, keyset_id: int, wordings: Sequence[Wording], kind: str, actor: str
) -> Iterator[list[int]]:
    """Plants facts, yields their ids in the order of the wordings, and deletes them at the end."""
    drafts = [
        FactDraft(one.question, one.fact.value if kind == "question" else SAID.format(one.fact.value))
        for one in wordings
    ]
    ids: Sequence[int] = ()
    try:
        ids = kb.facts.add_many(drafts, actor=actor, reason=REASON, anyway=True).fact_ids
        keys_ND = np.stack([one.key for one in wordings])
        kb.keysets.store_keys(
            keyset_id, np.array(ids, dtype=np.int64), keys_ND, "question", actor=actor, reason=REASON
        )
        yield list(ids)
    finally:
        if ids:
            kb.facts.delete(ids, actor=actor, reason=REASON)


def gives(value: str, said: str) -> bool:
    """Tells whether a found value contains this one as whole words."""
    return re.search(rf"(?<!\w){re.escape(normalise_rows(value))}(?!\w)", normalise_rows(said)) is not None


def survive(
    audit: DeletionAudit,
    policies: Sequence[str],
    radii: Sequence[float | None],
    on_run: Callable[[int], None],
) -> list[Survival]:
    """Plants a fact of each kind in turn for each of the sample, and forgets the sample by each policy and radius.

    At the first radius it is also forgotten with what reading finds.
    """
    chosen = choose(audit.kb, audit.keyset, audit.encoder, audit.sample, audit.queries)
    measured = []
    for kind in KINDS:
        with planted(audit.kb, audit.keyset.keyset_id, chosen, kind, audit.actor) as ids:
            ways = [(radius, False) for radius in radii] + [(radii[0], True)]
            for policy in policies:
                for radius, reading in ways:
                    plan = audit.plan(policy, radius, reading=reading)
                    measured.append(_survival(audit, kind, plan, reading, chosen, ids))
                    on_run(1)
    return measured


def _survival(
    audit: DeletionAudit,
    kind: str,
    plan: ForgetPlan,
    reading: bool,
    chosen: Sequence[Wording],
    ids: Sequence[int],
) -> Survival:
    gone, ours = set(plan.fact_ids), set(ids)
    listed = gone | {fact_id for one in plan.survivors for fact_id in one.fact_ids}
    with audit.applied(plan.run_id):
        by_question = audit.first(audit.queries)
        by_wording = audit.first(np.stack([one.key for one in chosen]))

    def told(hits: Sequence[Hit | None]) -> Share:
        pairs = zip(hits, audit.sample, strict=True)
        return share([h is not None and h.fact_id in ours and gives(f.value, h.value) for h, f in pairs])

    least, median, most = np.quantile([one.similarity for one in chosen], [0, 0.5, 1]).round(4).tolist()
    return Survival(
        kind=kind,
        policy=plan.policy,
        radius=plan.radius,
        reading=reading,
        planted=len(ids),
        similarity=(least, median, most),
        found=share([i in gone for i in ids]),
        listed=share([i in listed for i in ids]),
        by_question=told(by_question),
        by_wording=told(by_wording),
    )
