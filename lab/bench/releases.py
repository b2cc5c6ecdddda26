"""Measures the import of a release: its speed and memory, and what is found by the keys that come with it.

The import runs in a process of its own, of which the system says how much memory it held at most.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb import interpreter
from colmlm.kb.releases.releases import ReleaseProgress
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.machine import machine, milliseconds, own_folder, seconds_of
from colmlm.lab.bench.synthetic import (
    exact_top1,
    fact_text,
    make_release,
    paper_index,
    queries_near,
    synthetic_keys,
)

RELEASE_EXAMPLES = examples(
    "colmlm-lab bench release --facts 100000",
    "colmlm-lab bench release --facts 1000000 --dim 64 --json > release.json",
)
NUM_QUERIES, WARM_UP = 1_000, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFigures:
    """The figures of one import. `peak_mb` is the most memory that the importing process held, and `index_peak_mb` the
    most once it had also built the index of its keys. `again_seconds` is an import of what is there.

    `kept_recall_at_1` is the share of queries that find the same fact first by the adopted keys as by the true ones.
    """

    facts: int
    dim: int
    spec: str
    release_mb: float
    check_seconds: float
    facts_seconds: float
    keys_seconds: float
    import_seconds: float
    facts_per_s: float
    peak_mb: float
    index_seconds: float
    index_peak_mb: float
    again_seconds: float
    kept_recall_at_1: float
    approximate: bool
    lookup_p50_ms: float
    lookup_p99_ms: float
    deleted_but_found: int
    delete_ms: float


def release(
    facts: Annotated[int, typer.Option("--facts", min=2000, help="How many facts.")] = 100_000,
    dim: Annotated[int, typer.Option("--dim", min=8, help="Width of a key.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of keys and queries.")] = 0,
    spec: Annotated[
        str | None, typer.Option("--spec", help="A Faiss factory string. Default: the paper's.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
        ),
    ] = None,
) -> None:
    """Measure the import of a synthetic release in the paper's form, and lookups through the keys that come with it."""
    with own_folder(directory) as home:
        figures = measure(home, facts, dim, seed, spec or paper_index(facts, dim))
    if wants_json():
        print_json(asdict(figures) | {"machine": machine()})
        return
    print_table(("what", "measured"), [(name, value) for name, value in asdict(figures).items()])


def measure(home: Path, facts: int, dim: int, seed: int, spec: str) -> ReleaseFigures:
    """Makes a release in this folder, imports it into a base there, asks that, and deletes a fact."""
    folder, settings = home / "release", Settings(home=home / "home", actor="bench")
    note("making the release")
    keys = synthetic_keys(facts, dim, seed=seed)
    make_release(folder, keys, spec=spec, seed=seed)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    KnowledgeBase.open(settings).close()  # makes the database, which is no part of the import
    imported = _imported(settings, folder)
    again = _imported(settings, folder)["import_seconds"]
    with KnowledgeBase.open(settings) as kb:
        asked = _asked(kb, keys, seed)
    rate = facts / imported["import_seconds"]
    return ReleaseFigures(
        facts=facts, dim=dim, spec=spec, release_mb=size, facts_per_s=rate, again_seconds=again, **imported, **asked
    )  # fmt: skip


def _imported(settings: Settings, folder: Path) -> dict[str, Any]:
    """Imports in a process of its own; gives what that says of its seconds and its memory."""
    note("importing")
    command = interpreter.command("-m", "colmlm.lab.bench.releases", settings.home, folder)
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


def main() -> None:
    """Imports the release in a folder into the base of a home, and says in JSON how long each part took."""
    home, folder = map(Path, sys.argv[1:])
    began: dict[str, float] = {}
    parts = ("checking", "checking", "facts", "keys")
    progress = ReleaseProgress(*(partial(_note, began, name) for name in parts))
    with KnowledgeBase.open(Settings(home=home, actor="bench")) as kb:
        started = time.perf_counter()
        report = kb.releases.take(folder, "bench", actor="bench", reason="benchmark", progress=progress)
        stored, peak = time.perf_counter(), _peak_mb()
        assert report.keyset_id is not None, "keys were adopted into a keyset"
        kb.keysets.finish(report.keyset_id)
        built = time.perf_counter()
    checked, facts, keys = (began.get(name, stored) for name in ("checking", "facts", "keys"))
    said = {
        "check_seconds": checked - started,
        "facts_seconds": facts - checked,
        "keys_seconds": keys - facts,
        "import_seconds": stored - started,
        "peak_mb": peak,
        "index_seconds": built - stored,
        "index_peak_mb": _peak_mb(),
    }
    sys.stdout.write(f"{json.dumps(said)}\n")


def _note(began: dict[str, float], name: str, done: int, total: int) -> None:
    began[name] = time.perf_counter()  # the last call counts


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _asked(kb: KnowledgeBase, keys: npt.NDArray[np.float32], seed: int) -> dict[str, Any]:
    """Looks facts up by queries near the true keys, then deletes one and looks it up again."""
    queries = queries_near(keys, min(NUM_QUERIES, len(keys) // 8), seed=seed)
    right = [fact_text(n).value for n in exact_top1(keys, queries).tolist()]
    checkpoint = kb.keysets.active().checkpoint_id
    find = partial(kb.lookups.find, checkpoint_id=checkpoint, threshold=-1)
    times, hits = [], []
    for query in queries:
        times.append(seconds_of(lambda query=query: hits.append(find(query[None])[0].hits[0])))  # type: ignore[misc]
    one = hits[-1]
    deleting = seconds_of(lambda: kb.facts.delete([one.fact_id], actor="bench", reason="benchmark"))
    (after,) = find(queries[-1][None], k=10)
    return {
        "kept_recall_at_1": float(
            np.mean([hit.value == value for hit, value in zip(hits, right, strict=True)])
        ),
        "approximate": all(hit.approximate for hit in hits),
        "lookup_p50_ms": milliseconds(times[WARM_UP:], 50),
        "lookup_p99_ms": milliseconds(times[WARM_UP:], 99),
        "deleted_but_found": sum(hit.fact_id == one.fact_id for hit in after.hits),
        "delete_ms": 1000 * deleting,
    }


if __name__ == "__main__":
    main()
