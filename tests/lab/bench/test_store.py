"""The benchmark of the store: it measures what it says, and its checks hold on a small run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colmlm.kb.corpus.format import to_record
from colmlm.lab.bench.synthetic import LEAST, documents
from colmlm.lab.main import app
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:  # a server runs as another user
        Path(folder).chmod(0o755)
        arguments = ["bench", "store", "--facts", "2000", "--dim", "16", "--directory", folder, "--json"]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        yield json.loads(result.stdout)
        assert list(Path(folder).iterdir()) == []


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_the_report_has_every_figure(report: dict[str, object]) -> None:
    assert len(report) >= 38 and report["facts"] == 2000 and report["spec"] == "IDMap2,Flat"
    # Memory is counted in pages, and so small an index may fit into what the process had already.
    maybe_zero = {"seed", "deleted_but_found", "bytes_per_fact"}
    names = report.keys() - maybe_zero
    assert [name for name in names if isinstance(report[name], float) and report[name] <= 0] == []


def test_an_exact_index_finds_everything_and_nothing_that_was_deleted(report: dict[str, object]) -> None:
    assert report["recall_at_1"] == report["faiss_recall_at_1"] == 1.0
    assert report["deleted_but_found"] == 0
    assert report["forget_facts"] == 200


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_keys_and_questions_of_a_keyset_are_measured_and_nothing_of_its_base_is_changed(
    run: Run, home: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f"{json.dumps(to_record(document))}\n" for document in documents(LEAST)))
    assert run("corpus", "add", corpus, "--format", "annotated", "--corpus", "things").code == 0
    assert run("bench", "store", "--keyset", 1).code == 3
    assert run("keysets", "fill").code == 0
    before = run("log", "list", "--json").out
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
        Path(folder).chmod(0o755)
        report = run("bench", "store", "--keyset", 1, "--directory", folder, "--json").json
    assert (report["keys"], report["facts"], report["spec"]) == ("keyset 1", LEAST, "IDMap2,Flat")
    assert report["recall_at_1"] == report["faiss_recall_at_1"] == 1.0 and report["deleted_but_found"] == 0
    assert run("log", "list", "--json").out == before
    assert run("bench", "store", "--keyset", 1, "--peers").code == 2
