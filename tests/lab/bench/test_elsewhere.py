"""The benchmark of keys elsewhere: the same answers as with Faiss here, and none that an edit has made wrong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colmlm.lab.main import app
from tests.milvus_server import MilvusServer


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_lookups_elsewhere_are_measured_beside_those_here(
    milvus: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_MILVUS_URI", milvus.uri)
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:  # a server runs as another user
        Path(folder).chmod(0o755)
        arguments = ["bench", "store", "--backend", "milvus:bench", "--facts", "2000", "--dim", "16"]
        result = CliRunner().invoke(
            app, [*arguments, "--directory", folder, "--json"], catch_exceptions=False
        )
        assert result.exit_code == 0 and list(Path(folder).iterdir()) == []
    report = json.loads(result.stdout)
    assert {"lookup_p50_ms", "here_p50_ms", "index_seconds", "handed_on_seconds"} <= set(report)
    assert report["recall_at_1"] >= 0.99 and report["here_recall_at_1"] == 1.0
    assert (report["deleted_but_found"], report["restored_not_found"], report["differences"]) == (0, 0, 0)
    assert report["edits"] == 400


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_lookups_by_torch_are_measured_beside_those_by_faiss() -> None:
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
        Path(folder).chmod(0o755)
        arguments = ["bench", "store", "--backend", "torch", "--facts", "2000", "--dim", "16"]
        result = CliRunner().invoke(
            app, [*arguments, "--directory", folder, "--json"], catch_exceptions=False
        )
        assert result.exit_code == 0 and list(Path(folder).iterdir()) == []
    report = json.loads(result.stdout)
    assert report["recall_at_1"] == report["same_answers"] == 1.0 and report["candidates_needed"] == 1
    assert (report["deleted_but_found"], report["restored_not_found"], report["differences"]) == (0, 0, 0)
    assert report["bytes_per_key"] == 2 * 16 + 9 and report["memory"]["capacity"] >= 2000


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_what_names_no_collection_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "store", "--backend", "faiss"])
    assert result.exit_code == 2 and "milvus:COLLECTION" in result.output
