"""Measures what is left of facts after they are forgotten, and which other facts are lost with them.

Everything is counted over one sample of facts with a question, which are forgotten together. The model is asked for
them before and after, with lookups and without, and other facts, random and nearest ones, are looked up before and
after. Facts that an adversary plants are measured in runs of their own. Nothing is chosen by its result, and every run
is undone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.facts.records import FactDraft, FactRecord
from colmlm.kb.keys.calibration import normalise_rows
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.records import Hit, Lookup
from colmlm.kb.removal.checks import paraphrases, sample_evenly
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.plan import NEIGHBOURS
from colmlm.kb.removal.records import OUTCOMES, ForgetPlan, Rates
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.methods.methods import generate_all
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.evaluate.answers import Share, exact_match, share

REASON = "colmlm-lab evaluate deletion"
BATCH = 16
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidShares:
    """Shares of the facts by what the model said when it was asked for them.

    `says`: it says the value. `splices`: it splices a fact of that value, this one or another. `wrong_neighbour`: its
    first splice is a fact of another value.
    """

    says: Share
    splices: Share
    wrong_neighbour: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRun:
    """The figures of one policy and radius. `forgotten` counts the facts with their equivalents.

    `probes` counts all checks of the verification by outcome; `level` is the level it reached. `wrong_neighbour` is
    the share of the sample's questions that found their value before and now find another. `others` is the share of the
    other facts not forgotten that their question finds, `others_lost` the share of those found before that are not
    found now. `neighbours` is the share of the facts nearest to the sample whose question finds their value,
    `neighbours_lost` the share of those found before that are not found now; `neighbours_forgotten` counts those that
    the plan includes.
    """

    policy: str
    radius: float
    forgotten: int
    level: int
    probes: Rates
    said: SaidShares | None
    wrong_neighbour: Share | None
    others: Share | None
    others_lost: Share | None
    neighbours: Share | None
    neighbours_lost: Share | None
    neighbours_forgotten: int
    is_restored: bool
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class FoundShares:
    """What questions find: `others` [n] their own fact, `neighbours` [m] and `sample` [k] their fact's value.

    `wrong` [k] is whether the question of a sampled fact finds another value.
    """

    others: NDArray[np.bool_]
    neighbours: NDArray[np.bool_]
    sample: NDArray[np.bool_]
    wrong: NDArray[np.bool_]

    def is_as(self, other: FoundShares) -> bool:
        return all(
            np.array_equal(getattr(self, one.name), getattr(other, one.name)) for one in fields(FoundShares)
        )


class NoMatch:
    """A lookup that never finds a fact."""

    def find(self, queries_BD: NDArray[np.float32], **_: Any) -> list[Lookup]:
        return [Lookup((), None, 1.0, 0) for _ in queries_BD]


def draw(
    kb: KnowledgeBase, corpus: str, facts: int, others: int, seed: int
) -> tuple[list[FactRecord], list[FactRecord]]:
    """Draw `facts` facts with a question to forget, and up to `others` others."""
    asked = [fact for fact in kb.facts.every(corpus) if fact.question]
    random.Random(seed).shuffle(asked)
    return asked[:facts], asked[facts : facts + others]


class DeletionAudit:
    """Forgets a sample of a corpus's facts, and measures them, other facts and their nearest neighbours."""

    def __init__(
        self, runtime: Runtime, sample: Sequence[FactRecord], others: Sequence[FactRecord], neighbours: int
    ) -> None:
        self.kb: KnowledgeBase = runtime.kb
        self.encoder, self.checkpoint, self.actor = runtime.encoder, runtime.checkpoint, runtime.actor(None)
        self.sample, self.others = sample, others
        most = max(1, len(self.sample))
        self.forgetting = Forgetting(self.kb, self.encoder, sample=most)
        self.reading = Forgetting(self.kb, self.encoder, runtime.reader, sample=most)
        self.keyset = self.kb.keysets.active()
        if self.keyset.checkpoint_id != self.checkpoint.checkpoint_id:
            raise KeysetMismatch(self.checkpoint.checkpoint_id, self.keyset.checkpoint_id)
        self.queries = self._encoded(self.sample)
        self.other_queries = self._encoded(self.others)
        self.neighbours = self._nearest(neighbours)
        self.neighbour_queries = self._encoded(self.neighbours)

    def _encoded(self, facts: Sequence[FactRecord]) -> NDArray[np.float32]:
        return self.encoder.encode_questions([_question(fact) for fact in facts])

    def _nearest(self, most: int) -> Sequence[FactRecord]:
        """Give at most `most` of the facts whose keys are nearest to the sample's questions.

        Facts that say the same as a sampled one are left out, since they are to be forgotten with it.
        """
        with self.kb.sessions() as session:
            space = KeySpace.live(session, self.keyset)
        ids = space.without(fact.fact_id for fact in self.sample).nearest(self.queries, NEIGHBOURS)
        records = self.forgetting.facts(ids.tolist())
        same = {_said_by(fact) for fact in self.sample}
        near = [records[i] for i in ids.tolist() if records[i].question and _said_by(records[i]) not in same]
        return sample_evenly(near, most) if near else []

    def said(self, mode: str, on_done: OnDone) -> SaidShares:
        """Ask the model for the sample, with lookups "forced", without any ("off"), or with no match for each
        ("null").
        """
        decoder = Decoder(self.checkpoint, NoMatch() if mode == "null" else self.kb.lookups)
        mode = "forced" if mode == "null" else mode
        config = DecodeConfig(mode=mode, max_tokens=32, repetition_penalty=1.0)
        prompts = [f"Question: {_question(fact)}\nAnswer:" for fact in self.sample]
        made = generate_all(decoder, prompts, config, BATCH, on_done)
        spliced = [[normalise_rows(value) for value in _values(one)] for one in made]
        wanted = [normalise_rows(fact.value) for fact in self.sample]
        return SaidShares(
            says=share([exact_match(g.output, [f.value]) for g, f in zip(made, self.sample, strict=True)]),
            splices=share([w in values for w, values in zip(wanted, spliced, strict=True)]),
            wrong_neighbour=share(
                [bool(values) and values[0] != w for w, values in zip(wanted, spliced, strict=True)]
            ),
        )

    def run(
        self, policy: str, radius: float | None, before: FoundShares, on_said: OnDone | None
    ) -> DeletionRun:
        """Forget the sample, measures, and undoes it. With `on_said` None the model is not asked, and nothing read."""
        begun = perf_counter()
        plan = self.plan(policy, radius)
        planned = perf_counter()
        with self.applied(plan.run_id):
            applied = perf_counter()
            forgetting = self.forgetting if on_said is None else self.reading
            verified = forgetting.verify(plan.run_id)
            gone = set(plan.fact_ids)
            stays = np.array([fact.fact_id not in gone for fact in self.others], dtype=bool)
            now = self.found()
            said = None if on_said is None else self.said("forced", on_said)
        return DeletionRun(
            policy=policy,
            radius=plan.radius,
            forgotten=len(plan.fact_ids),
            level=verified.level,
            probes=_added(list(verified.probes.values())),
            said=said,
            wrong_neighbour=_share(now.wrong[before.sample]),
            others=_share(now.others[stays]),
            others_lost=_share(~now.others[stays & before.others]),
            neighbours=_share(now.neighbours),
            neighbours_lost=_share(~now.neighbours[before.neighbours]),
            neighbours_forgotten=sum(fact.fact_id in gone for fact in self.neighbours),
            is_restored=self.found().is_as(before),
            seconds={"plan": round(planned - begun, 3), "apply": round(applied - planned, 3)},
        )

    def found(self) -> FoundShares:
        others = self.first(self.other_queries)
        finds = [h is not None and h.fact_id == f.fact_id for h, f in zip(others, self.others, strict=True)]
        sample = self.first(self.queries)
        tells = _tells(sample, self.sample)
        answered = np.array([hit is not None for hit in sample], dtype=bool)
        return FoundShares(
            others=np.array(finds, dtype=bool),
            neighbours=_tells(self.first(self.neighbour_queries), self.neighbours),
            sample=tells,
            wrong=answered & ~tells,
        )

    def first(self, queries_BD: NDArray[np.float32]) -> list[Hit | None]:
        """Give the best hit of each query, or None."""
        if not len(queries_BD):
            return []
        found = self.kb.lookups.find(queries_BD, checkpoint_id=self.checkpoint.checkpoint_id)
        return [one.hits[0] if one.hits else None for one in found]

    def plan(self, policy: str, radius: float | None, *, reading: bool = False) -> ForgetPlan:
        """Plan to forget the sample with its equivalents, those too that are found by reading if `reading`."""
        forgetting = self.reading if reading else self.forgetting
        return forgetting.plan(
            Selector(fact_ids=tuple(fact.fact_id for fact in self.sample)),
            actor=self.actor, reason=REASON, equivalents="include", radius=radius, policy=policy,
        )  # fmt: skip

    @contextmanager
    def applied(self, run_id: int) -> Iterator[None]:
        """Apply a forget run for the length of the context, and restore it at the end."""
        self.forgetting.apply(run_id, actor=self.actor, reason=REASON)
        try:
            yield
        finally:
            self.forgetting.restore(run_id, actor=self.actor, reason=REASON)


def _tells(hits: Sequence[Hit | None], facts: Sequence[FactRecord]) -> NDArray[np.bool_]:
    """Give [n] whether each hit has its fact's value."""
    return np.array(
        [
            hit is not None and normalise_rows(hit.value) == normalise_rows(fact.value)
            for hit, fact in zip(hits, facts, strict=True)
        ],
        dtype=bool,
    )


def _share(holds_N: NDArray[np.bool_]) -> Share | None:
    """Give the share of True, or None of an empty array."""
    return share(list(holds_N)) if len(holds_N) else None


def as_json(run: DeletionRun) -> dict[str, Any]:
    """Give the run as JSON, with its checks also as rates."""
    rates = {name: round(run.probes.rate(name), 4) for name in OUTCOMES}
    return asdict(run) | {"probe_rates": rates}


def _question(fact: FactRecord) -> str:
    assert fact.question is not None
    return fact.question


def _said_by(fact: FactRecord) -> tuple[str, str]:
    return normalise_rows(_question(fact)) if fact.question else "", normalise_rows(fact.value)


def _values(generation: DecodedOutput) -> list[str]:
    return [
        generation.output[s.output_start : s.output_end] for s in generation.splices if s.outcome == "hit"
    ]


def _added(classes: Sequence[Rates]) -> Rates:
    names = ("probes", *OUTCOMES)
    return Rates(**{name: sum(getattr(one, name) for one in classes) for name in names})


# Plants facts as an adversary would, so that the values of forgotten facts survive in them.
#
# Each says the same as a fact that is to be forgotten, with another wording of the question, or of question and
# value. Of the wordings that the question would still find after the forgetting, that with the farthest key is
# planted: a closure by radius is most likely to miss it, and a lookup still finds it.

PLANTED = "planted by colmlm-lab evaluate deletion"
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
    """Give other wordings of a question, none of which counts as the same question."""
    forms = [*paraphrases(question), *(form.format(question) for form in FURTHER)]
    return [form for form in dict.fromkeys(forms) if normalise_rows(form) != normalise_rows(question)]


def choose(
    kb: KnowledgeBase,
    keyset: KeysetHead,
    encoder: ModelEncoder,
    sample: Sequence[FactRecord],
    asked_ND: Floats,
) -> list[Wording]:
    """Choose the wording to plant for each fact. `asked_ND` are the keys of the facts' own questions."""
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
    """Plant facts, yield their ids in the order of the wordings, and delete them at the end."""
    drafts = [
        FactDraft(one.question, one.fact.value if kind == "question" else SAID.format(one.fact.value))
        for one in wordings
    ]
    ids: Sequence[int] = ()
    try:
        ids = kb.facts.add_many(drafts, actor=actor, reason=PLANTED, anyway=True).fact_ids
        keys_ND = np.stack([one.key for one in wordings])
        kb.keysets.store_keys(
            keyset_id, np.array(ids, dtype=np.int64), keys_ND, "question", actor=actor, reason=PLANTED
        )
        yield list(ids)
    finally:
        if ids:
            kb.facts.delete(ids, actor=actor, reason=PLANTED)


def gives(value: str, said: str) -> bool:
    """Tell whether a found value contains this one as whole words."""
    return re.search(rf"(?<!\w){re.escape(normalise_rows(value))}(?!\w)", normalise_rows(said)) is not None


def survive(
    audit: DeletionAudit,
    policies: Sequence[str],
    radii: Sequence[float | None],
    on_run: Callable[[int], None],
) -> list[Survival]:
    """Plant a fact of each kind in turn for each of the sample, and forget the sample by each policy and radius.

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
