from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.mixed_load import run


@pytest.mark.slow(reason="works on a real server for seconds")
def test_nothing_fails_while_everything_happens_at_once(settings: Settings) -> None:
    outcome = run(settings, seconds=3)
    assert outcome.causes == []
    assert outcome.is_good, outcome
    done = (outcome.lookups, outcome.generations, outcome.edits, outcome.forgets, outcome.jobs)
    assert min(*done, outcome.of_new) > 0, outcome
