"""`colmlm-lab evaluate deletion`: measures what is left of forgotten facts, by policy and radius, what others lose."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, DryRun, examples
from colmlm.cli.output import counting, note
from colmlm.kb.errors import Conflict, KeysetMismatch
from colmlm.kb.facts.records import FactDraft, FactRecord
from colmlm.kb.keys.calibration import normalise_value
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.records import Hit, Lookup
from colmlm.kb.removal.checks import paraphrases, sample_evenly
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.plan import NEIGHBOURS
from colmlm.kb.removal.records import OUTCOMES, ForgetPlan, Rates, RunRecord
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.machine import print_report
from colmlm.lab.methods.methods import generate_all
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.evaluate.answers import Share, exact_match, share

EXAMPLES = examples(
    "colmlm-lab evaluate deletion --corpus demo --facts 50",
    "colmlm-lab evaluate deletion --corpus squad-dev --facts 200 --radius 0.7 --radius 0.8 --radius 0.9 --json",
)
POLICIES = ("successor", "abstain")
ASKED = {"full": "forced", "off": "off", "null": "null"}  # figures before forgetting, with their modes


def deletion(
    corpus: Annotated[
        str, typer.Option("--corpus", help="Whose facts; those with a question are asked for.")
    ],
    facts: Annotated[int, typer.Option("--facts", min=1, help="How many are forgotten, all together.")] = 100,
    others: Annotated[
        int, typer.Option("--others", min=1, help="How many other facts are looked up before and after.")
    ] = 300,
    neighbours: Annotated[
        int,
        typer.Option(
            "--neighbours", min=1, help="How many of the facts nearest to those that are forgotten."
        ),
    ] = 300,
    survivors: Annotated[
        bool, typer.Option(help="Also with a fact planted beside each that says the same in other words.")
    ] = True,
    radius: Annotated[
        list[float] | None,
        typer.Option(
            "--radius", min=-1, max=1, help="How near equivalents lie. Repeatable. Default: the threshold."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the facts.")] = 0,
    checkpoint: CheckpointPath = None,
    dry_run: DryRun = False,
) -> None:
    """Forget a sample of facts by each policy and radius, ask for them, look others up, and undo it.

    `full` is the model before anything is forgotten, `off` the model without lookups, `null` the model whose lookups
    find nothing: what it says there comes from its training, which no deletion changes. The model is asked at the first
    radius only. While this runs the facts are deleted for everybody, and others planted: use a knowledge base of your
    own.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        if not dry_run and any(left := set_back(runtime.kb, runtime.actor(None))):
            note(f"a run that was killed had left {left[0]} facts forgotten and {left[1]} planted: undone.")
        drawn = draw(runtime.kb, corpus, facts, others, seed)
        if not all(drawn):
            cause = f"{corpus} has too few facts with a question; lower --facts, or name another corpus."
            raise typer.BadParameter(cause, param_hint="--corpus")
        if dry_run:
            _preview(drawn[0], corpus, len(radius or [None]), survivors)
            return
        audit = DeletionAudit(runtime, *drawn, neighbours)
        report: dict[str, Any] = {
            "checkpoint": audit.checkpoint.config.name,
            "corpus": corpus,
            "facts": len(audit.sample),
            "others": len(audit.others),
            "neighbours": len(audit.neighbours),
        }
        before = audit.measure_found()
        radii: list[float | None] = list(radius) if radius else [None]
        with counting("Asking", (len(ASKED) + len(POLICIES)) * len(audit.sample)) as done:
            for name, mode in ASKED.items():
                report[name] = audit.ask_model(mode, done)
            runs = [
                audit.run(policy, at, before, done if number == 0 else None)
                for policy in POLICIES
                for number, at in enumerate(radii)
            ]
        if survivors:
            with counting("Planting", len(KINDS) * len(POLICIES) * (len(radii) + 1)) as done:
                report["survivors"] = survive(audit, POLICIES, radii, done)
        is_restored = audit.measure_found().is_as(before)
    report["runs"] = runs
    print_report(report)
    if not (is_restored and all(run["is_restored"] for run in runs)):
        note("warning: not every lookup is as it was; did somebody else edit meanwhile?")


def _preview(sample: Sequence[FactRecord], corpus: str, radii: int, survivors: bool) -> None:
    planted = len(sample) * len(KINDS) if survivors else 0
    runs = len(POLICIES) * (radii + (radii + 1) * len(KINDS) * survivors)
    fact_ids = [fact.fact_id for fact in sample]
    print_report({"dry_run": True, "corpus": corpus, "fact_ids": fact_ids, "runs": runs, "planted": planted})


# Undoes what a killed `colmlm-lab evaluate deletion` has left in a knowledge base.

PAGE = 1000
_Record = TypeVar("_Record")


def set_back(kb: KnowledgeBase, actor: str) -> tuple[int, int]:
    """Restore the facts still forgotten, delete those still planted, and give the number of each.

    It restores first, since a run may have forgotten planted facts too. A run of which somebody has restored or erased
    a fact since is reported and left as it is.
    """
    forgetting, restored = Forgetting(kb), 0
    for run in reversed(list(_every_forget_run(forgetting))):
        if run.state == "applied" and run.reason == REASON:
            try:
                forgetting.restore(run.run_id, actor=actor, reason=REASON)
                restored += run.num_facts
            except Conflict as error:
                note(f"warning: forget run {run.run_id}, which a killed one left, is not undone: {error}")
    planted = [i for change in _insert_changes(kb) if change.reason == PLANTED for i in change.fact_ids]
    left = [i for i in planted if kb.facts.show(i).deleted_seq is None]
    if left:
        kb.facts.delete(left, actor=actor, reason=PLANTED)
    return restored, len(left)


def _every_forget_run(forgetting: Forgetting) -> Iterator[RunRecord]:
    return _read_pages(lambda after: forgetting.runs(after, PAGE), lambda run: run.run_id)


def _insert_changes(kb: KnowledgeBase) -> Iterator[ChangeRecord]:
    def page(after: int) -> list[ChangeRecord]:
        with kb.sessions() as session:
            return audit.list_changes(session, after, PAGE, kind="insert")

    return _read_pages(page, lambda change: change.seq)


def _read_pages(page: Callable[[int], Sequence[_Record]], key: Callable[[_Record], int]) -> Iterator[_Record]:
    after = 0
    while found := page(after):
        yield from found
        after = key(found[-1])


# Measures what is left of facts after they are forgotten, and which other facts are lost with them.
#
# Everything is counted over one sample of facts with a question, which are forgotten together. The model is asked for
# them before and after, with lookups and without, and other facts, random and nearest ones, are looked up before and
# after. Facts that an adversary plants are measured in runs of their own. Nothing is chosen by its result, and every
# run is undone.

REASON = "colmlm-lab evaluate deletion"
BATCH = 16
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FoundShares:
    """Record what questions find: `others` [n] their own fact, `neighbours` [m] and `sample` [k] their fact's value.

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
        models = (self.encoder, runtime.reader, runtime.sentence_encoder)
        self.reading = Forgetting(self.kb, *models, sample=most)
        self.keyset = self.kb.keysets.active()
        if self.keyset.checkpoint_id != self.checkpoint.checkpoint_id:
            raise KeysetMismatch(self.checkpoint.checkpoint_id, self.keyset.checkpoint_id)
        self.queries = self._encode_questions(self.sample)
        self.other_queries = self._encode_questions(self.others)
        self.neighbours = self._nearest(neighbours)
        self.neighbour_queries = self._encode_questions(self.neighbours)

    def _encode_questions(self, facts: Sequence[FactRecord]) -> NDArray[np.float32]:
        return self.encoder.encode_questions([_question(fact) for fact in facts])

    def _nearest(self, most: int) -> Sequence[FactRecord]:
        """Give at most `most` of the facts whose keys are nearest to the sample's questions.

        Facts that say the same as a sampled one are left out, since they are to be forgotten with it.
        """
        with self.kb.sessions() as session:
            space = KeySpace.live(session, self.keyset)
        ids = space.exclude(fact.fact_id for fact in self.sample).nearest_facts(self.queries, NEIGHBOURS)
        records = self.forgetting.facts(ids.tolist())
        same = {_said_by(fact) for fact in self.sample}
        near = [records[i] for i in ids.tolist() if records[i].question and _said_by(records[i]) not in same]
        return sample_evenly(near, most) if near else []

    def ask_model(self, mode: str, on_done: OnDone) -> dict[str, Any]:
        """Ask the model for the sample, with lookups "forced", without any ("off"), or with no match for each ("null").

        `says`: it says the value. `splices`: it splices a fact of that value, this one or another. `wrong_neighbour`:
        its first splice is a fact of another value.
        """
        decoder = Decoder(self.checkpoint, NoMatch() if mode == "null" else self.kb.lookups)
        mode = "forced" if mode == "null" else mode
        config = DecodeConfig(mode=mode, max_tokens=32, repetition_penalty=1.0)
        prompts = [f"Question: {_question(fact)}\nAnswer:" for fact in self.sample]
        made = generate_all(decoder, prompts, config, BATCH, on_done)
        spliced = [[normalise_value(value) for value in _values(one)] for one in made]
        wanted = [normalise_value(fact.value) for fact in self.sample]
        return {
            "says": share([exact_match(g.output, [f.value]) for g, f in zip(made, self.sample, strict=True)]),
            "splices": share([w in values for w, values in zip(wanted, spliced, strict=True)]),
            "wrong_neighbour": share(
                [bool(values) and values[0] != w for w, values in zip(wanted, spliced, strict=True)]
            ),
        }

    def run(
        self, policy: str, radius: float | None, before: FoundShares, on_said: OnDone | None
    ) -> dict[str, Any]:
        """Forget the sample, measure, and undo it. With `on_said` None the model is not asked, and nothing read.

        `forgotten` counts the facts with their equivalents. `probes` counts all checks of the verification by outcome;
        `level` is the level it reached. `wrong_neighbour` is the share of the sample's questions that found their value
        before and now find another. `others` is the share of the other facts not forgotten that their question finds,
        `others_lost` the share of those found before that are not found now. `neighbours` is the share of the facts
        nearest to the sample whose question finds their value, `neighbours_lost` the share of those found before that
        are not found now; `neighbours_forgotten` counts those that the plan includes.
        """
        begun = perf_counter()
        plan = self.plan(policy, radius)
        planned = perf_counter()
        with self.apply_run(plan.run_id):
            applied = perf_counter()
            forgetting = self.forgetting if on_said is None else self.reading
            verified = forgetting.verify(plan.run_id)
            gone = set(plan.fact_ids)
            stays = np.array([fact.fact_id not in gone for fact in self.others], dtype=bool)
            now = self.measure_found()
            said = None if on_said is None else self.ask_model("forced", on_said)
        probes = _sum_rates(list(verified.probes.values()))
        return {
            "policy": policy,
            "radius": plan.radius,
            "forgotten": len(plan.fact_ids),
            "level": verified.level,
            "probes": probes,
            "probe_rates": {name: round(probes.rate(name), 4) for name in OUTCOMES},
            "said": said,
            "wrong_neighbour": _share(now.wrong[before.sample]),
            "others": _share(now.others[stays]),
            "others_lost": _share(~now.others[stays & before.others]),
            "neighbours": _share(now.neighbours),
            "neighbours_lost": _share(~now.neighbours[before.neighbours]),
            "neighbours_forgotten": sum(fact.fact_id in gone for fact in self.neighbours),
            "is_restored": self.measure_found().is_as(before),
            "seconds": {"plan": round(planned - begun, 3), "apply": round(applied - planned, 3)},
        }

    def measure_found(self) -> FoundShares:
        others = self.best_hits(self.other_queries)
        finds = [h is not None and h.fact_id == f.fact_id for h, f in zip(others, self.others, strict=True)]
        sample = self.best_hits(self.queries)
        tells = _tells(sample, self.sample)
        answered = np.array([hit is not None for hit in sample], dtype=bool)
        return FoundShares(
            others=np.array(finds, dtype=bool),
            neighbours=_tells(self.best_hits(self.neighbour_queries), self.neighbours),
            sample=tells,
            wrong=answered & ~tells,
        )

    def best_hits(self, queries_BD: NDArray[np.float32]) -> list[Hit | None]:
        """Look up each query, and give its best hit or None."""
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
    def apply_run(self, run_id: int) -> Iterator[None]:
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
            hit is not None and normalise_value(hit.value) == normalise_value(fact.value)
            for hit, fact in zip(hits, facts, strict=True)
        ],
        dtype=bool,
    )


def _share(holds_N: NDArray[np.bool_]) -> Share | None:
    """Give the share of True, or None of an empty array."""
    return share(list(holds_N)) if len(holds_N) else None


def _question(fact: FactRecord) -> str:
    assert fact.question is not None
    return fact.question


def _said_by(fact: FactRecord) -> tuple[str, str]:
    return normalise_value(_question(fact)) if fact.question else "", normalise_value(fact.value)


def _values(generation: DecodedOutput) -> list[str]:
    return [
        generation.output[s.output_start : s.output_end] for s in generation.splices if s.outcome == "hit"
    ]


def _sum_rates(classes: Sequence[Rates]) -> Rates:
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


def wordings_of(question: str) -> list[str]:
    """Give paraphrases of a question that still differ from it once normalised."""
    forms = [*paraphrases(question), *(form.format(question) for form in FURTHER)]
    return [form for form in dict.fromkeys(forms) if normalise_value(form) != normalise_value(question)]


def choose(
    kb: KnowledgeBase,
    keyset: KeysetHead,
    encoder: ModelEncoder,
    sample: Sequence[FactRecord],
    asked_ND: Floats,
) -> list[Wording]:
    """Choose for each fact how to write its deleted value again, so that a lookup of its question would find it.

    `asked_ND` [N, D] are the keys of the facts' own questions.
    """
    rivals = kb.lookups.find(asked_ND, checkpoint_id=keyset.checkpoint_id, k=RIVALS, threshold=-1)
    found = []
    for fact, asked_D, near in zip(sample, asked_ND, rivals, strict=True):
        others = [hit.score for hit in near.hits if normalise_value(hit.value) != normalise_value(fact.value)]
        least = max([keyset.threshold, *others[:1]])
        forms = wordings_of(fact.question or "")
        keys = encoder.encode_questions(forms)
        scores = keys @ asked_D
        enough = np.flatnonzero(scores > least)
        at = int(enough[scores[enough].argmin()] if len(enough) else scores.argmax())
        found.append(Wording(fact, forms[at], keys[at], round(float(scores[at]), 4)))
    return found


@contextmanager
def plant_facts(
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
    return re.search(rf"(?<!\w){re.escape(normalise_value(value))}(?!\w)", normalise_value(said)) is not None


def survive(
    audit: DeletionAudit,
    policies: Sequence[str],
    radii: Sequence[float | None],
    on_run: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Plant a fact of each kind in turn for each of the sample, and forget the sample by each policy and radius.

    At the first radius it is also forgotten with what reading finds, as `reading` says. `found` is the share of
    planted facts that the plan's closure includes, `listed` that of those it includes or lists; `by_question` and
    `by_wording` are the shares of the sample whose value a planted fact still tells when the sampled question or the
    planted wording is looked up. `similarity` is the least, median and greatest cosine of the planted keys with the
    questions' keys.
    """
    chosen = choose(audit.kb, audit.keyset, audit.encoder, audit.sample, audit.queries)
    measured = []
    for kind in KINDS:
        with plant_facts(audit.kb, audit.keyset.keyset_id, chosen, kind, audit.actor) as ids:
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
) -> dict[str, Any]:
    gone, ours = set(plan.fact_ids), set(ids)
    listed = gone | {fact_id for one in plan.survivors for fact_id in one.fact_ids}
    with audit.apply_run(plan.run_id):
        by_question = audit.best_hits(audit.queries)
        by_wording = audit.best_hits(np.stack([one.key for one in chosen]))

    def share_told(hits: Sequence[Hit | None]) -> Share:
        pairs = zip(hits, audit.sample, strict=True)
        return share([h is not None and h.fact_id in ours and gives(f.value, h.value) for h, f in pairs])

    least, median, most = np.quantile([one.similarity for one in chosen], [0, 0.5, 1]).round(4).tolist()
    return {
        "kind": kind,
        "policy": plan.policy,
        "radius": plan.radius,
        "reading": reading,
        "planted": len(ids),
        "similarity": (least, median, most),
        "found": share([i in gone for i in ids]),
        "listed": share([i in listed for i in ids]),
        "by_question": share_told(by_question),
        "by_wording": share_told(by_wording),
    }
