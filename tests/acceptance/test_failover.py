from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance.failover import run
from tests.debian_servers import replicated_pair
from tests.servers import DEBIANS


@pytest.mark.slow(reason="starts a pair of PostgreSQL servers")
def test_no_acknowledged_edit_is_lost_and_none_is_answered_wrongly_when_the_standby_takes_over(
    tmp_path: Path,
) -> None:
    if not DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIANS}")
    with replicated_pair() as pair:
        found = run(Settings(home=tmp_path, actor="tester"), pair, rounds=2, pause=1.0)
    assert faults_in(found) == [], found
    assert (
        min(found[name] for name in ("requests_refused", "edits_acknowledged", "deletions_acknowledged")) > 0
    )
