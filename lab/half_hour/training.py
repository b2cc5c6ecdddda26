"""The steps that train: the reader, the question generator, Co-LMLM, and both models from random weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from colmlm.cli.annotation.asked import drawn, some, split
from colmlm.cli.training.show import shown
from colmlm.lab.half_hour.lowrank import as_adapter
from colmlm.lab.half_hour.places import GENERATOR, Place
from colmlm.lab.half_hour.runs import (
    CO_LMLM,
    QUESTIONS,
    READER,
    SAVE_SECONDS,
    SCRATCH,
    SMALL,
    co_lmlm,
    scratch,
)
from colmlm.lab.half_hour.texts import asked
from colmlm.model.annotate.checkpoint import release as release_annotator
from colmlm.model.annotate.presets import smollm2_135m
from colmlm.model.annotate.tasks import QuestionTask
from colmlm.model.reader.config import minilm
from colmlm.model.reader.curve import trained
from colmlm.model.reader.training import ReaderTask
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.release import release
from colmlm.model.training.shards import open_shards
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
        for metrics in trained(task, place.run(READER), curve, _CURVE):
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
    release(small, target)
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
