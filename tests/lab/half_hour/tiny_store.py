"""A store as parcels make it, around a tiny base: every step runs in it in seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.half_hour.places import (
    ADAPTER,
    DEV,
    GENERATOR,
    HELD,
    MARKED,
    RELEASED,
    SQUAD,
    STANDARD,
    Place,
    written,
)
from colmlm.model.annotate.checkpoint import release_annotator as release_annotator
from colmlm.model.annotate.config import smollm2_135m
from colmlm.model.annotate.training import QuestionTask
from colmlm.model.lm.base_models import DIGESTS, WEIGHTS, WHEEL_BASE
from colmlm.model.lm.config import file_digest
from colmlm.model.training import presets
from colmlm.model.training.state import release_adapter
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import document
from tests.tiny import tiny_base
from tests.tiny_annotators import tiny_reader


def tiny_store(root: Path) -> Place:
    """Makes the store with texts, the base, and what was released before; the reader is there already."""
    place = Place(root, "tiny")
    _base(place.cache)
    texts = [_text(n) for n in range(16)]
    (root / "data").mkdir()
    for name, some in ((MARKED, texts[:10]), (DEV, texts[10:13]), (HELD, texts[13:])):
        written(some, root / "data" / name)
    (root / "data" / SQUAD).write_text("".join(json.dumps(_paragraph(text)) + "\n" for text in texts[:10]))
    for name, method in ((ADAPTER, "co-lmlm"), (STANDARD, "standard")):
        config = presets.as_method(
            replace(presets.small(), steps=1, batch_documents=4, precision="fp32"), method
        )
        list(Trainer(config, texts, root / "made" / name, place.cache, name).run())
        release_adapter(root / "made" / name, root / RELEASED / name)
    config = replace(smollm2_135m(), epochs=0.1)
    made = root / "made" / GENERATOR
    list(QuestionTask(config, texts, place.cache, GENERATOR).run(made))
    release_annotator(made, root / RELEASED / GENERATOR, place.cache)
    tiny_reader(place.run("released/reader"))
    return place


def _base(cache: Path) -> None:
    target = tiny_base(cache / WHEEL_BASE)
    files = ("config.json", "tokenizer.json", WEIGHTS)
    (target / DIGESTS).write_text(json.dumps({name: file_digest(target / name) for name in files}))


def _text(n: int) -> AnnotatedDocument:
    value = (f"value {n}", f"What does one know of thing {n}?")
    return replace(
        document(f"d{n}", "Of it one knows ", value, " since ", (f"18{10 + n}", None), "."), title=f"T{n}"
    )


def _paragraph(text: AnnotatedDocument) -> dict[str, object]:
    asked = [
        {"question": fact.question, "answer": fact.value, "answer_start": fact.start}
        for fact in text.facts
        if fact.question
    ]
    return {"title": text.title, "context": text.text, "qas": asked}
