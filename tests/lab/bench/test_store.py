"""The benchmark of the store: it measures what it says, and its checks hold on a small run."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colmlm.cli.start.app import app


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:  # a server runs as another user
        Path(folder).chmod(0o755)
        arguments = ["bench", "store", "--facts", "2000", "--dim", "16", "--directory", folder, "--json"]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        yield json.loads(result.stdout)
        assert list(Path(folder).iterdir()) == []


def test_the_report_has_every_figure(report: dict[str, object]) -> None:
    from colmlm.lab.bench.store import StoreFigures

    names = {field.name for field in dataclasses.fields(StoreFigures)}
    assert names <= set(report) and report["facts"] == 2000 and report["spec"] == "IDMap2,Flat"
    # Memory is counted in pages, and so small an index may fit into what the process had already.
    maybe_zero = {"seed", "deleted_but_found", "bytes_per_fact"}
    assert [
        name for name in names - maybe_zero if isinstance(report[name], float) and report[name] <= 0
    ] == []


def test_an_exact_index_finds_everything_and_nothing_that_was_deleted(report: dict[str, object]) -> None:
    assert report["recall_at_1"] == report["faiss_recall_at_1"] == 1.0
    assert report["deleted_but_found"] == 0
    assert report["forget_facts"] == 200
