"""An adapter made of trained weights is the nearest of its rank, and loads as any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from colmlm.lab.half_hour.training import as_adapter
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.logs import LOSS_FILE
from colmlm.model.training.start import LORA_MODULES
from colmlm.model.training.state import release_adapter
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import numbered
from tests.tiny import tiny_base

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def changed(root: Path, rank: int | None) -> Path:
    """Writes a run of which only matrices of the layers, by this rank, and the added rows differ from the base.

    Without a rank all weights differ, as after training.
    """
    config = TrainConfig(
        init=str(tiny_base(root / "base")),
        adapt="full",
        steps=1,
        batch_documents=4,
        max_length=64,
        precision="fp32",
    )
    run = Trainer(config, numbered(8), root / "run", root, "run")
    list(run.run())
    begun = Trainer(config, numbered(8), root / "begun", root, "run").lm.causal.state_dict()
    torch.manual_seed(1)
    for name, weights in run.lm.causal.named_parameters():
        is_matrix = name.removesuffix(".weight").endswith(tuple(LORA_MODULES))
        if rank is not None:
            weights.data = begun[name].clone()
        if rank is not None and is_matrix:
            weights.data += torch.randn(len(weights), rank) @ torch.randn(rank, weights.shape[1]) * 0.02
        if rank is None:
            weights.data += torch.randn_like(weights) * 0.02
    run.lm.causal.model.embed_tokens.weight.data[-3:] += 0.1
    run.loop.save()
    return root / "run"


def states(checkpoint: Checkpoint) -> torch.Tensor:
    ids = torch.tensor([[*checkpoint.tokenizer.prompt("In Peru"), checkpoint.tokenizer.fact]])
    with torch.no_grad():
        return checkpoint.lm.hidden(ids)


@pytest.mark.slow(reason="runs an experiment to its end")
def test_a_change_of_low_rank_is_kept_whole(tmp_path: Path):
    run = changed(tmp_path, rank=3)
    assert as_adapter(run, tmp_path / "small", 3, tmp_path) == pytest.approx(1.0, abs=1e-4)
    whole, small = (load(path, tmp_path, precision="fp32") for path in (run, tmp_path / "small"))
    assert (small.config.kind, small.config.dim) == ("adapter", whole.config.dim)
    torch.testing.assert_close(states(small), states(whole), rtol=1e-4, atol=1e-4)
    assert release_adapter(tmp_path / "small", tmp_path / "released").kind == "adapter"
    assert (tmp_path / "released" / LOSS_FILE).is_file()


def test_a_larger_rank_keeps_more_of_what_training_changed(tmp_path: Path):
    run = changed(tmp_path, rank=None)
    shares = [as_adapter(run, tmp_path / f"small-{rank}", rank, tmp_path) for rank in (1, 8, 32)]
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    assert replace(load(run, tmp_path).config, digests={}).kind == "full"
