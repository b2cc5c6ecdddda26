from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance import many_servers, mixed_load

DONE = ("lookups", "generations", "edits", "forgets", "jobs", "of_new")


@pytest.mark.slow(reason="works on a real server for seconds")
def test_nothing_fails_while_everything_happens_at_once(settings: Settings) -> None:
    found = mixed_load.run(settings, minutes=0.05, switches=2)
    assert found["causes"] == [] and faults_in(found) == [], found
    assert min(found[name] for name in DONE) > 0, found


@pytest.mark.slow(reason="runs three servers and two workers and kills each")
def test_servers_and_workers_are_killed_in_turn_and_nothing_is_wrong(settings: Settings) -> None:
    found = many_servers.run(settings, minutes=0.08)
    assert found["causes"] == [] and faults_in(found) == [], found
    assert min(found[name] for name in DONE) > 0, found
    assert len(found["seconds_until_ready"]) == found["homes"] == 6, found
