"""Measures each peer at the same job, one after another, at equal recall on the same keys.

Each peer runs in a process of its own, so that its memory and threads are gone before the next. Search effort is raised
until recall@1 reaches the target, and times are measured at that effort; both are reported.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from colmlm.lab.bench.machine import milliseconds, own_folder, seconds_of
from colmlm.lab.bench.peers import PEERS, THREADS, Keys, Peer, PeerKind
from colmlm.lab.bench.synthetic import exact_top1, fact_text, queries_near, synthetic_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INGEST_BATCH = 10_000
WARM_UP = 100
NUM_DELETES = 200
_BATCH = 100  # queries per batch

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    """The figures of one peer. `residue_*` and `bytes_after_clean_up` are taken after its clean-up."""

    name: str
    version: str
    threads: str
    durability: str
    num_facts: int
    dim: int
    ingest_seconds: float
    build_seconds: float
    effort: int
    recall_at_1: float
    reached_target: bool
    lookup_ms: dict[str, float]  # p50 and p99
    lookups_per_second_in_batches: float
    num_deletes: int
    delete_ms: dict[str, float]
    deleted_but_found: int
    bytes_before_clean_up: int
    bytes_after_clean_up: int
    clean_up_seconds: float
    residue_of_deleted: Residue
    residue_of_kept: Residue

    @property
    def facts_per_second(self) -> float:
        """Facts per second from raw facts to a store that answers, with the index build."""
        return self.num_facts / (self.ingest_seconds + self.build_seconds)


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """A peer that gave no result, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerTask:
    """The task of a peer: the files of one comparison, and the recall to reach."""

    directory: Path  # keys.npy, queries.npy and truth.npy
    target_recall: float
    seed: int

    def load(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = np.load(self.directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array


def compare(
    num_facts: int,
    dim: int,
    *,
    peers: Sequence[PeerKind] = tuple(PEERS.values()),
    target_recall: float = 0.99,
    num_queries: int = 1_000,
    seed: int = 0,
    on_progress: Progress = lambda _: None,
) -> list[PeerResult | PeerFailure]:
    """Measure each of `peers`. One that is not installed, or fails, is reported, and the others still run."""
    with own_folder() as folder:
        task = PeerTask(folder, target_recall, seed)
        on_progress(f"making {num_facts:,} keys of {dim} dimensions")
        _prepare(task, num_facts, dim, num_queries)
        return [_measure_apart(kind, task, on_progress) for kind in peers]


def _prepare(task: PeerTask, num_facts: int, dim: int, num_queries: int) -> None:
    keys = synthetic_keys(num_facts, dim, seed=task.seed)
    queries = queries_near(keys, num_queries, seed=task.seed)
    for name, array in (("keys", keys), ("queries", queries), ("truth", exact_top1(keys, queries))):
        np.save(task.directory / f"{name}.npy", array, allow_pickle=False)


def _measure_apart(kind: PeerKind, task: PeerTask, on_progress: Progress) -> PeerResult | PeerFailure:
    if kind.version() is None:
        return PeerFailure(kind.name, f"not installed: {kind.install_command}")
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(kind, task, sending), name=f"bench-{kind.name}")
    process.start()
    sending.close()  # only the child keeps its end open, so its death ends the wait below
    try:
        while isinstance(message := receiving.recv(), str):
            on_progress(message)
        result: PeerResult | PeerFailure = message
    except EOFError:
        process.join()
        result = PeerFailure(kind.name, f"its process ended with exit code {process.exitcode}")
    finally:
        process.join()
    return result


def _child(kind: PeerKind, task: PeerTask, sending: Connection) -> None:
    for variable in ("LANCE_CPU_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS"):
        os.environ[variable] = str(THREADS)
    with tempfile.TemporaryDirectory(prefix=f"{kind.name}-", dir=task.directory) as folder:
        Path(folder).chmod(0o755)
        try:
            sending.send(measure(kind, task, Path(folder), sending.send))
        except Exception as error:  # noqa: BLE001  a foreign library may raise anything; the rest goes on
            sending.send(PeerFailure(kind.name, f"{type(error).__name__}: {error}"))


def measure(kind: PeerKind, task: PeerTask, directory: Path, on_progress: Progress) -> PeerResult:
    """Measure one peer in this process: ingest, index build, lookups, deletes and the residue in its files."""
    keys: Keys = task.load("keys")
    queries: Keys = task.load("queries")
    truth: npt.NDArray[np.int64] = task.load("truth")
    peer = kind.make()
    name = kind.name
    peer.open(directory, keys.shape[1])

    on_progress(f"{name}: storing {len(keys):,} facts")
    ingest_seconds = _ingest(peer, keys)
    on_progress(f"{name}: building its index")
    build_seconds = seconds_of(peer.build)

    effort, recall = _reach(peer, queries, truth, task.target_recall, lambda s: on_progress(f"{name}: {s}"))
    on_progress(f"{name}: {len(queries):,} lookups")
    batch_seconds = seconds_of(lambda: _found_ids(peer, queries))
    lookup_ms = _lookups(peer, queries)

    on_progress(f"{name}: {NUM_DELETES} deletes")
    random = np.random.default_rng([task.seed, 1])
    chosen = random.choice(len(keys), 2 * min(NUM_DELETES, len(keys) // 4), replace=False)
    deleted, kept = np.split(chosen, 2)
    delete_ms, deleted_but_found = _time_deletes(peer, keys, deleted)

    on_progress(f"{name}: cleaning up")
    bytes_before = peer.bytes_on_disk()
    clean_up_seconds = seconds_of(peer.clean_up)
    bytes_after = peer.bytes_on_disk()
    version = peer.version()
    peer.close()
    return PeerResult(
        name=name,
        version=version,
        threads=peer.threads,
        durability=peer.durability,
        num_facts=len(keys),
        dim=keys.shape[1],
        ingest_seconds=ingest_seconds,
        build_seconds=build_seconds,
        effort=effort,
        recall_at_1=recall,
        reached_target=recall >= task.target_recall,
        lookup_ms=lookup_ms,
        lookups_per_second_in_batches=len(queries) / batch_seconds,
        num_deletes=len(deleted),
        delete_ms=delete_ms,
        deleted_but_found=deleted_but_found,
        bytes_before_clean_up=bytes_before,
        bytes_after_clean_up=bytes_after,
        clean_up_seconds=clean_up_seconds,
        residue_of_deleted=find_residue(directory, deleted.tolist(), keys[deleted]),
        residue_of_kept=find_residue(directory, kept.tolist(), keys[kept]),
    )


def _ingest(peer: Peer, keys: Keys) -> float:
    """Ingest all facts and give the seconds spent in the store, without those spent making the texts."""
    seconds = 0.0
    for start in range(0, len(keys), INGEST_BATCH):
        ids = np.arange(start, min(start + INGEST_BATCH, len(keys)), dtype=np.int64)
        facts = [fact_text(fact) for fact in ids.tolist()]
        texts, sources = [fact.value for fact in facts], [fact.source for fact in facts]
        rows = np.array(keys[start : start + INGEST_BATCH])
        began = time.perf_counter()
        peer.ingest(ids, rows, texts, sources)
        seconds += time.perf_counter() - began
    return seconds


def _reach(
    peer: Peer, queries: Keys, truth: npt.NDArray[np.int64], target: float, on_progress: Progress
) -> tuple[int, float]:
    """Find the least effort that reaches the target, else the greatest; give it with its recall@1."""
    effort, recall = peer.efforts[0], 0.0
    for effort in peer.efforts:
        peer.set_search(effort)
        recall = float(np.mean(_found_ids(peer, queries) == truth))
        on_progress(f"recall@1 {recall:.3f} at effort {effort}")
        if recall >= target:
            break
    return effort, recall


def _found_ids(peer: Peer, queries: Keys) -> npt.NDArray[np.int64]:
    found = [
        hit
        for start in range(0, len(queries), _BATCH)
        for hit in peer.lookup_batch(queries[start : start + _BATCH])
    ]
    return np.array([-1 if hit is None else hit.fact_id for hit in found], np.int64)


def _lookups(peer: Peer, queries: Keys) -> dict[str, float]:
    """Time lookups of single queries. Raises where a text is not the one that was stored with its key."""
    for query in queries[:WARM_UP]:
        peer.lookup(query)
    times = []
    for query in queries:
        began = time.perf_counter()
        found = peer.lookup(query)
        times.append(time.perf_counter() - began)
        if found is not None and found.text != fact_text(found.fact_id).value:
            raise ValueError(f"the text {found.text!r} was found with the key of fact {found.fact_id}")
    return _percentiles(times)


def _time_deletes(peer: Peer, keys: Keys, facts: npt.NDArray[np.int64]) -> tuple[dict[str, float], int]:
    """Time single deletes, and count the deleted facts that the next lookup of their own key still found."""
    times, still_found = [], 0
    for fact in facts.tolist():
        began = time.perf_counter()
        peer.delete(fact)
        times.append(time.perf_counter() - began)
        found = peer.lookup(keys[fact])
        still_found += found is not None and found.fact_id == fact
    return _percentiles(times), still_found


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {"p50": milliseconds(seconds, 50), "p99": milliseconds(seconds, 99)}


# Searches a store's files for residue of deleted facts.

_VALUE = re.compile(rb"value (\d{9})")
_BLOCK = 1 << 26


@dataclass(frozen=True, slots=True)
class Residue:
    """Count how many of the facts searched for have their value, and how many their key, in some file."""

    num_facts: int
    values: int
    keys: int


def find_residue(directory: Path, facts: Sequence[int], keys: npt.NDArray[np.float32]) -> Residue:
    """Search every file under `directory` for the values of `facts` and for their keys, the rows of `keys`.

    It searches for values as UTF-8, and for keys as float32 or float16. Compression hides them: search for facts that
    still exist, too, and trust the result only as far as those are found.
    """
    wanted = {int(_digits(fact)): number for number, fact in enumerate(facts)}
    starts = _starts_of(keys)
    with_value: set[int] = set()
    with_key: set[int] = set()
    for content in _contents(directory):
        with_value |= {wanted[n] for m in _VALUE.finditer(content) if (n := int(m[1])) in wanted}
        with_key |= _rows_within(content, starts)
    return Residue(len(facts), len(with_value), len(with_key))


def _digits(fact: int) -> str:
    return fact_text(fact).value.removeprefix("value ")


def _contents(directory: Path) -> Iterator[mmap.mmap]:
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.stat().st_size > 0:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content


def _starts_of(keys: npt.NDArray[np.float32]) -> dict[int, int]:
    """Map the first 8 bytes of each key in either precision, as a number, to the key's row."""
    single = np.ascontiguousarray(keys[:, :2], "<f4").view("<u8")
    half = np.ascontiguousarray(keys[:, :4], "<f2").view("<u8")
    return {int(start): row for column in (single, half) for row, start in enumerate(column[:, 0])}


def _rows_within(content: mmap.mmap, starts: dict[int, int]) -> set[int]:
    """Give the rows whose 8 bytes occur in `content`, at any offset."""
    possible = np.zeros(1 << 16, np.bool_)  # a filter by two of the bytes, which rules out nearly everything
    possible[[start & 0xFFFF for start in starts]] = True
    rows: set[int] = set()
    for block in range(0, len(content), _BLOCK):
        piece = content[block : block + _BLOCK + 7]
        for shift in range(8):
            words = np.frombuffer(
                piece, "<u8", count=max(0, len(piece) - shift) // 8, offset=min(shift, len(piece))
            )
            likely = words[possible[words & np.uint64(0xFFFF)]]
            rows |= {starts[word] for word in likely.tolist() if word in starts}
    return rows


# Plots the benchmarks' results as PNG files.

_BLUE, _GREY, _RED = "#2b6cb0", "#a0aec0", "#c05621"


def plot_systems(systems: Sequence[PeerResult], path: Path, *, title: str) -> None:
    """Plot bars of lookup latency and of ingest by system, each with the recall it was measured at."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.6 + 0.55 * len(systems)), layout="constrained")
    figure.suptitle(title)
    latency, ingest = figure.subplots(1, 2, sharey=True)
    names = [f"{system.name} {system.version}\nrecall@1 {system.recall_at_1:.3f}" for system in systems]
    rows = range(len(systems))
    for offset, label, color, values in (
        (-0.2, "p50", _BLUE, [system.lookup_ms["p50"] for system in systems]),
        (0.2, "p99", _GREY, [system.lookup_ms["p99"] for system in systems]),
    ):
        bars = latency.barh([row + offset for row in rows], values, 0.38, label=label, color=color)
        latency.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    latency.set_yticks(rows, names)
    latency.invert_yaxis()
    latency.legend(loc="best")
    bars = ingest.barh(rows, [system.facts_per_second for system in systems], 0.6, color=_BLUE)
    ingest.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    _name(latency, "one lookup, key to text (ms; shorter is better)")
    _name(ingest, "facts a second, index build included (longer is better)")
    _save(figure, path)


def plot_latencies(series: Mapping[str, Mapping[float, float]], path: Path, *, title: str) -> None:
    """Plot latency by percentile, one line for each label of `series`: milliseconds by percentile (0 to 100).

    Percentiles are placed by how rare the slower calls are, so that p99 and p99.9 are far apart.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots()
    ticks = sorted({percentile for line in series.values() for percentile in line if percentile < 100})
    for (label, line), color in zip(series.items(), (_BLUE, _GREY, _RED, "#2f855a", "#6b46c1"), strict=False):
        points = sorted((p, ms) for p, ms in line.items() if p < 100)
        axes.plot([_rarity(p) for p, _ in points], [ms for _, ms in points], "o-", label=label, color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([_rarity(p) for p in ticks], [f"p{p:g}" for p in ticks])
    axes.minorticks_off()
    # Figures within one decade would get no tick at a power of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="best")
    _save(figure, path)


def _rarity(percentile: float) -> float:
    """Give n where one call in n is slower."""
    return 100 / (100 - percentile)


def _name(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.margins(x=0.18)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    """Save a figure made without pyplot, so that no display is needed and no global state is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
