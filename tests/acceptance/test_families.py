"""A base of each family, tiny and random, is trained, keys a real knowledge base, and decodes with its facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.start import plan_run
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import ingest, numbered
from tests.tiny_families import FAMILIES, tiny_family

CONFIG = TrainConfig(
    steps=10, batch_documents=8, block=4, max_length=128, learning_rate=5e-3, warmup_steps=2, lora_rank=4, lora_alpha=8,
    precision="fp32", title_fraction=0.0, qa_fraction=0.0, ntp_fraction=1.0,
)  # fmt: skip
PROMPT = "Question: Question 7? Answer:"


pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def trained(name: str, folder: Path, **changes: Any) -> Checkpoint:
    """Trains ten steps from the family's base; gives the checkpoint, which computes what the trained model does."""
    config = replace(CONFIG, init=str(tiny_family(name, folder / "base")), **changes)
    trainer = Trainer(config, numbered(24), folder / "run", folder, name)
    steps = list(trainer.run())
    assert len(steps) == 10 and steps[-1].loss < steps[0].loss
    counted = plan_run(config, folder).parameters.trained
    assert counted == sum(p.numel() for p in trainer.lm.parameters() if p.requires_grad)
    checkpoint = load(folder / "run", folder, precision="fp32")
    ids = torch.tensor([checkpoint.tokenizer.prompt(PROMPT)])
    with torch.inference_mode():
        here, there = (lm.eval().hidden(ids)[0] for lm in (trainer.lm, checkpoint.lm))
        torch.testing.assert_close(there, here, atol=1e-3, rtol=1e-3)
        said = checkpoint.lm.logits(there)
        torch.testing.assert_close(said, trainer.lm.logits(here), atol=1e-3, rtol=1e-3)
    return checkpoint


@pytest.mark.slow(reason="trains a model of each of seven families")
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_trained_keyed_and_decoded_with_a_lookup(kb: KnowledgeBase, tmp_path: Path, name: str) -> None:
    checkpoint = trained(name, tmp_path)
    ingest(kb, *numbered(24))
    kb.keysets.set_threshold(kb.keysets.rekey(ModelEncoder(checkpoint)).keyset_id, -1.0)
    forced = DecodeConfig(mode="forced", max_tokens=6)
    (said,) = Decoder(checkpoint, kb.lookups).generate([PROMPT], forced)
    hit = next(splice for splice in said.splices if splice.outcome == "hit")
    value = said.output[hit.output_start : hit.output_end]
    assert hit.fact_id is not None and value == kb.facts.show(hit.fact_id).value
    assert said.output.startswith(f" {value}")


@pytest.mark.slow(reason="trains a model of each of seven families")
@pytest.mark.parametrize("name", FAMILIES)
def test_all_its_weights_are_trained_on_packed_rows(tmp_path: Path, name: str) -> None:
    assert trained(name, tmp_path, adapt="full", forward_tokens=512).config.kind == "full"
