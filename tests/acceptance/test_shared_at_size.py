from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.shared_at_size import run


@pytest.mark.slow(reason="builds an index with lists")
def test_an_index_with_lists_is_shared_and_opened_elsewhere(tmp_path: Path) -> None:
    found = run(Settings(home=tmp_path), keys=20_000, width=64)
    assert found["keys"] == 20_000 and found["megabytes"] > 20_000 * (8 + 64 / 8) / 1e6
