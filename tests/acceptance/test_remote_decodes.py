"""A decoder elsewhere never splices a deleted fact, and the check would notice one that did."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.remote_decodes import Stale, run
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("eager"), eagerness=5.0)


@pytest.mark.slow(reason="decodes in processes of their own")
def test_no_deleted_fact_is_spliced_by_a_decoder_elsewhere(settings: Settings, checkpoint_at: Path):
    outcome = run(settings, checkpoint_at, decodes=40)
    assert (outcome.decodes, outcome.spliced_after_delete, outcome.lost) == (40, 0, 0)
    assert outcome.splices >= 40 and outcome.deletes > 20 and outcome.restores > 0


@pytest.mark.slow(reason="decodes in processes of their own")
def test_a_decoder_that_remembers_answers_is_found_out(settings: Settings, checkpoint_at: Path):
    assert run(settings, checkpoint_at, decodes=10, wrap=Stale).spliced_after_delete > 0
