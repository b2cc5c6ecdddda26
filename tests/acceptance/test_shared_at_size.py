from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.shared_at_size import run


@pytest.mark.slow(reason="builds an index with lists")
def test_an_index_with_lists_is_shared_and_opened_elsewhere(tmp_path: Path) -> None:
    (place := tmp_path / "shared").mkdir()
    outcome = run(tmp_path, str(place), keys=20_000, width=64)
    assert outcome.keys == 20_000 and outcome.megabytes > 20_000 * (8 + 64 / 8) / 1e6
