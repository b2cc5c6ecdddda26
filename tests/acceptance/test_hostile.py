from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.hostile.__main__ import run


@pytest.mark.slow(reason="tries 176 attacks on a server and a worker")
@pytest.mark.timeout(1200)
def test_nothing_hostile_brings_a_server_down_or_makes_it_keep_what_was_erased(settings: Settings) -> None:
    outcome = run(settings, rounds=2)
    assert [one for one in outcome["cases"] if not one["ok"]] == []
    groups = {"headers", "connections", "bodies", "documents", "races", "aftermath"}
    assert {one["group"] for one in outcome["cases"]} == groups
