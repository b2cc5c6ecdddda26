"""Measures how long a server with an empty home takes to get and open a large index that another one shared.

The codes of the index are random bits under ids in order, since nothing here depends on what they say; its kind and
size are those of an index of so many keys. Nothing is asked of a database: what comes after is catching up.

    python -m tests.acceptance.shared_at_size --keys 10000000 --width 576 --json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.replicas import copy_here
from colmlm.kb.lookup.shared import SharedFolder
from colmlm.kb.lookup.snapshot_files import open_snapshot_file
from tests.acceptance.programs import options_of, own_folder, report

LISTS = 4096


@dataclass(frozen=True, slots=True)
class Opened:
    """Seconds to write the snapshot, to copy it to the shared place, to fetch it (with its digest), and to open it."""

    keys: int
    width: int
    megabytes: float
    seconds_saved: float
    seconds_shared: float
    seconds_fetched: float
    seconds_opened: float


def run(folder: Path, place: str, keys: int, width: int) -> Opened:
    """Shares an index of so many keys at `place`, and opens it from an empty directory in `folder`."""
    there, first, second = SharedFolder(place, "base"), folder / "first", folder / "second"
    there.make()
    saving = saved(filled(keys, width), first)
    with open_snapshot_file(first, 1, width) as (manifest, stream):
        size = stream.seek(0, 2)
        stream.seek(0)
        sharing = seconds(lambda: there.put(manifest["file"], stream))
    fields = {name: manifest[name] for name in ("file", "sha256", "spec", "count")}
    known = SharedSnapshot(num_bytes=size, applied_seq=1, log_hash="", **fields)
    fetching = seconds(lambda: copy_here(there, known, 1, width, second))
    began = time.monotonic()
    index, _ = KeyIndex.load(second, keyset_id=1, dim=width)
    opening = time.monotonic() - began
    found, _ = index.search(np.ones((1, width), np.float32), 10)
    assert len(index) == keys and np.isfinite(found).all()
    rounded = (round(value, 2) for value in (saving, sharing, fetching, opening))
    return Opened(keys, width, round(size / 1e6, 1), *rounded)


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


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--place", help="where to share it, by default a directory beside")
    options = parser.parse_args()
    with own_folder() as folder:
        (folder / "shared").mkdir()
        outcome = run(folder, options.place or f"{folder}/shared", options.keys, options.width)
    return report(outcome, is_good=True, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
