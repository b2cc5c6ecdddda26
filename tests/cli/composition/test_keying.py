"""Facts are keyed and their keyset calibrated, also where a process died in between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, TurnedEncoder, measured
from tests.kb.corpora import ingest, numbered


@dataclass(slots=True)
class Dying(TurnedEncoder):
    """Dies once true keys are made, before it has encoded a question."""

    def encode_questions(self, questions):
        if self.calls:
            raise RuntimeError("killed")
        return TurnedEncoder.encode_questions(self, questions)


def test_what_was_calibrated_for_predicted_keys_is_calibrated_again_also_after_a_kill(
    home: Path, kb: KnowledgeBase
) -> None:
    ingest(kb, *numbered(240))
    kb.keysets.rekey(FakeEncoder())
    keyset_id = kb.keysets.adapt(TurnedEncoder(), sample=120)[0].keyset_id
    kb.keysets.calibrate(keyset_id, measured(0.123))
    with Runtime.from_environment() as runtime:
        runtime.open()
        with pytest.raises(RuntimeError, match="killed"):
            key_everything(runtime, encoder=Dying(), replace=True)
        left = kb.keysets.show(keyset_id)
        assert (left.num_predicted, left.threshold) == (0, 0.123)
        again = key_everything(runtime, encoder=TurnedEncoder(), replace=True)
        assert again.calibrated and again.threshold != 0.123
        kb.keysets.calibrate(keyset_id, measured(0.123))
        assert key_everything(runtime, encoder=TurnedEncoder(), replace=True).threshold == 0.123
        kb.keysets.set_threshold(keyset_id, 0.5)
        assert key_everything(runtime, encoder=TurnedEncoder(), replace=True).threshold == 0.5
