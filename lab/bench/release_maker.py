"""Makes releases of any size in the paper's form, with synthetic facts and keys, for tests and benchmarks.

The entries come in another order than the keys, as in a store that several processes wrote.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss as untyped_faiss
import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.release import ENTRIES, IDS, INDEX
from colmlm.kb.lookup.index import FLAT_UP_TO, default_nlist
from colmlm.lab.bench.synthetic import CHUNK, FACTS_PER_DOCUMENT, fact_text

faiss: Any = untyped_faiss  # its type stubs lack half of the methods that SWIG generates
TRAINED_PER_LIST = 39


def paper_index(num_facts: int, dim: int) -> str:
    """Gives the paper's factory string, with fewer lists where there are fewer keys."""
    lists = default_nlist(num_facts) if num_facts > FLAT_UP_TO else max(1, num_facts // 256)
    bits = "" if num_facts >= 256 * TRAINED_PER_LIST else "x4"
    return f"OPQ{dim // 4},IVF{lists},PQ{dim // 4}{bits}"


def make_release(
    folder: Path, keys: npt.NDArray[np.float32], *, spec: str | None = None, seed: int = 0
) -> None:
    """Writes a release into this folder: fact n is `fact_text(n)` and has key n; `spec` is its index's."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(keys))
    with (folder / IDS).open("w", encoding="ascii") as ids:
        ids.writelines(f"e{number:09d}\n" for number in range(len(keys)))
    with closing(sqlite3.connect(folder / ENTRIES)) as entries:
        entries.execute("CREATE TABLE entries (entry_id TEXT PRIMARY KEY, data TEXT)")
        with entries:
            entries.executemany("INSERT INTO entries VALUES (?, ?)", _rows(order))
    faiss.write_index(_index(keys, spec or paper_index(*keys.shape)), str(folder / INDEX))


def _rows(order: npt.NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    for number in order.tolist():
        sample, fact_idx = divmod(number, FACTS_PER_DOCUMENT)
        about = {"sample_id": f"s{sample:07d}", "fact_idx": fact_idx}
        entry = {"id": f"e{number:09d}", "fact_span": fact_text(number).value, "metadata": about}
        yield entry["id"], json.dumps(entry)  # type: ignore[misc]


def _index(keys: npt.NDArray[np.float32], spec: str) -> Any:
    index = faiss.index_factory(keys.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
    ivf = faiss.try_extract_index_ivf(index)
    lists = 1 if ivf is None else ivf.nlist
    if isinstance(codes := ivf and faiss.downcast_index(ivf), faiss.IndexIVFPQ):
        codes.do_polysemous_training = False  # takes 1.6 s for each byte of a code
    if spec.startswith("OPQ"):
        _spare_rotation(index)
    index.train(keys[: max(256 * TRAINED_PER_LIST, TRAINED_PER_LIST * lists)])
    for start in range(0, len(keys), CHUNK):
        some = keys[start : start + CHUNK]
        if isinstance(index, faiss.IndexIDMap):
            index.add_with_ids(some, np.arange(start, start + len(some)))
        else:
            index.add(some)
    return index


def _spare_rotation(index: Any) -> None:
    """Shortens the training of a rotation, which says little of an import and would take minutes."""
    opq = faiss.downcast_VectorTransform(index.chain.at(0))
    opq.niter, opq.max_train_points = 4, 64 * 256
    opq.pq = faiss.ProductQuantizer(opq.d_out, opq.M, 4)
    index.referenced_objects = [*getattr(index, "referenced_objects", []), opq.pq]  # Faiss does not own it
