"""Draws the steps of a round and the instant of the kill, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from colmlm.lab.faults.killpoints import STRUCK, points_of
from colmlm.lab.faults.world import READY, Text, WorkloadStep, World

_WEIGHTS = {
    "insert": 3,
    "update": 4,
    "delete": 4,
    "restore": 3,
    "ingest_new": 2,
    "ingest_changed": 3,
    "rekey": 2,
    "snapshot": 5,
    "catch_up": 2,
    "lookup": 3,
    "switch": 2,
    "adapt": 2,
    "retire": 2,
    "forget": 2,
    "erase": 3,
    "say": 4,
    "propose": 2,
    "ask_for_work": 2,
}
# Seconds into a step, into one that works on a whole base, and into a purge.
SHORT, LONG, LONGEST = 0.03, 0.15, 2.0
FILES = 30  # in a folder before it changes
_QUOTING = ("say", "propose", "ask_for_work")
_OF_A_SECOND_CHILD = (
    "insert", "update", "delete", "restore", "snapshot", "catch_up", "lookup", "say", "propose", "ask_for_work"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blow:
    """State when a child is killed: at the `nth` pass of `point` from step `at` on, or from outside `delay` seconds
    later.
    """

    point: str
    at: int = 0
    nth: int = 1
    delay: float = 0.0


class Planner:
    """Draws plans for a world. The same seed and world give the same plan."""

    def __init__(self, random: Random, name: str, *, share: int | None = None) -> None:
        """Make a planner.

        With `share` 0 and 1, two planners use disjoint facts, and only 0 changes documents and keysets.
        """
        self.random, self.name, self.share, self.count = random, name, share, 0

    def plan(self, world: World, length: int) -> list[WorkloadStep]:
        names = list(_OF_A_SECOND_CHILD if self.share == 1 else _WEIGHTS)
        steps: list[WorkloadStep] = []
        while len(steps) < length:
            (name,) = self.random.choices(names, [_WEIGHTS[n] for n in names])
            quotes = name in _QUOTING
            for step in self._quoting(world, name) if quotes else getattr(self, f"_{name}")(world):
                steps.append(step)
                world = world.apply(step)
        return steps

    def copy(self, world: World) -> list[WorkloadStep]:
        """Plan a backup, edits and an erasure after it, and its restore."""
        steps = self.plan(world, self.random.randint(1, 4))
        for step in steps:
            world = world.apply(step)
        return [
            *steps,
            WorkloadStep("back_up"),
            *self._update(world),
            *self._erase(world),
            WorkloadStep("restore_backup"),
        ]

    def migration(self, revisions: Sequence[str]) -> list[WorkloadStep]:
        """Plan a migration of a second database from a random one of these revisions, the step's `value`."""
        return [WorkloadStep("migrate", value=self.random.choice(revisions))]

    def purge(self, world: World) -> list[WorkloadStep]:
        """Plan edits, an erasure that is purged from the files, and an edit after it."""
        steps = self.plan(world, self.random.randint(1, 4))
        for step in steps:
            world = world.apply(step)
        chosen = (*self._some_facts(world, live=False, most=1), *self._some_facts(world, live=True, most=2))
        purge = WorkloadStep("purge", chosen)
        return [*steps, purge, *self._update(world.apply(purge))]

    def folder(self) -> tuple[dict[str, Text], dict[str, Text]]:
        """Draw the documents of a folder, and those after some were changed, removed and added."""
        before = dict(self._document() for _ in range(FILES))
        kept = self._sample([*before], FILES * 4 // 5)
        changed = {name: self._change_text(name, before[name]) for name in kept[: FILES // 3]}
        return before, {n: before[n] for n in kept} | changed | dict(self._document() for _ in range(FILES))

    def population(self, documents: int, inserted: int) -> list[WorkloadStep]:
        """Give the steps that fill a fresh base."""
        ingest = WorkloadStep("ingest", documents=tuple(self._document() for _ in range(documents)))
        return [
            ingest,
            *(WorkloadStep("insert", (self._question(),), self._value()) for _ in range(inserted)),
        ]

    def _insert(self, world: World) -> list[WorkloadStep]:
        return [WorkloadStep("insert", (self._question(),), self._value())]

    def _update(self, world: World) -> list[WorkloadStep]:
        return [
            WorkloadStep("update", (q,), self._value()) for q in self._some_facts(world, live=True, most=1)
        ]

    def _delete(self, world: World) -> list[WorkloadStep]:
        chosen = self._some_facts(world, live=True, most=3)
        return [WorkloadStep("delete", chosen, abstain=self.random.random() < 0.4)] if chosen else []

    def _forget(self, world: World) -> list[WorkloadStep]:
        return [replace(step, do="forget") for step in self._delete(world)]

    def _restore(self, world: World) -> list[WorkloadStep]:
        chosen = self._some_facts(world, live=False, most=3)
        return [WorkloadStep("restore", chosen)] if chosen else []

    def _erase(self, world: World) -> list[WorkloadStep]:
        """Plan to erase facts, live or deleted ones."""
        chosen = self._some_facts(world, live=self.random.random() < 0.7, most=2)
        return [WorkloadStep("erase", chosen)] if chosen else []

    def _quoting(self, world: World, do: str) -> list[WorkloadStep]:
        """Plan a step that quotes a fact, preferably one that the other child may be erasing at that moment."""
        known = [q for q, fact in world.facts.items() if fact.fact_id]
        others = [q for q in known if not self._mine(q)] or known
        chosen = self._sample(others, 1)
        return [WorkloadStep(do, tuple(chosen), encoder=world.active)] if chosen else []

    def _ingest_new(self, world: World) -> list[WorkloadStep]:
        return [WorkloadStep("ingest", documents=(self._document(), self._document()))]

    def _ingest_changed(self, world: World) -> list[WorkloadStep]:
        chosen = self._sample([d for d in world.documents if self._mine(d)], 2)
        changed = tuple((d, self._change_text(d, world.documents[d])) for d in chosen)
        return [WorkloadStep("ingest", documents=changed)] if changed else []

    def _change_text(self, external_id: str, text: Text) -> Text:
        """Change a text: give it another introduction, one sentence less, or one more."""
        kind = self.random.randrange(3)
        if kind == 0 or not text.spans:
            return replace(text, intro=text.intro + 1)
        if kind == 1:
            out = self.random.randrange(len(text.spans))
            return replace(text, spans=text.spans[:out] + text.spans[out + 1 :], intro=text.intro + 1)
        at = self.random.randrange(len(text.spans) + 1)
        new = ((self._question(_share_of(external_id)), self._value()),)
        return replace(text, spans=text.spans[:at] + new + text.spans[at:])

    def _rekey(self, world: World) -> list[WorkloadStep]:
        return [WorkloadStep("rekey", encoder=world.active)]

    def _snapshot(self, world: World) -> list[WorkloadStep]:
        return [WorkloadStep("snapshot")]

    def _catch_up(self, world: World) -> list[WorkloadStep]:
        return [WorkloadStep("catch_up")]

    def _lookup(self, world: World) -> list[WorkloadStep]:
        """Plan lookups of facts that certainly have a key, and of deleted ones."""
        keyed = [q for q in world.keyed[world.active] if self._mine(q)]
        dead = [q for q, fact in world.facts.items() if not fact.live and self._mine(q)]
        chosen = (*self._sample(keyed, 20), *self._sample(dead, 5))
        expected = tuple(map(world.answer, chosen))
        return [WorkloadStep("lookup", chosen, encoder=world.active, expected=expected)]

    def _switch(self, world: World) -> list[WorkloadStep]:
        """Plan a rekey with the other encoder, and the activation of its keyset."""
        other = 1 - world.active
        return [WorkloadStep("rekey", encoder=other), WorkloadStep("activate", encoder=other)]

    def _adapt(self, world: World) -> list[WorkloadStep]:
        """Plan keys of the other encoder, predicted from true ones, a switch to them, and true ones in their place."""
        was_predicted = bool(world.predicted[world.active])
        if was_predicted and self.share is not None:
            return []  # the other child may restore a fact with a predicted key, from which none is predicted
        first = [WorkloadStep("make_true", encoder=world.active)] if was_predicted else []
        made = [WorkloadStep(do, encoder=1 - world.active) for do in ("adapt", "activate", "make_true")]
        return [*self._retire(world), *first, *made]

    def _retire(self, world: World) -> list[WorkloadStep]:
        other = 1 - world.active
        return [WorkloadStep("retire", encoder=other)] if world.keysets[other] == READY else []

    def _some_facts(self, world: World, *, live: bool, most: int) -> tuple[str, ...]:
        found = [
            q for q, fact in world.facts.items() if fact.live is live and not fact.erased and self._mine(q)
        ]
        return tuple(self._sample(found, self.random.randint(1, most)))

    def _sample(self, names: list[str], most: int) -> list[str]:
        return self.random.sample(sorted(names), min(most, len(names)))

    def _mine(self, name: str) -> bool:
        return self.share is None or _share_of(name) == self.share

    def _document(self) -> tuple[str, Text]:
        """Make a new document, whose facts have the same share."""
        external_id = self._fresh()
        share, count = _share_of(external_id), self.random.randint(1, 4)
        return external_id, Text(0, tuple((self._question(share), self._value()) for _ in range(count)))

    def _question(self, share: int | None = None) -> str:
        return f"Subject {self._fresh(share)}"

    def _value(self) -> str:
        return f"value {self._fresh()}"

    def _fresh(self, share: int | None = None) -> str:
        """Make an unused name, which ends in its share."""
        self.count += 1
        if share is None:
            share = self.random.randrange(2) if self.share is None else self.share
        return f"{self.name}-{self.count}-{share}"


def _share_of(name: str) -> int:
    return int(name[-1])


def draw_blow(random: Random, steps: list[WorkloadStep], *, within: bool) -> Blow:
    """Draw a kill in one of the plan's kinds of steps, all equally likely, from outside or `within` the process.

    `within` kills at a point that such steps pass. In a plan with steps that are `STRUCK` it is in one of these.
    """
    kinds = sorted({step.do for step in steps})
    struck = [kind for kind in kinds if kind in STRUCK]
    kind = random.choice(struck or kinds)
    at = random.choice([n for n, step in enumerate(steps) if step.do == kind])
    if not within:
        longest = LONGEST if kind == "purge" else LONG if struck else SHORT
        return Blow("", at, delay=random.uniform(0, longest))
    point, most = random.choice(points_of(kind))
    return Blow(point, at, random.randint(1, most))
