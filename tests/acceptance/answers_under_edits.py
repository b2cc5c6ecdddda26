"""Lets one process edit and others ask: once an edit is acknowledged, what it took back must never be said again.

The writer deletes, restores, corrects and erases random facts. After each commit it tells a process that asks, over a
pipe, what the fact must now answer, and edits other facts at once. That process asks the fact's question, by key and
words or by words alone, and sees whether the answer and the passages beside it say anything that was taken back. Then
it asks a question about any fact, without waiting for its edits; what it heard is compared with the log at the end.

    python -m tests.acceptance.answers_under_edits --operations 10000 --json
    python -m tests.acceptance.answers_under_edits --operations 10000 --reader passages --json
    python -m tests.acceptance.answers_under_edits --operations 1000 --reader released --json
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Protocol

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import UNFITTED, JudgedReader
from colmlm.kb.answers.records import Answer
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario, soundness, spawn_work
from tests.acceptance.edited import History
from tests.acceptance.towns import question, town
from tests.fakes import SURE_OF_PASSAGES, NearReader, WordEncoder
from tests.kb.corpora import ingest

TOWNS = 100
IN_FLIGHT = 8  # edited and not yet confirmed facts of one asking process, by which the writer may be ahead
JUDGED = ("said", "withheld", "stale", "leaked", "instead", "misplaced", "missed")
MOST_MISSED = 0.3  # of the live facts that are asked for; more, and the run shows little


class Asks(Protocol):
    """What answers questions: `kb.answers.answering.Answering`, or what a test puts in its place."""

    def ask(self, question: str) -> Answer: ...


MakeAnswerers = Callable[[KnowledgeBase], Sequence[Asks]]


@dataclass(frozen=True, slots=True)
class Heard:
    """What was said to the question of a fact, as of change `seq` of the log or a later one."""

    fact: int
    said: str | None
    seq: int


@dataclass(slots=True)
class Tally:
    """What one process heard: how often what `Told.judge` names, its times, and answers without waiting for edits."""

    counts: Counter[str] = field(default_factory=Counter)
    heard: list[Heard] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def fake(kb: KnowledgeBase) -> Sequence[Asks]:
    return _ways(kb, NearReader())


def passages(kb: KnowledgeBase) -> Sequence[Asks]:
    """Give answers that are passages, as no span is ever sure enough."""
    return _ways(kb, NearReader(confidence=replace(UNFITTED, threshold=1.0, passage=SURE_OF_PASSAGES)))


def released(kb: KnowledgeBase) -> Sequence[Asks]:
    from colmlm.cli.composition.readers import reader
    from colmlm.model.annotate.checkpoint import RELEASED_READER

    return _ways(kb, reader(RELEASED_READER, kb.settings.home / "models"))


def _ways(kb: KnowledgeBase, reader: JudgedReader) -> Sequence[Asks]:
    return Answering(kb, Questions(kb, [WordEncoder()]), reader), Answering(kb, None, reader)


READERS: dict[str, MakeAnswerers] = {"fake": fake, "passages": passages, "released": released}


def run(
    settings: Settings,
    make: MakeAnswerers | None = None,
    *,
    operations: int = 10_000,
    reader: str = "fake",
    seed: int = 0,
) -> Figures:
    """Let one process edit and two others ask. A third of the operations are edits, the others questions.

    `said` facts were answered as they are now, `withheld` ones not at all, as they are deleted or erased. `stale`
    answers and `leaked` passages say what was taken back, `instead` of a deleted fact something else was said,
    `misplaced` answers do not stand where they say; `missed` live facts were not answered. `roamed` questions waited
    for no edit, and `outdated` ones of them got what no longer held when they were decided.
    """
    make = make or READERS[reader]
    with KnowledgeBase.open(settings) as kb:
        ingest(kb, *(town(number) for number in range(TOWNS)))
        kb.keysets.rekey(WordEncoder())
        history = History(kb, 2 * TOWNS, random.Random(seed))
        with spawn_work(ask, settings, make, seed) as one, spawn_work(ask, settings, make, seed + 1) as other:
            started = time.monotonic()
            _write(history, (one, other), -(-operations // 3))
            tallies: list[Tally] = [one.recv(), other.recv()]
        sound = soundness(kb)
    counts = sum((tally.counts for tally in tallies), Counter[str]())
    heard = [one for tally in tallies for one in tally.heard]
    said, missed = counts["said"], counts["missed"]
    times = sorted(one for tally in tallies for one in tally.milliseconds)
    return {
        "operations": history.edits.total() + len(times) + len(heard),
        "edits": dict(history.edits),
        **{name: counts[name] for name in JUDGED},
        "roamed": len(heard),
        "outdated": sum(not history.held(one.fact, one.said, one.seq) for one in heard),
        **sound,
        "enough_ok": said > 0 and missed <= MOST_MISSED * (said + missed),
        "seconds": round(time.monotonic() - started, 2),
        "answer_p50_ms": round(times[len(times) // 2], 2),
        "answer_p99_ms": round(times[len(times) * 99 // 100], 2),
    }


def _write(history: History, pipes: Sequence[Connection], edits: int) -> None:
    """Edits, tells the two processes in turn, and goes on with facts that none of them is still asking for."""
    unconfirmed: list[set[int]] = [set() for _ in pipes]
    for n in range(edits):
        for pipe, waiting in zip(pipes, unconfirmed, strict=True):
            while len(waiting) == IN_FLIGHT or (waiting and pipe.poll()):
                waiting.discard(pipe.recv())
        turn = n % len(pipes)
        told = history.edit(busy=set.union(*unconfirmed))
        unconfirmed[turn].add(told.fact)
        pipes[turn].send(told)
    for pipe, waiting in zip(pipes, unconfirmed, strict=True):
        while waiting:
            waiting.discard(pipe.recv())
        pipe.send(None)


def ask(settings: Settings, make: MakeAnswerers, seed: int, pipe: Connection) -> None:
    """Runs a process that asks: for each fact that it is told, and for another at random; reports at the end."""
    tally, choose = Tally(), random.Random(seed)
    with KnowledgeBase.open(settings) as kb, Follower(kb):
        ways = make(kb)
        while (told := pipe.recv()) is not None:
            started = time.perf_counter()
            answer = choose.choice(ways).ask(question(told.fact))
            tally.milliseconds.append(1000 * (time.perf_counter() - started))
            judged = told.judge(answer)
            tally.counts.update(judged)
            if not judged <= {"said", "withheld"}:
                print(f"{sorted(judged)}: {told} got {answer.answer!r}", file=sys.stderr)
            fact = choose.randrange(2 * TOWNS)
            roamed = choose.choice(ways).ask(question(fact))
            tally.heard.append(Heard(fact, roamed.answer, roamed.seq))
            pipe.send(told.fact)
        pipe.send(tally)


if __name__ == "__main__":
    run_scenario(run)
