"""`colmlm evaluate survivors`: measures which planted texts a plan to forget lists, and which it should not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import counting, note, print_json, print_table
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.facts.reading import document_text
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import OUTCOMES, ForgetPlan, Rates, Verification
from colmlm.kb.removal.selector import Selector
from colmlm.lab.methods.own_base import own_base
from colmlm.lab.methods.planted_texts import KINDS, PlantedText, controls, planted_text
from colmlm.model.evaluate.answers import Share, share

EXAMPLES = examples("colmlm evaluate survivors --squad dev.jsonl --documents 300 --facts 100 --json")
CORPUS = "squad"


def survivors(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ],
    documents: Annotated[
        int, typer.Option("--documents", min=1, help="How many paragraphs, drawn by the seed.")
    ] = 300,
    facts: Annotated[
        int, typer.Option("--facts", min=1, help="How many of their facts are forgotten, all together.")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs, facts and texts.")] = 0,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Plant texts that tell facts in other words, or only seem to, and plan to forget the facts.

    The facts are those that people marked, in a knowledge base of its own. For each that is forgotten a text is planted
    in another document: one that tells it by its value, by another wording of the value, and for control one on another
    subject, with that subject's value of the same sort or with this value.
    """
    with own_base(checkpoint) as runtime:
        parsed = list(read_squad(squad))
        random.Random(seed).shuffle(parsed)
        runtime.kb.corpora.ingest(parsed[:documents], CORPUS, actor=ACTOR, reason=REASON)
        key_everything(runtime, kinds="context,question")
        audit = SurvivorAudit(runtime, CORPUS, facts, seed)
        if len(audit.others) < facts:
            raise typer.BadParameter("it has too few facts with a question.", param_hint="--facts")
        with counting("Planning", len(KINDS)) as done:
            measured = audit.measure(done)
        after = audit.after()
    report: dict[str, Any] = {"facts": facts, "documents": documents}
    report |= {"survivors": [asdict(one) for one in measured], "after": asdict(after)}
    print_json(report) if as_json else _show(measured, after)


def _show(measured: list[TextSurvival], after: AfterForgetting) -> None:
    columns = ("planted", "n", "listed", "would be taken along", "says the value", "other places")
    rows = [
        (one.kind, one.planted, _share(one.listed), _share(one.taken), _counts(one.says), one.unplanted)
        for one in measured
    ]
    print_table(columns, rows)
    print_table(
        ("checks afterwards", "n", *OUTCOMES),
        [
            (name, r.probes, *(getattr(r, outcome) for outcome in OUTCOMES))
            for name, r in after.probes.items()
        ],
    )
    note(f"level {after.level}; {after.answered} questions would still be answered were the texts gone, too")


def _counts(says: dict[str, int]) -> str:
    return ", ".join(f"{name} {says[name]}" for name in sorted(says))


def _share(found: Share) -> str:
    return f"{found.share:.3f} [{found.low:.3f}, {found.high:.3f}]"


# Measures what a plan to forget finds in texts that were planted, which tell a forgotten fact or only seem
# to.

ACTOR, REASON = "evaluate survivors", "colmlm evaluate survivors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSurvival:
    """The figures of the texts of one kind, one for each forgotten fact.

    `listed` is the share that the plan lists for their fact, `taken` the share that it would take along, and `says`
    counts how the listed ones say the value. `unplanted` counts the places of other texts that it lists.
    """

    kind: str
    planted: int
    listed: Share
    taken: Share
    says: dict[str, int]
    unplanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterForgetting:
    """What the checks of a verification get, by class, once the sample is forgotten with the policy "abstain"."""

    level: int
    probes: dict[str, Rates]
    answered: int


class SurvivorAudit:
    """Plants texts beside a sample of facts, and plans to forget the sample."""

    def __init__(self, runtime: Runtime, corpus: str, facts: int, seed: int) -> None:
        self.kb, self.encoder = runtime.kb, runtime.encoder
        asked = [fact for fact in self.kb.facts.every(corpus) if fact.question and fact.source]
        self.random = random.Random(seed)
        self.random.shuffle(asked)
        self.sample = asked[:facts]
        self.others = controls(self.sample, asked[facts:], self.random)
        most = 2 * max(1, len(self.sample))  # also where others are taken along
        self.forgetting = Forgetting(self.kb, runtime.encoder, runtime.reader, sample=most)
        with self.kb.sessions() as session:
            sources = [fact.source for fact in (*self.sample, *self.others) if fact.source]
            documents = {source.document_id for source in sources}
            self.texts = {number: document_text(session, number) for number in documents}

    def measure(self, on_kind: Callable[[int], None]) -> list[TextSurvival]:
        """Measures every kind by itself; texts of another are deleted before."""
        measured = []
        for kind in KINDS:
            with self._planted(kind) as owners:
                measured.append(_survival(kind, owners, self._plan("only-list")))
            on_kind(1)
        return measured

    def after(self) -> AfterForgetting:
        """Forgets the sample with what says the same, verifies that, and undoes it."""
        plan = self._plan("include")
        self.forgetting.apply(plan.run_id, actor=ACTOR, reason=REASON)
        found: Verification = self.forgetting.verify(plan.run_id)
        self.forgetting.restore(plan.run_id, actor=ACTOR, reason=REASON)
        answered = len({one.asked_fact_id for one in found.survivors})
        return AfterForgetting(level=found.level, probes=dict(found.probes), answered=answered)

    def _plan(self, equivalents: str) -> ForgetPlan:
        selector = Selector(fact_ids=tuple(fact.fact_id for fact in self.sample))
        return self.forgetting.plan(
            selector, actor=ACTOR, reason=REASON, equivalents=equivalents, policy="abstain"
        )

    @contextmanager
    def _planted(self, kind: str) -> Iterator[dict[int, int]]:
        """Plants texts with keys; gives for each of their facts the fact that it was planted for."""
        made = [
            planted_text(kind, number, fact, other, self.texts, self.random)
            for number, (fact, other) in enumerate(zip(self.sample, self.others, strict=True))
        ]
        owners = self._ingested(kind, made)
        yield owners
        self.kb.facts.delete(list(owners), actor=ACTOR, reason=REASON)

    def _ingested(self, kind: str, made: Sequence[PlantedText]) -> dict[int, int]:
        documents = [one.document for one in made]
        self.kb.corpora.ingest([Parsed(one) for one in documents], kind, actor=ACTOR, reason=REASON)
        ids = {fact.source.external_id: fact.fact_id for fact in self.kb.facts.every(kind) if fact.source}
        ordered = [ids[document.external_id] for document in documents]
        self.kb.keysets.store_keys(
            self.kb.keysets.active().keyset_id,
            np.array(ordered, dtype=np.int64),
            np.concatenate(self.encoder.encode_documents(documents)),
            "context",
            actor=ACTOR,
            reason=REASON,
        )
        return {number: one.fact.fact_id for number, one in zip(ordered, made, strict=True)}


def _survival(kind: str, owners: dict[int, int], plan: ForgetPlan) -> TextSurvival:
    says: Counter[str] = Counter()
    listed: set[int] = set()
    unplanted = 0
    for one in plan.survivors:
        ours = {fact_id for fact_id in one.fact_ids if owners.get(fact_id) == one.asked_fact_id}
        unplanted += not any(fact_id in owners for fact_id in one.fact_ids)
        says.update([one.says] * len(ours - listed))
        listed |= ours
    taken = set(plan.equivalents)
    return TextSurvival(
        kind=kind,
        planted=len(owners),
        listed=share([fact_id in listed for fact_id in owners]),
        taken=share([fact_id in taken for fact_id in owners]),
        says=dict(says),
        unplanted=unplanted,
    )
