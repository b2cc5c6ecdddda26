"""Query timing: the margin is exactly the bias that opens a lookup, and the smallest good bias is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.lookups import (
    BiasCurve,
    BiasPoint,
    MemoryLookup,
    QuestionWithValue,
    balanced_threshold,
    measure_biases,
    num_steps,
    prompt_margins,
    text_margins,
)
from colmlm.model.lm.checkpoint import Checkpoint
from tests.kb.corpora import numbered
from tests.model.lookups import by_direction

DOCUMENTS = numbered(6)
PROMPTS = ["The capital", "", "Question: Who was it, after all, that came?\nAnswer:", "é🏔️ x"]


def begins_with_lookup(checkpoint: Checkpoint, prompt: str, **options: float | str | None) -> bool:
    config = DecodeConfig(max_tokens=1, **options)  # type: ignore[arg-type]
    lookup = by_direction(misses=0)
    Decoder(checkpoint, lookup).generate([prompt], config)
    return len(lookup.calls) > 0


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_margin_is_the_bias_that_opens_a_lookup(eager: Checkpoint, prompt: str):
    (margin,) = prompt_margins(eager, [prompt])
    assert begins_with_lookup(eager, prompt, fact_bias=float(margin) + 1e-3)
    assert not begins_with_lookup(eager, prompt, fact_bias=float(margin) - 1e-3)


def test_the_bias_of_the_checkpoint_holds_in_auto_unless_another_is_given(eager: Checkpoint):
    prompt = PROMPTS[0]
    margin = float(prompt_margins(eager, [prompt])[0])
    willing = replace(eager, config=replace(eager.config, decoding={"fact_bias": margin + 1.0}))
    unwilling = replace(eager, config=replace(eager.config, decoding={"fact_bias": margin - 1.0}))
    assert begins_with_lookup(willing, prompt) and not begins_with_lookup(unwilling, prompt)
    assert not begins_with_lookup(willing, prompt, fact_bias=margin - 1.0)
    assert begins_with_lookup(unwilling, prompt, fact_bias=margin + 1.0)


def test_a_bias_changes_nothing_where_the_model_does_not_decide(eager: Checkpoint):
    willing = replace(eager, config=replace(eager.config, decoding={"fact_bias": 1e3}))
    for mode in ("forced", "off"):
        config = DecodeConfig(max_tokens=12, mode=mode)
        rows = [Decoder(c, by_direction()).generate(PROMPTS, config) for c in (eager, willing)]
        assert rows[0] == rows[1]


def test_every_token_that_the_model_chooses_has_one_margin(eager: Checkpoint):
    margins = text_margins(eager, DOCUMENTS)
    encoded = [eager.tokenizer.document(d, close=False) for d in DOCUMENTS]
    assert len(margins.sites) == sum(len(d.facts) for d in DOCUMENTS) > 0
    chosen = sum(not masked for e in encoded for masked in e.masked[1:])
    assert len(margins.sites) + len(margins.others) == chosen
    assert margins.site_rate(-1e9) == margins.false_per_100(-1e9) == 0
    assert (margins.site_rate(1e9), margins.false_per_100(1e9)) == (1, 100)
    middle = float(np.median(margins.others))
    assert margins.false_per_100(middle) == pytest.approx(50, abs=1)


def test_margins_inside_a_text_are_those_of_its_beginning_as_a_prompt(eager: Checkpoint):
    text = "A plain text, the end of which is not a lookup."
    document = AnnotatedDocument("plain", text)
    inside = text_margins(eager, [document]).others
    alone = prompt_margins(eager, [text[:n] for n in range(len(text))])
    np.testing.assert_allclose(inside, alone, atol=1e-5)


def test_a_lookup_in_memory_gives_the_nearest_fact_or_none():
    lookup = MemoryLookup(np.eye(3, dtype=np.float32), ["a", "b", "c"], 0.5)
    near = np.array([[0.1, 0.9, 0.0], [0.4, 0.3, 0.2]], dtype=np.float32)
    first, second = lookup.find(near, checkpoint_id="x")
    assert [(hit.value, hit.fact_id) for hit in first.hits] == [("b", 2)]
    assert second.hits == () and second.runner_up == pytest.approx(0.4)
    assert lookup.find(near[1:], checkpoint_id="x", threshold=0.3)[0].hits[0].value == "a"


class Angles:
    """Encodes contexts as the vectors that the test gives."""

    def __init__(self, queries: np.ndarray) -> None:
        self.queries = queries

    def encode_contexts(self, texts: list[str]) -> np.ndarray:
        return self.queries[: len(texts)]


def test_the_balanced_threshold_parts_what_is_there_from_what_is_not():
    keys = np.eye(4, dtype=np.float32)
    queries = np.array([[0.9, 0.3, 0, 0], [0.2, 0.8, 0.3, 0], [0.1, 0.2, 0.7, 0.4]], dtype=np.float32)
    asked = [QuestionWithValue("q", value) for value in "abc"]
    threshold = balanced_threshold(Angles(queries), asked, keys, list("abcd"))  # type: ignore[arg-type]
    assert 0.4 < threshold <= 0.7


def point(bias: float, exact_match: float) -> BiasPoint:
    return BiasPoint(
        bias=bias, site_rate=0.5, false_per_100=1.0, answer_rate=0.5, exact_match=exact_match, lookups=1.0
    )


@pytest.mark.parametrize(
    "worth, chosen",
    [
        ({0.0: 0.50, 1.0: 0.60, 2.0: 0.60}, 1.0),
        ({0.0: 0.50, 1.0: 0.59, 2.0: 0.60}, 1.0),
        ({0.0: 0.60, 1.0: 0.61, 2.0: 0.40}, 0.0),
        ({2.0: 0.90, 0.0: 0.10, 1.0: 0.20}, 2.0),
        ({0.0: 0.0, 1.0: 0.0}, 0.0),
    ],
)
def test_the_least_bias_within_an_error_of_the_best_is_chosen(worth: dict[float, float], chosen: float):
    curve = BiasCurve(
        documents=1, sites=1, positions=1, questions=400, threshold=0.5, forced_exact_match=0.6,
        off_exact_match=0.0, points=tuple(point(bias, right) for bias, right in worth.items()),
    )  # fmt: skip
    assert curve.choose().bias == chosen


def test_a_curve_counts_what_decoding_does(eager: Checkpoint):
    done: list[int] = []
    biases = (-50.0, 0.0, 50.0)
    curve = measure_biases(
        eager, DOCUMENTS, questions=5, biases=biases, threshold=-1.0, max_tokens=6, on_done=done.append
    )
    assert sum(done) == num_steps(DOCUMENTS, 5, biases) and curve.questions == 5
    never, _, always = curve.points
    assert (never.lookups, never.answer_rate, never.site_rate) == (0, 0, 0)
    assert (always.answer_rate, always.site_rate, always.false_per_100) == (1, 1, 100)
    assert always.lookups > 1 and never.exact_match == curve.off_exact_match


def test_documents_without_questions_are_refused(eager: Checkpoint):
    with pytest.raises(ValueError, match="no questions to measure with"):
        measure_biases(eager, [AnnotatedDocument("plain", "Nothing here.")], questions=5)
