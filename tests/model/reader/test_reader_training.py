"""A reader learns on a tiny base, resumes without any difference, and its release reads the same."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from colmlm.kb.answers.reading import Passage
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.checkpoint import release_annotator
from colmlm.model.annotate.config import ReaderConfig, reader_minilm
from colmlm.model.lm.checkpoint import ADAPTER
from colmlm.model.lm.config import DIFFERENCE, CheckpointError
from colmlm.model.reader.reader import ExtractiveReader, join_sequence, reader_batch, reader_logits
from colmlm.model.reader.training import (
    ReaderExamples,
    ReaderQuestion,
    ReaderTask,
    measure_reader,
    train_with_curve,
)
from colmlm.model.training.config import TrainingRefused
from tests.tiny import bare_tokenizer, tiny_llama
from tests.tiny_annotators import tiny_encoder

YEARS = (1911, 1981, 1066, 1492, 1789, 1815, 1865, 1918)
DOCUMENTS = [
    AnnotatedDocument(str(year), f"a man in {year} saw {year % 7} men. He left. It was so.", title="a man")
    for year in YEARS
]
ASKED = [ReaderQuestion(number, "when?", (9, 13)) for number in range(len(YEARS))]
KINDS = {"adapter": 8, "full": None}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"))


def drawn(config: ReaderConfig) -> ReaderExamples:
    return ReaderExamples(DOCUMENTS, ASKED, config)


def task(encoder: Path, start: Path | None = None, **changes: object) -> ReaderTask:
    small = replace(
        reader_minilm(), base=str(encoder), batch=4, max_length=64, rounds=4, learning_rate=1e-2, lora_rank=8,
        lora_alpha=16, keywords=0.0, statements=0.0, neighbours=0.99, precision="fp32",
    )  # fmt: skip
    config = replace(small, **changes)
    return ReaderTask(config, drawn(config), Path(), "tiny reader", start)


def losses(metrics: list) -> list[tuple[float, ...]]:
    return [(m.step, m.tokens, m.loss, m.learning_rate) for m in metrics]


@pytest.mark.slow(reason="trains a model several times")
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_reader_finds_the_answer_and_says_where_there_is_none(
    encoder: Path, tmp_path: Path, kind: str
) -> None:
    run = task(encoder, epochs=8, rounds=8, lora_rank=KINDS[kind])
    held_out = list(drawn(run.config).evaluation_examples())
    metrics = list(train_with_curve(run, tmp_path / "run", held_out, every=200))
    assert sum(m.loss for m in metrics[-8:]) / 8 < 0.2 * metrics[0].loss
    with (tmp_path / "run" / "held_out.csv").open(newline="") as lines:
        curve = list(csv.DictReader(lines))
    assert [int(row["examples"]) for row in curve][-1] == 4 * len(metrics) and len(curve) >= 2
    assert float(curve[-1]["exact"]) >= 0.75 and float(curve[-1]["none_auc"]) == 1.0
    released = release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    assert released.kind == {"adapter": "adapter", "full": "difference"}[kind]
    assert (tmp_path / "released" / "held_out.csv").is_file()
    ours, theirs = (ExtractiveReader.load(tmp_path / name) for name in ("run", "released"))
    assert measure_reader(theirs, held_out).answered == measure_reader(ours, held_out).answered
    unseen = Passage("a man", "a man in 1337 saw 4 men. He left.")
    for one, other in zip(ours.read("when?", [unseen]), theirs.read("when?", [unseen]), strict=True):
        assert one.spans[0][:2] == other.spans[0][:2] and unseen.text[slice(*one.spans[0][:2])] == "1337"
        assert one.margin == pytest.approx(other.margin, abs=0.1)


@pytest.mark.slow(reason="trains a model several times")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_to_the_bit(encoder: Path, tmp_path: Path, kind: str) -> None:
    short = {"lora_rank": KINDS[kind], "rounds": 2}
    held_out = list(drawn(reader_minilm()).evaluation_examples())
    whole = list(task(encoder, **short).run(tmp_path / "whole"))
    measured = list(train_with_curve(task(encoder, **short), tmp_path / "measured", held_out, every=8))
    assert losses(measured) == losses(whole), "measuring changes nothing"
    before = list(islice(task(encoder, **short).run(tmp_path / "cut", save_seconds=0.0), 3))[:2]
    torch.rand(5)  # another process has another random state
    after = list(task(encoder, **short).run(tmp_path / "cut"))
    assert losses(before + after) == losses(whole)


def test_what_is_frozen_stays_as_it_is_in_the_base(encoder: Path, tmp_path: Path) -> None:
    list(task(encoder, lora_rank=None).run(tmp_path))
    base, tuned = load_file(encoder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    same = {
        name
        for name, weights in base.items()
        if f"bert.{name}" in tuned and torch.equal(weights, tuned[f"bert.{name}"])
    }
    assert same == {name for name in base if name.startswith("embeddings.")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_the_weights_of_another(encoder: Path, tmp_path: Path, kind: str) -> None:
    rank = KINDS[kind]
    first = list(task(encoder, lora_rank=rank, epochs=8).run(tmp_path / "first"))
    second = list(
        islice(
            task(encoder, tmp_path / "first", lora_rank=rank).run(tmp_path / "second", save_seconds=0.0), 3
        )
    )
    assert second[0].loss < 0.5 * first[0].loss
    with pytest.raises(TrainingRefused, match="another start"):
        next(task(encoder, lora_rank=rank).run(tmp_path / "second"))
    with pytest.raises(CheckpointError, match=f"pass --set lora_rank={rank or 'none'}"):
        task(encoder, tmp_path / "first", lora_rank=None if rank else 8)


def test_a_damaged_or_foreign_difference_is_refused(encoder: Path, tmp_path: Path) -> None:
    list(islice(task(encoder, lora_rank=None).run(tmp_path / "run", save_seconds=0.0), 2))
    release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    weights = tmp_path / "released" / DIFFERENCE
    assert weights.stat().st_size < 0.5 * (tmp_path / "run" / "model.safetensors").stat().st_size
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="not the file that was written"):
        ExtractiveReader.load(tmp_path / "released")


def test_an_adapter_is_released_as_one(encoder: Path, tmp_path: Path) -> None:
    list(islice(task(encoder).run(tmp_path / "run", save_seconds=0.0), 2))
    release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    assert (tmp_path / "released" / ADAPTER).is_file() and not (tmp_path / "released" / DIFFERENCE).exists()


# A decoder as the base.


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    tokenizer = bare_tokenizer()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tiny_llama(tokenizer.get_vocab_size(), spread=0.2).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_a_decoder_is_trained_released_and_read_with_as_a_reader(decoder: Path, tmp_path: Path) -> None:
    run = task(decoder, epochs=12)
    metrics = list(run.run(tmp_path / "run"))
    assert sum(m.loss for m in metrics[-8:]) / 8 < 0.5 * metrics[0].loss
    release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    ours, theirs = (ExtractiveReader.load(tmp_path / name) for name in ("run", "released"))
    passages = [Passage("a man", "a man in 1337 saw 4 men. He left."), Passage("", "It was so.")]
    for one, other in zip(ours.read("when?", passages), theirs.read("when?", passages), strict=True):
        assert one.margin == pytest.approx(other.margin, abs=0.1)
    (alone,) = ours.read("when?", passages[1:])  # and not beside a longer one
    assert alone.margin == pytest.approx(ours.read("when?", passages)[1].margin, abs=1e-3)


def test_a_decoder_sees_what_follows_a_word_as_a_reader(decoder: Path) -> None:
    run = task(decoder)
    with run.reader() as reader:
        texts = [join_sequence(reader.tokenizer, *map(reader.tokenizer.encode, ("when?", "")), ids) for ids in
                 (reader.tokenizer.encode(text).ids for text in ("in 1911 men left", "in 1911 men stay"))]  # fmt: skip
        with torch.inference_mode():
            logits = reader_logits(reader.model, reader_batch(texts, reader.tokenizer.pad), reader.device)
    first = texts[0].text
    assert texts[0].ids[: first + 12] == texts[1].ids[: first + 12]
    assert not torch.equal(logits[0, first : first + 12], logits[1, first : first + 12])
