from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance.webhooks_killed import run


@pytest.mark.slow(reason="kills workers that deliver webhooks")
def test_workers_are_killed_and_every_change_is_taken_in_order(settings: Settings) -> None:
    found = run(settings, kills=4)
    assert faults_in(found) == [], found
    assert min(found[name] for name in ("changes", "refused", "requests")) > 0, found
