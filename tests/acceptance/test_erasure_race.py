from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.erasure_race import run


@pytest.mark.slow(reason="works on a real server for seconds")
def test_nothing_keeps_what_is_said_and_planned_while_it_is_erased(settings: Settings) -> None:
    outcome = run(settings, erasures=12, decoders=3)
    assert outcome.is_good, outcome
    assert min(outcome.records, outcome.spliced, outcome.plans) > 0, outcome
