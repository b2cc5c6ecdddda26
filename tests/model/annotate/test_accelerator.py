"""On an accelerator: nothing of the host is mixed in, shapes are few, the host waits seldom, results are the same."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colmlm.kb.answers.reading import Passage
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.annotators import QuestionGenerator, SpanAnnotator
from colmlm.model.annotate.checkpoint import LoadedAnnotator
from colmlm.model.annotate.spans import SpannedText
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.scoring import score_tokens
from colmlm.model.evaluate.continuations import WithLookups
from colmlm.model.evaluate.lookups import QueryMaker, prompt_margins
from colmlm.model.evaluate.perplexity import dynamic_tallies, static_tally
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder, mean_rows
from colmlm.model.lm.language_model import FactLM
from colmlm.model.reader.reader import ExtractiveReader
from tests.accelerator import DEVICE, Accelerator, MixedDevices, moved
from tests.kb.corpora import PERU, document, numbered
from tests.model.lookups import by_direction
from tests.tiny_annotators import letter_tokenizer, tiny_reader


def on_device(checkpoint: Checkpoint) -> Checkpoint:
    """Give a copy of the checkpoint on the pretended accelerator."""
    causal = moved(copy.deepcopy(checkpoint.lm.causal))
    return replace(checkpoint, lm=FactLM(causal, compute=torch.float32))


def annotator_on_device(loaded: LoadedAnnotator) -> LoadedAnnotator:
    return replace(loaded, model=moved(copy.deepcopy(loaded.model)), device=DEVICE)


def texts_of_many_lengths(count: int) -> list[AnnotatedDocument]:
    drawn = random.Random(5)
    return [
        document(f"d{n}", "word " * drawn.randint(1, 60), ("Lima", "Which?"), " is it.") for n in range(count)
    ]


def test_what_the_host_made_is_not_mixed_with_what_the_device_has() -> None:
    with Accelerator():
        there = torch.ones(3, device=DEVICE)
        assert (there + there).device == DEVICE and (there * 2).tolist() == [2, 2, 2]
        with pytest.raises(MixedDevices):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="no numpy"):
            there.numpy()
        assert Accelerator.waits == {"tolist": 1}


def test_keys_are_those_of_the_host_in_few_shapes_and_the_host_waits_once(checkpoint: Checkpoint) -> None:
    corpus = [PERU, *numbered(12), *texts_of_many_lengths(300), AnnotatedDocument("none", "No facts.")]
    expected = KeyEncoder(checkpoint).encode_documents(corpus)
    with Accelerator() as device:
        there = on_device(checkpoint)
        encoder = KeyEncoder(there)
        there.lm.inference  # noqa: B018 - it is made before anything is counted
        device.clear()
        found = encoder.encode_documents(corpus)
        assert sum(device.waits.values()) == 1
        shapes = Counter(device.read)
        asked = encoder.encode_questions(["Which?", "What is it?"] * 9), encoder.encode_contexts(["It is "])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    plain = KeyEncoder(checkpoint)
    np.testing.assert_allclose(asked[0], plain.encode_questions(["Which?", "What is it?"] * 9), atol=1e-5)
    np.testing.assert_allclose(asked[1], plain.encode_contexts(["It is "]), atol=1e-5)
    assert len(shapes) <= 24 and shapes.total() <= 24, shapes


def test_questions_are_those_of_the_host(loaded_writer: LoadedAnnotator) -> None:
    text = "The capital of Peru is Lima. Its great lake (Titicaca) is old. In 1911 a man came to Cusco. " * 2
    values = ("Lima", "Titicaca", "1911", "Cusco")
    spans = [(text.index(value), text.index(value) + len(value)) for value in values]
    passages = [
        SpannedText(text[: 60 + 9 * n], [one for one in spans if one[1] < 50 + 9 * n], "Peru")
        for n in range(12)
    ]
    expected = QuestionGenerator(loaded_writer).annotate(passages)
    with Accelerator():
        found = QuestionGenerator(annotator_on_device(loaded_writer)).annotate(passages)
    assert found == expected and sum(map(len, found)) > 30


def test_spans_are_those_of_the_host(annotator: SpanAnnotator) -> None:
    texts = ["The capital of Peru is Lima. " * n for n in (1, 2, 5, 9)]
    loaded = LoadedAnnotator(annotator.config, annotator.model, Path(), annotator.device)
    expected = annotator.tag(texts)
    with Accelerator():
        there = annotator_on_device(loaded)
        ours = copy.copy(annotator)
        ours.model, ours.device = there.model, there.device
        found = ours.tag(texts)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_probs_N3, other.log_probs_N3, atol=1e-5)


def test_readings_are_those_of_the_host(tmp_path: Path) -> None:
    reader = ExtractiveReader.load(tiny_reader(tmp_path))
    windows = [Passage("Peru", "In 1911 the old city was seen. " * n) for n in range(1, 9)]
    asked = [("when was it?", windows), ("who?", []), ("where?", windows[:3])] * 5
    expected = reader.read_all(asked)
    with Accelerator():
        there = copy.copy(reader)
        there.model, there.device = moved(copy.deepcopy(reader.model)), DEVICE
        found = there.read_all(asked)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert [span[:2] for span in one.spans[:3]] == [span[:2] for span in other.spans[:3]]
            assert one.none == pytest.approx(other.none, abs=1e-4)


def test_sentences_are_those_of_the_host() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=letter_tokenizer().get_vocab_size(), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=300,
    )  # fmt: skip
    model, ids = BertModel(config).eval(), [list(range(5, 5 + n)) for n in (3, 40, 17, 2, 60)]
    expected = mean_rows(model, ids, 0)
    with Accelerator():
        found = mean_rows(moved(copy.deepcopy(model)), ids, 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["auto", "forced", "off"])
def test_outputs_are_those_of_the_host(eager: Checkpoint, mode: str, temperature: float) -> None:
    prompts = ["The capital", "", "Question: Who was it, after all?\nAnswer:", "é🏔️ x", "of " * 40]
    config = DecodeConfig(
        max_tokens=24, mode=mode, temperature=temperature, top_p=0.95, stop=("\n",), min_tokens=3
    )
    expected = Decoder(eager, by_direction()).generate(prompts, config)
    with Accelerator():
        found = Decoder(on_device(eager), by_direction()).generate(prompts, config)
    assert found == expected


def test_what_is_measured_on_texts_is_what_the_host_measures(eager: Checkpoint) -> None:
    ids = eager.tokenizer.prompt("The capital of Peru is Lima.")

    def measured(checkpoint: Checkpoint) -> list[Any]:
        scored = score_tokens(checkpoint, [ids, ids[:9]], top=2)
        tallies = [
            static_tally(checkpoint, PERU),
            *dynamic_tallies(checkpoint, PERU, [lambda query: "Lima"] * 2),
        ]
        likelihood = WithLookups(checkpoint, by_direction())([(ids[1:9], ids[9:])])
        query = QueryMaker(checkpoint).make_query(QueryMaker(checkpoint).sites(PERU)[0])
        return [
            [[one.logprob for one in row] for row in scored],
            [tally.loss for tally in tallies],
            [one.logprob for one in likelihood],
            prompt_margins(checkpoint, ["The capital"]).tolist(),
            query.vector.tolist(),
        ]

    expected = measured(eager)
    with Accelerator():
        found = measured(on_device(eager))
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
