"""`colmlm bench commits`: measures edits that threads make at once, committed together and each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.lab.bench.durations import milliseconds, seconds_of
from colmlm.lab.bench.empty_base import ACTOR, REASON, empty_base
from colmlm.lab.bench.machine import machine

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase

COMMITS_EXAMPLES = examples(
    "colmlm bench commits",
    "colmlm bench commits --threads 1 --threads 16 --disk-ms 5 --json",
)
EACH, ROUNDS = 50, 5  # deletions of a thread in a round, and rounds of which the median counts
BATCH = 1000
Delete = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """Deletions a second of so many threads, and how long one took, in milliseconds."""

    threads: int
    alone_per_second: float
    together_per_second: float
    ratio: float
    alone_p50_ms: float
    alone_p99_ms: float
    together_p50_ms: float
    together_p99_ms: float


def commits(
    threads: Annotated[list[int], typer.Option("--threads", min=1, max=64, help="How many edit at once.")] = [  # noqa: B006
        1,
        2,
        4,
        8,
        16,
    ],
    disk_ms: Annotated[
        float,
        typer.Option("--disk-ms", min=0, max=100, help="Let each commit wait so long, as for a slower disk."),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure deletions by several threads, committed together and each alone, in turns."""
    with empty_base() as kb:
        figures = measure(kb, threads, disk_ms)
    if as_json:
        print_json({"figures": [asdict(one) for one in figures], "disk_ms": disk_ms, "machine": machine()})
        return
    headings = (
        "threads",
        "alone /s",
        "together /s",
        "ratio",
        "alone p50 ms",
        "p99",
        "together p50 ms",
        "p99",
    )
    print_table(headings, [[f"{value:.4g}" for value in asdict(one).values()] for one in figures])


def measure(kb: KnowledgeBase, threads: list[int], disk_ms: float) -> list[CommitFigures]:
    """Deletes facts of the base by each number of threads, in rounds of both ways in turn."""
    from colmlm.kb.facts import edits

    def alone(fact_id: int) -> None:
        with kb.sessions.begin() as session:
            edits.delete_facts(session, [fact_id], ACTOR, REASON)

    def together(fact_id: int) -> None:
        kb.facts.delete([fact_id], actor=ACTOR, reason=REASON)

    _slow_down(kb, disk_ms)
    facts = iter(list(_facts(kb, 2 * (ROUNDS + 1) * EACH * sum(threads))))
    figures = []
    for number in threads:
        note(f"{number} threads")
        taken: tuple[list[float], list[float]] = ([], [])
        rates: tuple[list[float], list[float]] = ([], [])
        for counts in (False, *[True] * ROUNDS):  # the first round is not counted
            for way, delete in enumerate((alone, together)):
                seconds, each = _timed(delete, list(islice(facts, EACH * number)), number)
                if counts:
                    rates[way].append(EACH * number / seconds)
                    taken[way].extend(each)
        figures.append(_figures(number, rates, taken))
    return figures


def _figures(
    number: int, rates: tuple[list[float], list[float]], taken: tuple[list[float], list[float]]
) -> CommitFigures:
    alone, together = (sorted(each)[ROUNDS // 2] for each in rates)
    durations = (milliseconds(each, rank) for each in taken for rank in (50, 99))
    return CommitFigures(number, alone, together, together / alone, *durations)


def _timed(delete: Delete, facts: list[int], threads: int) -> tuple[float, list[float]]:
    """Gives the seconds that all took together, and those of each."""
    with ThreadPoolExecutor(threads) as pool:
        each: list[float] = []
        whole = seconds_of(lambda: each.extend(pool.map(lambda one: seconds_of(lambda: delete(one)), facts)))
    return whole, each


def _facts(kb: KnowledgeBase, number: int) -> Iterator[int]:
    from colmlm.kb.facts.records import FactDraft

    note(f"adding {number:,} facts")
    for first in range(0, number, BATCH):
        drafts = [FactDraft(f"What is {n}?", f"thing {n}") for n in range(first, min(first + BATCH, number))]
        yield from kb.facts.add_many(drafts, actor=ACTOR, reason=REASON).fact_ids


def _slow_down(kb: KnowledgeBase, disk_ms: float) -> None:
    """Makes every commit sleep before it writes, which PostgreSQL does where `commit_siblings` is 0."""
    from sqlalchemy import text

    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER SYSTEM SET commit_delay = {round(1000 * disk_ms)}"))
        connection.execute(text("ALTER SYSTEM SET commit_siblings = 0"))
        connection.execute(text("SELECT pg_reload_conf()"))
