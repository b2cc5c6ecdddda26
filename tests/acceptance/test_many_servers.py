from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.many_servers import run


@pytest.mark.slow(reason="runs three servers and two workers and kills each")
def test_servers_and_workers_are_killed_in_turn_and_nothing_is_wrong(
    settings: Settings, tmp_path: Path
) -> None:
    settings.home.mkdir()
    (tmp_path / "shared").mkdir()
    outcome = run(replace(settings, shared_snapshots=str(tmp_path / "shared")), seconds=5)
    assert outcome.causes == []
    assert outcome.is_good, outcome
    done = (outcome.lookups, outcome.generations, outcome.edits, outcome.forgets, outcome.jobs)
    assert min(done) > 0 and len(outcome.seconds_until_ready) == outcome.homes == 6, outcome
