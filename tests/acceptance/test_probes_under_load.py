from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.probes_under_load import Load, run


@pytest.mark.slow(reason="works on a real server for seconds")
def test_probes_and_lookups_are_answered_while_edits_wait_for_the_log(settings: Settings) -> None:
    """All counted requests were answered before the log was unlocked; more edits wait than there are threads."""
    outcome = run(settings, Load(seconds=2, facts=200, lookers=2, edits=12, past=24, rows=4, decodes=4))
    loaded = outcome["loaded"]
    assert loaded["probes"] > 0 and loaded["probe_errors"] == {}
    assert loaded["done"]["lookups"] > 0 and loaded["done"]["decodes"] > 0
    assert loaded["failed"] == {} and outcome["quiet"]["failed"] == {}
    assert set(loaded["refused"]) <= {"long reads", "decoding"}, "edits have room to wait"
    assert (outcome["edits_while_held"], outcome["edits_afterwards"]) == (0, 12)
