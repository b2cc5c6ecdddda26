"""The active keyset is switched back and forth beside lookups and edits; an old encoder is refused after the switch."""

from __future__ import annotations

import pytest

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.switch_under_load import run
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import CAPITAL, PERU, ingest


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_lookup_fails_and_no_answer_is_mixed_while_the_keyset_switches(settings: Settings):
    outcome = run(settings, seconds=1)
    assert (outcome.failed, outcome.mixed, outcome.wrong) == (0, 0, 0)
    assert 0 < outcome.answered_by_new < outcome.requests and outcome.edits > 0
    assert outcome.activations >= 2 and outcome.rollbacks >= 2 and outcome.index_ok and outcome.chain_ok


def test_whoever_has_only_the_old_encoder_is_refused_after_the_switch(kb: KnowledgeBase):
    old, new = FakeEncoder(), FakeEncoder(salt="2", dim=16)
    ingest(kb, PERU)
    kb.keysets.rekey(old)
    both, only_old = Questions(kb, [old, new]), Questions(kb, [old])
    assert both.ask([CAPITAL])[0] == only_old.ask([CAPITAL])[0] == "fake"
    activated(kb, kb.keysets.rekey(new).keyset_id)
    checkpoint_id, (lookup,) = both.ask([CAPITAL], k=2)
    assert checkpoint_id == "fake2" and lookup.hits[0].value == "Lima"
    with pytest.raises(KeysetMismatch):
        only_old.ask([CAPITAL])
