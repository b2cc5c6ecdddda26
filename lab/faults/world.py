"""The model of what a knowledge base holds after a sequence of steps, in plain dictionaries.

A fact is named by its question, which no other fact ever has. So a fact whose insert was in doubt has a name before its
id is known.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.facts.redaction import MARK

_LIKE = {"forget": "delete", "purge": "erase"}  # steps that leave what others leave
ABSENT, BUILDING, READY, ACTIVE, RETIRED = "none", "building", "ready", "active", "retired"


@dataclass(frozen=True, slots=True)
class Text:
    """A document: an introduction that changes with `intro`, then a sentence for each (question, value)."""

    intro: int
    spans: tuple[tuple[str, str], ...]

    def document(self, external_id: str) -> AnnotatedDocument:
        text, spans = f"Register {external_id}, edition {self.intro}.", []
        for question, value in self.spans:
            # Longer than the 40 characters of context by which an ingest recognises an existing fact.
            text += f" To the question that was filed as <{question}> the register replies: "
            spans.append(FactSpan(len(text), len(text) + len(value), value, question, value))
            text += f"{value}."
        return AnnotatedDocument(external_id, text, tuple(spans))

    def without_values(self, erased: Container[str]) -> Text:
        """Give this text with the values of these questions redacted."""
        return replace(
            self, spans=tuple((q, MARK * len(value) if q in erased else value) for q, value in self.spans)
        )


@dataclass(frozen=True, slots=True)
class WorkloadStep:
    """One verb of the workload with its arguments.

    `expected` are the values that lookups must give (None: no match).
    """

    do: str
    questions: tuple[str, ...] = ()
    value: str = ""
    abstain: bool = False
    documents: tuple[tuple[str, Text], ...] = ()
    encoder: int = 0
    expected: tuple[str | None, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> WorkloadStep:
        documents = tuple(
            (external_id, Text(text["intro"], tuple((q, v) for q, v in text["spans"])))
            for external_id, text in fields["documents"]
        )
        lists = {name: tuple(fields[name]) for name in ("questions", "expected")}
        return cls(**{**fields, **lists, "documents": documents})


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A fact in the model. `fact_id` is 0 until it was read from the database; `past` holds former values."""

    value: str
    past: tuple[str, ...] = ()
    live: bool = True
    abstain: bool = False
    erased: bool = False
    fact_id: int = 0

    @property
    def is_indexed(self) -> bool:
        """Whether the index must hold its keys."""
        return self.live or self.abstain

    def with_value(self, value: str) -> KnownFact:
        return replace(self, value=value, past=(*self.past, self.value))


@dataclass(frozen=True, slots=True)
class World:
    """The state of a knowledge base: facts by question, documents by external id, the state of each encoder's keyset.

    `keyed` holds, for each encoder, the facts that certainly have a key; others may or may not have one. `predicted`
    has those that may have a predicted one.
    """

    facts: Mapping[str, KnownFact] = field(default_factory=dict)
    documents: Mapping[str, Text] = field(default_factory=dict)
    keysets: tuple[str, str] = (ABSENT, ABSENT)
    keyed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    predicted: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    @property
    def active(self) -> int:
        return self.keysets.index(ACTIVE)

    def apply(self, step: WorkloadStep) -> World:
        """Give the world after this step."""
        verb = getattr(self, f"_{_LIKE.get(step.do, step.do)}", None)
        return self if verb is None else verb(step)  # lookups, catch-ups and snapshots change nothing

    def answer(self, question: str) -> str | None:
        fact = self.facts[question]
        return fact.value if fact.live else None

    def _insert(self, step: WorkloadStep) -> World:
        return self._with_facts({q: KnownFact(step.value) for q in step.questions})

    def _update(self, step: WorkloadStep) -> World:
        return self._with_facts({q: self.facts[q].with_value(step.value) for q in step.questions})

    def _delete(self, step: WorkloadStep) -> World:
        return self._with_facts(
            {q: replace(self.facts[q], live=False, abstain=step.abstain) for q in step.questions}
        )

    def _restore(self, step: WorkloadStep) -> World:
        return self._with_facts({q: replace(self.facts[q], live=True, abstain=False) for q in step.questions})

    def _erase(self, step: WorkloadStep) -> World:
        gone = {q: replace(self.facts[q], live=False, abstain=False, erased=True) for q in step.questions}
        return self._with_facts(gone, gone)

    @property
    def erased_questions(self) -> frozenset[str]:
        return frozenset(q for q, fact in self.facts.items() if fact.erased)

    def _ingest(self, step: WorkloadStep) -> World:
        facts: dict[str, KnownFact] = {}
        unkeyed: set[str] = set()
        for external_id, text in step.documents:
            old = dict(self.documents[external_id].spans) if external_id in self.documents else {}
            new = dict(text.spans)
            facts |= {q: KnownFact(value) for q, value in new.items() if q not in old}
            gone = [q for q in old if q not in new and self.facts[q].live]
            facts |= {q: replace(self.facts[q], live=False) for q in gone}
            unkeyed |= {*old, *new}
        world = self._with_facts(facts, unkeyed)
        return replace(world, documents={**self.documents, **dict(step.documents)})

    def _rekey(self, step: WorkloadStep) -> World:
        kept = frozenset(q for q, fact in self.facts.items() if fact.is_indexed)
        state = ACTIVE if self.keysets[step.encoder] == ACTIVE else READY
        return self._keyset(step.encoder, state, kept | self.keyed[step.encoder])

    def _adapt(self, step: WorkloadStep) -> World:
        """Give keys to what the active keyset has keys of, predicted from those."""
        kept = frozenset(q for q in self.keyed[self.active] if self.facts[q].is_indexed)
        world = self._keyset(step.encoder, READY, kept | self.keyed[step.encoder])
        return world.with_predicted(step.encoder, self.facts)

    def _make_true(self, step: WorkloadStep) -> World:
        """Replace the predicted keys of all facts but the deleted ones, which may be restored with theirs."""
        deleted = (q for q in self.predicted[step.encoder] if not self.facts[q].is_indexed)
        return self._rekey(step).with_predicted(step.encoder, deleted)

    def _activate(self, step: WorkloadStep) -> World:
        other = 1 - step.encoder
        world = self
        if self.keysets[other] == ACTIVE:
            world = self._keyset(other, READY, self.keyed[other])
        return world._keyset(step.encoder, ACTIVE, self.keyed[step.encoder])

    def _retire(self, step: WorkloadStep) -> World:
        return self._keyset(step.encoder, RETIRED, frozenset()).with_predicted(step.encoder, ())

    def _keyset(self, encoder: int, state: str, keyed: frozenset[str]) -> World:
        states, keys = list(self.keysets), list(self.keyed)
        states[encoder], keys[encoder] = state, keyed
        return replace(self, keysets=(states[0], states[1]), keyed=(keys[0], keys[1]))

    def with_keyset(self, encoder: int, state: str) -> World:
        """Give this world with one keyset in another state. The facts that certainly have a key stay the same."""
        return self._keyset(encoder, state, self.keyed[encoder])

    def with_predicted(self, encoder: int, questions: Iterable[str]) -> World:
        """Give this world with other facts that may have a predicted key in a keyset."""
        predicted = list(self.predicted)
        predicted[encoder] = frozenset(questions)
        return replace(self, predicted=(predicted[0], predicted[1]))

    def edited_meanwhile(self, questions: Set[str]) -> World:
        """Give this world without knowledge of these facts' keys: others edited them while keys were made.

        Facts that are not there are ignored: their insert was in doubt, and here it is not done.
        """
        questions = questions & self.facts.keys()
        first, second = (predicted | questions if predicted else predicted for predicted in self.predicted)
        keyed = (self.keyed[0] - questions, self.keyed[1] - questions)
        return replace(self, keyed=keyed, predicted=(first, second))

    def _with_facts(self, facts: Mapping[str, KnownFact], unkeyed: Iterable[str] = ()) -> World:
        keyed = (self.keyed[0].difference(unkeyed), self.keyed[1].difference(unkeyed))
        return replace(self, facts={**self.facts, **facts}, keyed=keyed)

    def with_stored(self, fact_ids: Mapping[str, int], keysets: tuple[str, str]) -> World:
        """Give this world with what only the database knows: the ids of facts, and the keysets' states after a rekey
        in doubt.
        """
        facts = {q: replace(f, fact_id=fact_ids.get(q, f.fact_id)) for q, f in self.facts.items()}
        return replace(self, facts=facts, keysets=keysets)


# The journal that a child writes until it is killed: which steps it began, and which were acknowledged.


@dataclass(frozen=True, slots=True)
class StepJournal:
    """A child's journal.

    `in_doubt` is the step that was begun and not acknowledged: it must be done wholly or not at all. `purged` tells the
    level that a purge claimed, and what it left.
    """

    acknowledged: tuple[WorkloadStep, ...] = ()
    in_doubt: WorkloadStep | None = None
    killed: str | None = None
    failed: str | None = None
    stopped: str | None = None
    purged: dict[str, Any] | None = None
    wrong: tuple[dict[str, Any], ...] = field(default=())


def read_journal(file: Path, steps: list[WorkloadStep]) -> StepJournal:
    """Read the journal of a child that was given `steps`. A last line that was cut short is ignored."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    records = [json.loads(line) for line in lines]
    begun = [record["begin"] for record in records if "begin" in record]
    done = [record["done"] for record in records if "done" in record]
    once = ("killed", "failed", "stopped", "purged")
    said = {name: value for record in records for name, value in record.items() if name in once}
    return StepJournal(
        acknowledged=tuple(steps[number] for number in done),
        in_doubt=steps[begun[-1]] if len(begun) > len(done) else None,
        wrong=tuple(record for record in records if "wrong" in record),
        **said,
    )


def has_begun(file: Path, number: int) -> bool:
    """Tell whether the child has begun this step."""
    return file.exists() and f'{{"begin": {number}}}' in file.read_text()
