"""The steps that train: the reader, the question generator, Co-LMLM, and both models from random weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor

from colmlm.cli.annotation.reader import drawn, some, split
from colmlm.cli.training.show import shown
from colmlm.lab.half_hour.places import (
    CO_LMLM,
    GENERATOR,
    QUESTIONS,
    READER,
    SAVE_SECONDS,
    SCRATCH,
    SMALL,
    Place,
    asked,
    co_lmlm,
    scratch,
)
from colmlm.model.annotate.checkpoint import release_annotator as release_annotator
from colmlm.model.annotate.config import smollm2_135m
from colmlm.model.annotate.training import QuestionTask
from colmlm.model.lm.base_models import resolve_base
from colmlm.model.lm.checkpoint import tokenizer_at, with_token_rows
from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.language_model import model_at
from colmlm.model.reader.config import minilm
from colmlm.model.reader.measure import train_with_curve
from colmlm.model.reader.training import ReaderTask
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.logs import LOSS_FILE
from colmlm.model.training.shards import open_shards
from colmlm.model.training.start import lora_config
from colmlm.model.training.state import release_adapter
from colmlm.model.training.trainer import Trainer

_HELD_OUT = 0.05  # of the titles that the reader learns from
_CURVE = 10_000  # examples between two measurements of the reader


def train_reader(place: Place) -> Path:
    """Trains the reader on what people asked; gives its release."""
    sizes = place.sizes
    learnt, kept_back = split(asked(place.squad), _HELD_OUT)
    config = replace(minilm(), rounds=sizes.reader_rounds, batch=64, learning_rate=4e-4, epochs=2)
    examples = drawn([place.squad], learnt, config)
    if sizes.reader_steps is not None:
        config = replace(config, epochs=sizes.reader_steps * config.batch / len(examples.asked))
    config = replace(config, max_seconds=sizes.reader_minutes * 60)
    task = ReaderTask(config, examples, place.cache, READER)
    curve = list(drawn([place.squad], kept_back, config).plain()) if kept_back else []
    curve = some(curve)[: 20 if sizes.reader_steps else None]
    with shown() as show:
        for metrics in train_with_curve(task, place.run(READER), curve, _CURVE):
            show(metrics, task.num_steps)
    return _released(place, READER)


def train_generator(place: Place) -> Path:
    """Trains the released question generator further on what people asked; gives its release."""
    sizes, documents = place.sizes, asked(place.squad)[: place.sizes.documents]
    config = replace(
        smollm2_135m(), batch=32, learning_rate=3e-4, max_seconds=sizes.generator_minutes * 60, epochs=2
    )
    if sizes.generator_steps is not None:
        batch = min(4, sizes.batch)
        config = replace(config, batch=batch, epochs=sizes.generator_steps * batch / len(documents))
    task = QuestionTask(config, documents, place.cache, QUESTIONS, place.before(GENERATOR))
    with shown() as show:
        for metrics in task.run(place.run(QUESTIONS), save_seconds=SAVE_SECONDS):
            show(metrics, task.num_steps)
    return _released(place, QUESTIONS)


def train_co_lmlm(place: Place) -> Path:
    """Trains Co-LMLM; gives the release of the adapter of low rank that comes nearest to it."""
    _train(place, CO_LMLM, co_lmlm(place.sizes))
    whole, small, target = place.run(CO_LMLM), place.run(SMALL), place.run(f"released/{CO_LMLM}")
    kept = as_adapter(whole, small, place.sizes.rank, place.cache)
    shutil.rmtree(target, ignore_errors=True)
    release_adapter(small, target)
    (target / "kept.txt").write_text(f"{kept:.4f} of the squared change of all weights\n")
    return target


def train_scratch(place: Place) -> None:
    """Trains Co-LMLM from random weights for its time, and Standard for as many steps of the same documents."""
    ours, theirs = (scratch(place.sizes, preset) for preset in SCRATCH)
    trainer = _train(place, SCRATCH[0], ours)
    theirs = replace(theirs, batch_documents=trainer.config.batch_documents, block=trainer.config.block)
    _train(place, SCRATCH[1], replace(theirs, steps=trainer.progress.step, max_seconds=None))


def _train(place: Place, name: str, config: TrainConfig) -> Trainer:
    folders = place.shards(config.method)
    trainer = Trainer(
        config,
        lambda tokenizer: [open_shards(folder, tokenizer, config) for folder in folders],
        place.run(name),
        place.cache,
        name,
    )
    with shown() as show:
        for metrics in trainer.run():
            show(metrics, config.steps)
    return trainer


def _released(place: Place, name: str) -> Path:
    target = place.run(f"released/{name}")
    shutil.rmtree(target, ignore_errors=True)
    release_annotator(place.run(name), target, place.cache)
    return target


# Brings a model whose weights were all trained into the size of a release, as an adapter over its base.
#
# The change of each matrix of the layers is replaced by one of low rank that is as near as can be found by
# multiplying with it (a randomised singular value decomposition: a full one of all matrices would take
# minutes). The rows of the added tokens are kept; the change of the other rows and of the norms is lost.

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
