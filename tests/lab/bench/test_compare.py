"""The comparison takes each peer through the whole job, and says what of deleted facts is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colmlm.lab.bench.compare import (
    PeerFailure,
    PeerResult,
    compare,
    find_residue,
    plot_latencies,
    plot_systems,
)
from colmlm.lab.bench.peers import PEERS, PeerKind
from colmlm.lab.bench.synthetic import fact_text, synthetic_keys

PNG = b"\x89PNG\r\n\x1a\n"


def test_peers_are_measured_and_one_that_is_missing_or_dies_does_not_stop_the_rest(
    tmp_path: Path,
) -> None:
    if PEERS["qdrant"].version() is None:
        pytest.skip(PEERS["qdrant"].install_command)
    said: list[str] = []
    peers = (
        replace(PEERS["chroma"], package="no-such-package-9"),
        PeerKind("broken", "numpy", "os:no_such_class"),
        PeerKind("dying", "numpy", "os:abort"),
        PEERS["qdrant"],
    )
    missing, broken, dead, result = compare(
        400, 32, peers=peers, target_recall=0.9, num_queries=50, on_progress=said.append
    )
    assert missing == PeerFailure("chroma", "not installed: pip install no-such-package-9")
    assert broken == PeerFailure("broken", "AttributeError: module 'os' has no attribute 'no_such_class'")
    assert dead == PeerFailure("dying", "its process ended with exit code -6")
    assert isinstance(result, PeerResult)
    assert (result.reached_target, result.deleted_but_found, result.num_deletes) == (True, 0, 100)
    assert result.residue_of_kept.values == result.residue_of_kept.num_facts == 100
    assert 0 < result.lookup_ms["p50"] <= result.lookup_ms["p99"]
    assert any("recall@1" in line for line in said)

    plot_systems([result], tmp_path / "plots" / "systems.png", title="Systems")
    assert (tmp_path / "plots" / "systems.png").read_bytes().startswith(PNG)


def test_residue_is_found_whatever_the_file_the_offset_and_the_precision(tmp_path: Path) -> None:
    keys = synthetic_keys(5, 16, seed=1)
    (tmp_path / "log").write_bytes(b"odd" + keys[0].tobytes() + fact_text(3).value.encode() + b"4")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pages").write_bytes(keys[2].astype(np.float16).tobytes() + b"value 00000001")
    (tmp_path / "empty").touch()
    residue = find_residue(tmp_path, range(5), keys)
    assert (residue.num_facts, residue.values, residue.keys) == (5, 1, 2)
    assert find_residue(tmp_path, [4], keys[4:]).keys == 0


def test_latencies_are_plotted_by_percentile(tmp_path: Path) -> None:
    lines = {"store": {50.0: 1.0, 99.0: 3.0}, "Faiss alone": {50.0: 0.5, 99.0: 0.7, 100.0: 9.0}}
    plot_latencies(lines, tmp_path / "latency.png", title="Lookups")
    assert (tmp_path / "latency.png").read_bytes().startswith(PNG)
