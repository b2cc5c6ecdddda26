"""What is left of facts after they are forgotten, and what is lost beside them.

Everything is counted over the same sample: facts that have a question are forgotten together, the model is asked for
them before and after, with lookups and without, and other facts are looked up before and after. Nothing is picked by
its result, and every run is undone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.runtime import Runtime
from kb.calibration import normalise
from kb.forget_records import OUTCOMES, Rates
from kb.forgetting import Forgetting
from kb.records import FactRecord
from kb.selectors import Selector
from kb.service import KnowledgeBase
from model.decoding.config import DecodeConfig
from model.decoding.decoder import Decoder, Generation
from model.evaluate.answers import Share, exact_match, share

REASON = "colmlm evaluate deletion"
PAGE, BATCH = 1000, 16
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the model said when it was asked for each of the facts, as shares of them.

    `says` it says the value. `splices` it splices a fact of that value, this one or another. `wrong_neighbour` the
    first thing it splices is a fact of another value.
    """

    says: Share
    splices: Share
    wrong_neighbour: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way to forget the sample. `forgotten` counts the facts with their equivalents.

    `probes` are all that verification asks, by outcome; `level` what it reached. `others` is the share of other
    facts that stay whose question finds them, `others_lost` of those found before that are not found now.
    """

    policy: str
    radius: float
    forgotten: int
    level: int
    probes: Rates
    said: Said | None
    others: Share | None
    others_lost: Share | None
    is_restored: bool
    seconds: dict[str, float]


class DeletionAudit:
    """A sample of a corpus's facts, and of others that are not forgotten with them."""

    def __init__(self, runtime: Runtime, corpus: str, facts: int, others: int, seed: int) -> None:
        self.kb: KnowledgeBase = runtime.kb
        self.encoder, self.checkpoint, self.actor = runtime.encoder, runtime.checkpoint, runtime.actor(None)
        asked = [fact for fact in _facts(self.kb, corpus) if fact.question]
        random.Random(seed).shuffle(asked)
        self.sample, self.others = asked[:facts], asked[facts : facts + others]
        self.forgetting = Forgetting(self.kb, self.encoder, sample=max(1, len(self.sample)))
        self.other_queries = self.encoder.encode_questions([_question(fact) for fact in self.others])

    def said(self, mode: str, on_done: OnDone) -> Said:
        """What the model says with lookups forced, or with mode "off" what it knows by itself."""
        decoder = Decoder(self.checkpoint, self.kb)
        config = DecodeConfig(mode=mode, max_tokens=32, repetition_penalty=1.0)
        made: list[Generation] = []
        for start in range(0, len(self.sample), BATCH):
            some = self.sample[start : start + BATCH]
            made += decoder.generate([f"Question: {_question(fact)}\nAnswer:" for fact in some], config)
            on_done(len(some))
        spliced = [[normalise(value) for value in _values(one)] for one in made]
        wanted = [normalise(fact.value) for fact in self.sample]
        return Said(
            says=share([exact_match(g.output, [f.value]) for g, f in zip(made, self.sample, strict=True)]),
            splices=share([w in values for w, values in zip(wanted, spliced, strict=True)]),
            wrong_neighbour=share(
                [bool(values) and values[0] != w for w, values in zip(wanted, spliced, strict=True)]
            ),
        )

    def run(
        self, policy: str, radius: float | None, before: NDArray[np.bool_], on_said: OnDone | None
    ) -> Run:
        """Forget the sample, measure, and undo it. `on_said` None: the model is not asked."""
        begun = perf_counter()
        plan = self.forgetting.plan(
            Selector(fact_ids=tuple(fact.fact_id for fact in self.sample)),
            actor=self.actor, reason=REASON, equivalents="include", radius=radius, policy=policy,
        )  # fmt: skip
        planned = perf_counter()
        with self._applied(plan.run_id):
            applied = perf_counter()
            verified = self.forgetting.verify(plan.run_id)
            gone = set(plan.fact_ids)
            stays = np.array([fact.fact_id not in gone for fact in self.others], dtype=bool)
            now = self.found_others()
            said = None if on_said is None else self.said("forced", on_said)
        return Run(
            policy=policy,
            radius=plan.radius,
            forgotten=len(plan.fact_ids),
            level=verified.level,
            probes=_added(list(verified.probes.values())),
            said=said,
            others=_share(now[stays]),
            others_lost=_share(~now[stays & before]),
            is_restored=bool((self.found_others() == before).all()),
            seconds={"plan": round(planned - begun, 3), "apply": round(applied - planned, 3)},
        )

    def found_others(self) -> NDArray[np.bool_]:
        """[n] whether the question of each of the other facts brings it first."""
        found = self.kb.lookup(self.other_queries, checkpoint_id=self.checkpoint.checkpoint_id)
        return np.array(
            [
                bool(f.hits) and f.hits[0].fact_id == fact.fact_id
                for f, fact in zip(found, self.others, strict=True)
            ],
            dtype=bool,
        )

    @contextmanager
    def _applied(self, run_id: int) -> Iterator[None]:
        self.forgetting.apply(run_id, actor=self.actor, reason=REASON)
        try:
            yield
        finally:
            self.forgetting.restore(run_id, actor=self.actor, reason=REASON)


def _share(holds_N: NDArray[np.bool_]) -> Share | None:
    """None where there is nothing to take a share of."""
    return share(list(holds_N)) if len(holds_N) else None


def as_json(run: Run) -> dict[str, Any]:
    """The run with its probes also as rates."""
    rates = {name: round(run.probes.rate(name), 4) for name in OUTCOMES}
    return asdict(run) | {"probe_rates": rates}


def _facts(kb: KnowledgeBase, corpus: str) -> Iterator[FactRecord]:
    after = 0
    while page := kb.facts(corpus=corpus, after=after, limit=PAGE):
        yield from page
        after = page[-1].fact_id


def _question(fact: FactRecord) -> str:
    assert fact.question is not None
    return fact.question


def _values(generation: Generation) -> list[str]:
    return [
        generation.output[s.output_start : s.output_end] for s in generation.splices if s.outcome == "hit"
    ]


def _added(classes: Sequence[Rates]) -> Rates:
    names = ("probes", *OUTCOMES)
    return Rates(**{name: sum(getattr(one, name) for one in classes) for name in names})
