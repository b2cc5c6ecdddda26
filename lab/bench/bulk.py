"""Measures bulk work: the keys of the same facts by one process, and by 1, 2, ... workers of Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from colmlm.cli.bulk.keying import KeyingElsewhere
from colmlm.cli.bulk.place import RayPlace
from colmlm.cli.bulk.spreading import Spreading
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.cli.settings import UserSettings
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.keys.records import RekeyPart
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.empty_base import own_folder
from colmlm.lab.bench.machine import machine

BULK_EXAMPLES = examples(
    "colmlm bench bulk --ray --json",
    "colmlm bench bulk --facts 100000 --checkpoint runs/mine --ray --workers 1 --workers 2",
)
_FACTS = 4  # of a document
_BATCH = 64  # documents of a part
_USUAL, _PARTS_EACH = 2_000, 4
_AGAIN = 100  # parts


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRun:
    """One rekey by so many workers of Ray, or by the process itself (0).

    `start_seconds` is the time to the first keys: Ray's start and the loading of models are in it. `facts_per_s` counts
    the second half, when all workers have loaded their model.
    """

    workers: int
    seconds: float
    start_seconds: float
    facts_per_s: float
    facts_per_s_in_all: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFigures:
    """The figures. A part of the queue is what a worker of Ray is sent at once.

    `part_ms` and `part_ms_alone` are what a part costs of which nothing is left to be keyed: through Ray to one worker,
    and without.
    `keys_alike` is the least cosine of a fact's key by Ray with that by one process.
    """

    facts: int
    parts: int
    runs: tuple[BulkRun, ...]
    part_ms: float | None
    part_ms_alone: float | None
    keys_alike: float | None


def bulk(
    facts: Annotated[
        int | None,
        typer.Option(
            "--facts",
            min=600,
            help="How many. Default: 2000, or more where that is not four parts for each worker.",
        ),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray/--no-ray", help="By the workers of Ray, too.")] = True,
    workers: Annotated[
        list[int] | None,
        typer.Option(
            "--workers", min=1, help="How many; may be repeated. Default: 1, and one for each core."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the keys of made-up facts by one process, and by the workers of Ray. Let nothing else run meanwhile."""
    numbers = (workers or sorted({1, os.cpu_count() or 1})) if ray else []
    least = _PARTS_EACH * _FACTS * _BATCH * max(numbers, default=0)
    if facts is not None and facts < least:
        raise typer.BadParameter(
            f"{max(numbers)} workers are measured by {least} facts at least, {_PARTS_EACH} parts each.",
            param_hint="--facts",
        )
    with own_folder(directory) as folder:
        figures = measure(folder, facts or max(_USUAL, least), numbers, checkpoint)
    if as_json:
        print_json(asdict(figures) | {"machine": machine()})
        return
    say(f"{figures.facts} facts in {figures.parts} parts")
    print_table(
        ("workers of Ray", "facts/s", "in all", "seconds", "to the first keys"),
        [
            (run.workers or "none", f"{run.facts_per_s:.0f}", f"{run.facts_per_s_in_all:.0f}",
             f"{run.seconds:.1f}", f"{run.start_seconds:.1f}")
            for run in figures.runs
        ],
    )  # fmt: skip
    if figures.part_ms is not None:
        say(f"A part without work: {figures.part_ms:.1f} ms by Ray, {figures.part_ms_alone:.1f} without.")


def measure(folder: Path, facts: int, workers: Sequence[int], checkpoint: Path | None) -> BulkFigures:
    """Keys so many facts in a new base for each run."""
    benches = [_Bench(folder / f"by-{number}", number, checkpoint) for number in (0, *workers)]
    for bench in benches:
        note(f"keying by {bench.workers} workers of Ray" if bench.workers else "keying by this process")
        bench.run(facts)
    alone, last = benches[0], benches[-1]
    return BulkFigures(
        facts=facts // _FACTS * _FACTS,
        parts=len(last.parts),
        runs=tuple(bench.figures for bench in benches),
        part_ms=last.part_ms,
        part_ms_alone=last.part_ms_alone,
        keys_alike=least_cosine(alone.keys, last.keys) if workers else None,
    )


@dataclass(slots=True)
class _Bench:
    """A base of its own, keyed once; then one worker of Ray gets the same parts again, in which nothing is left."""

    home: Path
    workers: int
    checkpoint: Path | None
    parts: list[RekeyPart] = field(default_factory=list)
    part_ms: float | None = None
    part_ms_alone: float | None = None
    figures: BulkRun = field(init=False)
    keys: Vectors = field(init=False)

    def run(self, facts: int) -> None:
        user = UserSettings(checkpoint=self.checkpoint)
        with Runtime(Settings(home=self.home, actor="bench"), user) as runtime:
            runtime.kb.corpora.ingest(
                map(Parsed, documents(facts)), "bench", actor="bench", reason="benchmark"
            )
            runtime.encoder.encode_questions(["Is it loaded?"])
            keying = KeyingElsewhere(Spreading(runtime, RayPlace(None, self.workers)))
            self.figures = self._rekey(runtime, keying)
            if self.parts:
                self.part_ms = self._again(KeyingElsewhere(Spreading(runtime, RayPlace(None, 1))))
                began = time.perf_counter()
                for part in self.parts:
                    runtime.kb.keysets.rekey_part(runtime.encoder, part)
                self.part_ms_alone = 1000 * (time.perf_counter() - began) / len(self.parts)

    def _rekey(self, runtime: Runtime, keying: KeyingElsewhere) -> BulkRun:
        def noted(parts: Sequence[RekeyPart]) -> Generator[int, None, None]:
            self.parts.extend(parts)
            yield from keying(parts)

        began, kb = time.time(), runtime.kb
        made = kb.keysets.rekey(runtime.encoder, batch=_BATCH, elsewhere=noted if self.workers else None)
        _, self.keys = kb.keysets.keys(made.keyset_id)
        committed = commits(kb)
        (first, _), (last, done) = committed[0], committed[-1]
        return BulkRun(
            workers=self.workers,
            seconds=last - began,
            start_seconds=first - began,
            facts_per_s=rate(committed, self.workers),
            facts_per_s_in_all=done / (last - began),
        )

    def _again(self, keying: KeyingElsewhere) -> float:
        """Sends the parts again and again; gives the milliseconds from one outcome to the next."""
        parts = list(islice(cycle(self.parts), _AGAIN))
        outcomes = (outcome for outcome in keying.outcomes(parts) if outcome is not None)
        return 1000 / rate([(time.perf_counter(), done) for done, _ in enumerate(outcomes, 1)], 1)


def commits(kb: KnowledgeBase) -> list[tuple[float, int]]:
    """Gives when each batch of keys was committed, with how many keys there were then: Ray tells of several at once."""
    changes = kb.log.changes(limit=1_000_000, kind="key")
    done = accumulate(change.num_facts for change in changes)
    return list(zip((change.at.timestamp() for change in changes), done, strict=True))


def rate(times: Sequence[tuple[float, int]], workers: int) -> float:
    """Gives how much was done a second, of the times at which parts were done with what was done by then.

    Parts come in rounds, one of each worker and near one another. It counts whole rounds of the second half, when all
    workers have loaded their model, from the end of one to the end of another.
    """
    each = max(workers, 1)
    rounds = len(times) // each
    (first, before), (last, done) = times[rounds // 2 * each - 1], times[rounds * each - 1]
    return (done - before) / (last - first)


def least_cosine(keys: Vectors, others: Vectors) -> float:
    """Gives the least cosine of a row with its like; stored keys are not quite of length 1, being rounded to fp16."""
    lengths = np.linalg.norm(keys, axis=1) * np.linalg.norm(others, axis=1)
    return float(np.min(np.sum(keys * others, axis=1) / lengths))


def documents(facts: int) -> Iterator[AnnotatedDocument]:
    """Makes documents of four facts each."""
    for number in range(facts // _FACTS):
        text, spans = "", []
        for tower in range(_FACTS):
            value = f"{7 * number + tower} metres"
            text += f"Tower {tower} of town {number} has a height of "
            question = f"How high is tower {tower} of town {number}?"
            spans.append(FactSpan(len(text), len(text) + len(value), value, question, value))
            text += f"{value}. "
        yield AnnotatedDocument(f"town {number}", text, tuple(spans))
