"""Brings a model whose weights were all trained into the size of a release, as an adapter over its base.

The change of each matrix of the layers is replaced by one of low rank that is as near as can be found by multiplying
with it (a randomised singular value decomposition: a full one of all matrices would take minutes). The rows of the
added tokens are kept; the change of the other rows and of the norms is lost.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor

from colmlm.model.lm.base_models import resolve_base
from colmlm.model.lm.checkpoint import tokenizer_at, with_token_rows
from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.families import model_at
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.logs import LOSS_FILE
from colmlm.model.training.start import lora_config

_SPARE, _TURNS = 16, 6  # more directions than are kept, and multiplications: the more, the nearer


def as_adapter(run: Path, target: Path, rank: int, cache: Path) -> float:
    """Writes the adapter of this rank that is nearest to the run's weights; gives the share of the change it keeps.

    The share is of the sum of squares over all weights. The base must be one that `resolve_base` finds by its name.
    """
    known = CheckpointConfig.load(run)
    assert known.base is not None
    directory = resolve_base(known.base, cache)
    tokenizer = tokenizer_at(directory, known)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = with_token_rows(model_at(directory, torch.float32), tokenizer).to(device)
    tuned = {name: w.to(device) for name, w in model_at(run, torch.float32).state_dict().items()}
    change = sum(float((tuned[name] - w.detach()).square().sum()) for name, w in base.named_parameters())
    config = TrainConfig.from_record(known.training["config"])
    as_lora = replace(config, adapt="lora", lora_rank=rank, lora_alpha=rank, lora_layers=None)
    peft = get_peft_model(base, lora_config(as_lora, base.config, tokenizer))
    kept = sum(_fit(module, tuned[f"{_plain(name)}.weight"], rank) for name, module in _matrices(peft))
    kept += _put_rows(peft, tuned["model.embed_tokens.weight"], tokenizer.added)
    target.mkdir(parents=True, exist_ok=True)
    peft.save_pretrained(str(target), save_embedding_layers=False)
    shutil.copyfile(run / LOSS_FILE, target / LOSS_FILE)
    replace(known, name=f"{known.name}, rank {rank}", kind="adapter", digests={}).save(target)
    return kept / max(change, 1e-30)


def _matrices(peft: Any) -> list[tuple[str, Any]]:
    return [
        (name, module) for name, module in peft.named_modules() if "default" in getattr(module, "lora_A", {})
    ]


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")


def _fit(module: Any, tuned: Tensor, rank: int) -> float:
    """Sets a module's two factors; gives the sum of squares of the change that they make."""
    with torch.no_grad():
        change = tuned - module.base_layer.weight
        left, values, right = torch.svd_lowrank(change, q=min(rank + _SPARE, *change.shape), niter=_TURNS)
        root = values[:rank].sqrt()
        module.lora_A["default"].weight.copy_(root[:, None] * right[:, :rank].T)
        module.lora_B["default"].weight.copy_(left[:, :rank] * root[None, :])
    return float(values[:rank].square().sum())


def _put_rows(peft: Any, table: Tensor, rows: list[int]) -> float:
    """Sets the rows of the added tokens; gives the sum of squares of their change."""
    change = 0.0
    with torch.no_grad():
        for module in peft.modules():
            if (delta := getattr(module, "trainable_tokens_delta", None)) is not None:
                change += float((table[rows] - delta["default"]).square().sum())
                delta["default"].copy_(table[rows])
    return change
