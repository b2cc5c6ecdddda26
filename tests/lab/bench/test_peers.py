"""Every installed store does the job it is compared at: find the text by key, delete, and keep both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from colmlm.lab.bench.peers import PEERS, PeerHit, PeerKind
from colmlm.lab.bench.synthetic import exact_top1, fact_text, queries_near, synthetic_keys

DIM = 32
KEYS = synthetic_keys(500, DIM, seed=7)
TEXTS = [fact_text(fact) for fact in range(500)]


@pytest.fixture(params=PEERS)
def kind(request: pytest.FixtureRequest) -> PeerKind:
    kind = PEERS[request.param]
    if kind.version() is None:
        pytest.skip(f"not installed: {kind.install_command}")
    return kind


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: its folders are closed to the other user that a server runs as.
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def found(kind: PeerKind, fact: int) -> PeerHit:
    # Ours gives the value; the source is one more read away.
    return PeerHit(fact, TEXTS[fact].value, "" if kind.name == "colmlm" else TEXTS[fact].source)


@pytest.mark.filterwarnings("default", "ignore:legacy embedding function")  # the stores' own
def test_a_store_finds_the_nearest_text_and_keeps_a_delete_over_a_restart(
    kind: PeerKind, directory: Path
) -> None:
    store = kind.make()
    store.open(directory, DIM)
    assert store.version()
    for part in (slice(0, 300), slice(300, 500)):
        texts, sources = zip(*((t.value, t.source) for t in TEXTS[part]), strict=True)
        store.ingest(np.arange(500)[part], KEYS[part], texts, sources)
    store.build()
    store.set_search(store.efforts[-1])
    queries = queries_near(KEYS, 20, seed=8)
    nearest = [int(n) for n in exact_top1(KEYS, queries)]
    assert [store.lookup(query) for query in queries] == [found(kind, n) for n in nearest]
    assert store.lookup_batch(queries) == [found(kind, n) for n in nearest]

    gone = nearest[:5]
    for fact in gone:
        store.delete(fact)
        assert store.lookup(KEYS[fact]) != found(kind, fact)
    left = np.delete(KEYS, gone, axis=0)
    kept = np.delete(np.arange(500), gone)
    second = [found(kind, int(kept[n])) for n in exact_top1(left, queries)]
    assert store.lookup_batch(queries) == second
    store.close()

    store = kind.make()
    store.open(directory, DIM)
    store.set_search(store.efforts[-1])
    assert store.lookup_batch(queries) == second
    store.clean_up()
    store.set_search(store.efforts[-1])
    assert store.lookup_batch(queries) == second
    assert store.bytes_on_disk() > 500 * DIM
    store.close()
