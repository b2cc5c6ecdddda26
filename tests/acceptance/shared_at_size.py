"""Measures how long a server with an empty home takes to get and open a large index that another one shared.

The codes of the index are random bits under ids in order, since nothing here depends on what they say; its kind and
size are those of an index of so many keys. Nothing is asked of a database: what comes after is catching up.

    python -m tests.acceptance.shared_at_size --keys 10000000 --width 576 --json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.open_replicas import copy_snapshot
from colmlm.kb.lookup.shared import SharedFolder
from colmlm.kb.lookup.snapshot_files import open_snapshot_file
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario

LISTS = 4096


def run(settings: Settings, *, keys: int = 10_000_000, width: int = 576, place: str | None = None) -> Figures:
    """Share an index of so many keys at a place, by default in a directory beside, and open it elsewhere."""
    folder, beside = settings.home, settings.home / "shared"
    beside.mkdir()
    there, first, second = SharedFolder(place or str(beside), "base"), folder / "first", folder / "second"
    there.make()
    saving = saved(filled(keys, width), first)
    with open_snapshot_file(first, 1, width) as (manifest, stream):
        size = stream.seek(0, 2)
        stream.seek(0)
        sharing = seconds(lambda: there.put(manifest["file"], stream))
    fields = {name: manifest[name] for name in ("file", "sha256", "spec", "count")}
    known = SharedSnapshot(num_bytes=size, applied_seq=1, log_hash="", **fields)
    fetching = seconds(lambda: copy_snapshot(there, known, 1, width, second))
    began = time.monotonic()
    index, _ = KeyIndex.load(second, keyset_id=1, dim=width)
    opening = time.monotonic() - began
    found, _ = index.search(np.ones((1, width), np.float32), 10)
    assert len(index) == keys and np.isfinite(found).all()
    took = {"saved": saving, "shared": sharing, "fetched": fetching, "opened": opening}
    return {
        "keys": keys,
        "width": width,
        "megabytes": round(size / 1e6, 1),
        **{f"seconds_{name}": round(value, 2) for name, value in took.items()},
    }


def saved(index: KeyIndex, directory: Path) -> float:
    return seconds(lambda: index.save(directory, keyset_id=1, applied_seq=1))


def filled(keys: int, width: int) -> KeyIndex:
    """Makes an index of random codes, by what Faiss has below adding, which would take an hour."""
    random, made = np.random.default_rng(0), KeyIndex(width, f"RR{width},IVF{LISTS},RaBitQ")
    made.train(random.standard_normal((2 * LISTS, width), np.float32))
    ivf = faiss.try_extract_index_ivf(made.bare)
    ivf.set_direct_map_type(faiss.DirectMap.NoMap)
    for number, ids in enumerate(np.array_split(np.arange(keys, dtype=np.int64), LISTS)):
        codes = random.integers(0, 256, (len(ids), ivf.code_size), np.uint8)
        codes[:, width // 8 :] = np.ones((len(ids), (ivf.code_size - width // 8) // 4), "<f4").view(np.uint8)
        ivf.invlists.add_entries(number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes))
    ivf.ntotal = made.bare.ntotal = keys
    ivf.set_direct_map_type(faiss.DirectMap.Hashtable)
    made._adopt(made.bare)
    return made


def seconds(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


if __name__ == "__main__":
    run_scenario(run)
