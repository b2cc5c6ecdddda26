"""A decoder elsewhere never splices a deleted fact, and the check would notice one that did."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance.remote_decodes import Stale, run
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("eager"), eagerness=5.0)


@pytest.mark.slow(reason="decodes in processes of their own")
def test_no_deleted_fact_is_spliced_by_a_decoder_elsewhere(settings: Settings, checkpoint_at: Path):
    outcome = run(settings, checkpoint_at, decodes=40)
    assert faults_in(outcome) == [] and outcome["decodes"] == 40, outcome
    assert outcome["splices"] >= 40 and outcome["deletes"] > 20 and outcome["restores"] > 0


@pytest.mark.slow(reason="decodes in processes of their own")
def test_a_decoder_that_remembers_answers_is_found_out(settings: Settings, checkpoint_at: Path):
    assert "spliced_after_delete" in faults_in(run(settings, checkpoint_at, decodes=10, wrap=Stale))
