"""The annotators learn when trained on tiny bases, and an interrupted training resumes without any difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.training_record import RECORD_FILE, find_record
from colmlm.model.annotate.annotators import QuestionGenerator, SpanAnnotator
from colmlm.model.annotate.checkpoint import AnnotatorConfig, release_annotator
from colmlm.model.annotate.config import AnnotatorError, minilm, smollm2_135m
from colmlm.model.annotate.training import (
    LengthBatches,
    QuestionTask,
    SpanTask,
    TrainingDocuments,
    question_loss,
    question_sequences,
    tagged_windows,
)
from colmlm.model.lm.checkpoint import ADAPTER
from colmlm.model.lm.config import CheckpointError, record_in
from colmlm.model.text.tokens import WordTokenizer
from colmlm.model.training.config import TrainingRefused
from colmlm.model.training.task import StepMetrics
from tests.tiny import byte_tokenizer, tiny_base
from tests.tiny_annotators import letter_tokenizer, tiny_encoder

YEARS = (1911, 1981, 1066, 1492, 1789, 1815, 1865, 1918)


def document(year: int) -> AnnotatedDocument:
    """Makes a document whose year is a fact, and whose number of men is not."""
    text = f"a man in {year} saw {year % 7} men. he left."
    span = FactSpan(9, 13, str(year), "when?", f"in {year}")
    return AnnotatedDocument(str(year), text, (span,), title="a man")


DOCUMENTS = [document(year) for year in YEARS]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


def span_task(encoder: Path, documents: Sequence[AnnotatedDocument] = DOCUMENTS, **changes) -> SpanTask:
    small = replace(
        minilm(), base=str(encoder), batch=4, epochs=8, max_length=64, overlap=16, learning_rate=1e-2,
        final_learning_rate=1e-3, lora_dropout=0.0, precision="fp32",
    )  # fmt: skip
    config = replace(small, **changes)
    return SpanTask(config, [TrainingDocuments(documents, dense=False)], Path(), "tiny spans")


def question_task(base: Path, documents: Sequence[AnnotatedDocument] = DOCUMENTS, **changes) -> QuestionTask:
    small = replace(
        smollm2_135m(), base=str(base), batch=4, epochs=8, max_length=160, learning_rate=1e-2,
        final_learning_rate=1e-3, max_new_tokens=40, precision="fp32",
    )  # fmt: skip
    config = replace(small, **changes)
    return QuestionTask(config, documents, Path(), "tiny questions")


TASKS = {"spans": span_task, "questions": question_task}


@pytest.fixture(params=TASKS)
def bases(request: pytest.FixtureRequest, encoder: Path, base: Path):
    """Makes a task of either kind on its tiny base."""
    make, start = TASKS[request.param], {"spans": encoder, "questions": base}[request.param]
    return lambda *documents, **changes: make(start, *documents, **changes)


def losses(metrics: Sequence[StepMetrics]) -> list[tuple[float, ...]]:
    return [(m.step, m.tokens, m.loss, m.learning_rate) for m in metrics]


def test_a_trained_span_annotator_finds_what_was_marked_and_no_more(encoder: Path, tmp_path: Path):
    metrics = list(span_task(encoder, epochs=40).run(tmp_path))
    assert metrics[-1].loss < 0.1 * metrics[0].loss
    annotator = SpanAnnotator.load(tmp_path, precision="fp32")
    unseen = document(1337)
    found = annotator.spans([d.text for d in [*DOCUMENTS, unseen]])
    assert [
        [d.text[s:e] for s, e in spans] for d, spans in zip([*DOCUMENTS, unseen], found, strict=True)
    ] == [[f.value for f in d.facts] for d in [*DOCUMENTS, unseen]]


def test_a_trained_question_generator_writes_question_and_answer(base: Path, tmp_path: Path):
    many = [document(year) for year in range(1000, 1960, 20)]  # a few would not show all the numbers of spans
    task = question_task(base, many, epochs=8, lora_rank=None, learning_rate=5e-3)
    metrics = list(task.run(tmp_path))
    assert metrics[-1].loss < 0.1 * metrics[0].loss
    generator = QuestionGenerator.load(tmp_path, tmp_path, precision="fp32")
    for d in DOCUMENTS:
        (question,) = generator.questions(d.text, [(9, 13)], d.title)
        assert question is not None and question.question == "when?" and question.answer.startswith("in 1")


def test_a_release_carries_the_record_of_the_documents_and_an_altered_one_is_not_released(
    bases, tmp_path: Path
):
    list(islice(bases().run(tmp_path / "run", save_seconds=0.0), 2))
    released = release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    record = record_in(tmp_path / "released", released.digests | {RECORD_FILE: ""})
    assert record is not None and record.count == len(DOCUMENTS)
    assert all(record.has_text(one.text) for one in DOCUMENTS) and not record.has_text(document(1337).text)
    assert find_record(tmp_path / "released").record == record
    record.with_texts([b"another"]).save(tmp_path / "run")
    with pytest.raises(AnnotatorError, match="is not the file that was written"):
        release_annotator(tmp_path / "run", tmp_path / "again", tmp_path)


@pytest.mark.parametrize("done", [3])
def test_a_resumed_run_goes_on_to_the_bit(bases, tmp_path: Path, done: int):
    whole = list(bases().run(tmp_path / "whole"))
    assert len(whole) == 16
    cut = bases()
    before = list(islice(cut.run(tmp_path / "cut", save_seconds=0.0), done + 1))[:done]
    torch.rand(5)  # another process has another random state
    after = list(bases().run(tmp_path / "cut"))
    assert losses(before + after) == losses(whole)
    ours, theirs = (load_file(tmp_path / name / ADAPTER) for name in ("cut", "whole"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_other_data_and_other_settings_are_refused(bases, tmp_path: Path):
    list(islice(bases().run(tmp_path, save_seconds=0.0), 2))
    with pytest.raises(TrainingRefused, match="another data"):
        next(bases(DOCUMENTS[1:]).run(tmp_path))
    with pytest.raises(TrainingRefused, match="another config"):
        next(bases(seed=18).run(tmp_path))


def test_a_run_says_what_it_was_and_its_release_reads_the_same(bases, tmp_path: Path):
    task = bases()
    list(task.run(tmp_path / "run"))
    released = release_annotator(tmp_path / "run", tmp_path / "released", tmp_path)
    record = json.loads((tmp_path / "released" / "annotator.json").read_text())
    assert record["training"]["steps"] == 16 and record["training"]["documents"] == len(DOCUMENTS)
    assert record["training"]["data_sha256"] == task.data_sha256 and record["training"]["epochs"] == 8
    assert (tmp_path / "released" / "loss.csv").is_file() and released.name.startswith("tiny")
    sizes = [(tmp_path / name / ADAPTER).stat().st_size for name in ("released", "run")]
    assert sizes[0] < 0.75 * sizes[1]
    if task.role == "spans":
        ours, theirs = (SpanAnnotator.load(tmp_path / n, precision="fp32") for n in ("released", "run"))
        pairs = zip(ours.tag([DOCUMENTS[0].text]), theirs.tag([DOCUMENTS[0].text]), strict=True)
        assert all(abs(a.log_probs_N3 - b.log_probs_N3).max() < 0.05 for a, b in pairs)
    else:
        QuestionGenerator.load(tmp_path / "released", tmp_path)


def test_an_adapter_over_another_base_is_refused(encoder: Path, tmp_path: Path):
    list(islice(span_task(encoder).run(tmp_path / "run", save_seconds=0.0), 2))
    other = tiny_encoder(tmp_path / "other", seed=4)
    record = json.loads((tmp_path / "run" / "annotator.json").read_text())
    AnnotatorConfig(**record | {"base": str(other)}).save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="trained on another"):
        SpanAnnotator.load(tmp_path / "run")


def test_all_weights_are_trained_where_no_rank_is_given(encoder: Path, tmp_path: Path):
    task = span_task(encoder, lora_rank=None)
    assert all(weights.requires_grad for weights in task.model.parameters())
    assert len(list(islice(task.run(tmp_path, save_seconds=0.0), 2))) == 2
    loaded = SpanAnnotator.load(tmp_path, precision="fp32")
    assert loaded.config.kind == "full" and len(loaded.spans(["a man"])) == 1


def test_the_rate_warms_up_and_falls_along_a_cosine(encoder: Path, tmp_path: Path):
    rates = [m.learning_rate for m in span_task(encoder, warmup=0.25).run(tmp_path)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert rates[4] == pytest.approx(0.01) and rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[10] == pytest.approx((0.01 + 0.001) / 2) and 0.001 < rates[-1] < 0.002


def test_a_word_outside_weighs_less_where_not_every_fact_is_marked():
    tokenizer = WordTokenizer(letter_tokenizer())
    config = replace(minilm(), max_length=64, overlap=16, outside_weight=0.25)
    sparse, dense = tagged_windows(
        tokenizer,
        [TrainingDocuments(DOCUMENTS[:1], dense=False), TrainingDocuments(DOCUMENTS[:1], dense=True)],
        config,
    )
    assert {(t, w) for t, w in zip(sparse.tags, sparse.weights, strict=True)} == {
        (-100, 0.0),
        (0, 0.25),
        (1, 1.0),
    }
    assert {(t, w) for t, w in zip(dense.tags, dense.weights, strict=True)} == {
        (-100, 0.0),
        (0, 1.0),
        (1, 1.0),
    }
    assert sparse.num_words == len(tokenizer.encode(DOCUMENTS[0].text).words)


def test_each_question_is_learnt_as_it_will_be_asked(base: Path):
    """The loss over one sequence per document equals that of every question after its own part of the document."""
    text = "the capital of peru is lima. its lake is titicaca. it is old."
    spans = [FactSpan(text.index(v), text.index(v) + len(v), v, q, v) for v, q in
             (("lima", "which city?"), ("titicaca", "which lake?"), ("old", "how old?"))]  # fmt: skip
    documents = [AnnotatedDocument("a", text, tuple(spans), title="peru"), DOCUMENTS[0]]
    task = question_task(base, documents)
    batch = list(question_sequences(byte_tokenizer(), documents, task.config))
    task.module.eval()
    with torch.no_grad():
        together = float(question_loss(task.module, batch, torch.device("cpu")))
        alone = sum(
            _loss_alone(task, asked, segment)
            for asked in batch
            for segment in range(1, max(asked.segments) + 1)
        )
    assert together == pytest.approx(alone, rel=1e-4)


def _loss_alone(task: QuestionTask, asked, segment: int) -> float:
    """Computes the loss of one question after the prefix that it sees, with plain causal attention."""
    own = [t for t, s in enumerate(asked.segments) if s == segment]
    seen = [t for t, s in enumerate(asked.segments) if s == 0 and t < asked.stops[own[0]]]
    assert [asked.positions[t] for t in [*seen, *own]] == list(range(len(seen) + len(own)))
    ids = torch.tensor([[asked.ids[t] for t in [*seen, *own]]])
    logits = task.model.get_base_model()(ids).logits[0]
    learnt = [len(seen) + i for i, t in enumerate(own) if asked.learnt[t]]
    return float(F.cross_entropy(logits[[t - 1 for t in learnt]], ids[0, learnt], reduction="sum"))


def test_batches_are_the_same_in_every_run_and_waste_little():
    lengths = [(i * 37) % 101 + 1 for i in range(103)]
    batches = LengthBatches(lengths, 4, seed=7)
    assert batches.per_epoch == 25
    first = list(islice(batches.starting_at(0), 60))
    assert list(islice(LengthBatches(lengths, 4, seed=7).starting_at(23), 37)) == first[23:]
    epoch = [i for batch in first[:25] for i in batch]
    assert len(set(epoch)) == 100 and set(first[:25][0]) != set(first[25:50][0])
    padded = sum(4 * max(lengths[i] for i in batch) for batch in first[:25])
    assert padded < 1.15 * sum(lengths[i] for i in epoch)


def test_documents_without_questions_are_no_training(base: Path):
    bare = [replace(d, facts=()) for d in DOCUMENTS]
    with pytest.raises(ValueError, match="no examples to train on"):
        question_task(base, bare)
