"""The life of a base at a size: every stage is measured once, and what was broken off goes on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.size import stages
from colmlm.lab.bench.size.stages import SizedBase
from colmlm.lab.bench.synthetic import documents, exact_top1, queries_near, synthetic_keys
from tests.cli.conftest import invoke

FACTS, DIM = 2000, 16
WHO = {"actor": "bench", "reason": "benchmark"}
SIZED = ("bench", "size", "--facts", FACTS, "--dim", DIM)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
        Path(folder).chmod(0o755)  # a server runs as another user
        yield Path(folder) / "base"


@pytest.fixture(scope="module")
def report(base: Path) -> dict[str, Any]:
    ran = invoke(*SIZED, "--base", base, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.slow(reason="goes through the life of a base, stage by stage")
def test_every_stage_says_what_it_took(report: dict[str, Any]) -> None:
    assert list(report["stages"]) == list(stages.STAGES) and (report["facts"], report["dim"]) == (FACTS, DIM)
    for figures in report["stages"].values():
        assert figures["seconds"] > 0 and figures["peak_bytes"] > 0 and figures["peak_server_bytes"] > 0
        assert figures["peak_disk_bytes"] >= figures["database_bytes"] > 0
    found = report["stages"]
    assert found["ingest"]["facts"] == found["keys"]["keys"] == FACTS
    assert found["lookup"]["recall_at_1"] == 1.0 and found["delete"]["deleted_but_found"] == 0
    assert found["erase"]["level"] == 2 and found["purge"]["level"] == 4
    assert found["fsck"]["ok"] and found["verify"]["facts"] == FACTS and found["backup"]["backup_bytes"] > 0


@pytest.mark.slow(reason="goes through the life of a base, stage by stage")
def test_a_kept_base_is_not_measured_twice_unless_that_is_asked_for(
    base: Path, report: dict[str, Any]
) -> None:
    again = invoke(*SIZED, "--base", base, "--again", "restart", "--json").json["stages"]
    assert [name for name, figures in report["stages"].items() if figures != again[name]] == ["restart"]
    other = invoke("bench", "size", "--facts", FACTS + 1, "--base", base)
    assert other.code == 2 and "name another directory" in other.err
    assert invoke(*SIZED, "--without", "tea").code == 2


def test_keys_that_were_broken_off_go_on_after_the_last_one_that_is_stored(
    kb: KnowledgeBase, tmp_path: Path
) -> None:
    sized, half = SizedBase(tmp_path, FACTS, DIM, 0), FACTS // 2
    kb.corpora.ingest(map(Parsed, documents(half)), "bench", **WHO)
    with kb.sessions.begin() as session:  # as an ingest that was killed leaves it
        session.execute(text("SELECT setval('fact_id_seq', 5 * :half)"), {"half": half})
    assert stages.ingest(kb, sized) == {"facts": half}
    keyset = kb.keysets.create(CheckpointInfo(stages.CHECKPOINT, stages.CHECKPOINT, DIM))
    made = synthetic_keys(FACTS, DIM, seed=0)
    kb.keysets.store_keys(keyset.keyset_id, np.arange(1, half + 1), made[:half], **WHO)
    assert stages.keys(kb, sized)["keys"] == half
    _, stored = kb.keysets.keys(keyset.keyset_id)
    np.testing.assert_allclose(stored, made[: len(stored)], atol=1e-2)


def test_queries_and_their_answers_are_those_of_keys_in_memory(tmp_path: Path) -> None:
    sized, made = SizedBase(tmp_path, FACTS, DIM, 3), synthetic_keys(FACTS, DIM, seed=3)
    sized.make_queries()
    queries, nearest = sized.queries()
    np.testing.assert_allclose(queries, queries_near(made, len(queries), seed=3), atol=1e-6)
    assert np.array_equal(nearest, exact_top1(made, queries))
