"""Losses of answers equal a plain reference that reads every prefix anew."""

from __future__ import annotations

import math

import pytest
import torch

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.evaluate.perplexity import Find, Masking, NearestValue, answer_losses, losses_of_answers
from colmlm.model.lm.checkpoint import Checkpoint, load
from tests.model.lookups import by_direction
from tests.tiny import tiny_checkpoint

QUESTION = "Who rules Peru?"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tiny_checkpoint(tmp_path_factory.mktemp("answers"))
    return load(path, path, precision="fp32")


def answer(text: str, *values: str) -> AnnotatedDocument:
    spans = tuple(FactSpan(text.index(v), text.index(v) + len(v), v, None, v) for v in values)
    return AnnotatedDocument("answer", text, spans)


def reference(
    checkpoint: Checkpoint, *said: tuple[str, bool], banned_at: int | None = None, always: bool = False
) -> float:
    """Sums the loss of the stretches that count and of the end of the text; tags are written by name."""
    tokenizer = checkpoint.tokenizer
    tags = {"<FACT>": tokenizer.fact, "</FACT>": tokenizer.fact_end, "end": tokenizer.end_of_text}
    before = [tokenizer.end_of_text, *tokenizer.encode(f"Question: {QUESTION}\nAnswer:")]
    total = 0.0
    for number, (text, counts) in enumerate((*said, ("end", True))):
        for place, token in enumerate([tags[text]] if text in tags else tokenizer.encode(text)):
            with torch.no_grad():
                logits_V = checkpoint.lm.causal(torch.tensor([before])).logits[0, -1].double()
            if always or (number == banned_at and place == 0):
                logits_V[tokenizer.added] = -math.inf
            total -= float(torch.log_softmax(logits_V, dim=-1)[token]) if counts else 0.0
            before = [*before, token]
    return total


def finding(value: str | None) -> Find:
    return lambda query: value


def loss_of(
    checkpoint: Checkpoint, answer: AnnotatedDocument, masking: Masking, find: Find | None = None
) -> tuple[float, int]:
    (found,) = answer_losses(checkpoint, QUESTION, [(answer, masking)], find)
    return found


PIZARRO = answer("It is Pizarro, they say.", "Pizarro")


def test_without_lookups_every_token_and_the_end_is_scored(checkpoint: Checkpoint) -> None:
    loss, count = loss_of(checkpoint, PIZARRO, Masking.none)
    expected = reference(checkpoint, (" It is", True), (" Pizarro", True), (", they say.", True), always=True)
    assert loss == pytest.approx(expected, abs=1e-3)
    assert count == len(" It is Pizarro, they say.") + 1


def test_a_fact_that_is_found_costs_nothing(checkpoint: Checkpoint) -> None:
    expected = reference(
        checkpoint,
        (" It is", True),
        ("<FACT>", False),
        (" Pizarro", False),
        ("</FACT>", False),
        (", they say.", True),
    )
    for masking in (Masking.masked, Masking.spoken):
        loss, count = loss_of(checkpoint, PIZARRO, masking, finding("Pizarro"))
        assert loss == pytest.approx(expected, abs=1e-3)
        assert count == len(" It is, they say.") + 1


def test_another_value_stands_in_a_masked_answer_and_must_be_outdone_in_a_spoken_one(
    checkpoint: Checkpoint,
) -> None:
    masked, _ = loss_of(checkpoint, PIZARRO, Masking.masked, finding("Atahualpa"))
    assert masked == pytest.approx(
        reference(
            checkpoint, (" It is", True), ("<FACT>", False), (" Atahualpa", False), ("</FACT>", False),
            (", they say.", True),
        ),
        abs=1e-3,
    )  # fmt: skip
    spoken, count = loss_of(checkpoint, PIZARRO, Masking.spoken, finding("Atahualpa"))
    said = reference(checkpoint, (" It is", True), (" Pizarro", True), (", they say.", True), banned_at=1)
    assert spoken == pytest.approx(said, abs=1e-3)
    assert count == len(" It is Pizarro, they say.") + 1


def test_without_a_match_a_masked_answer_has_its_own_span_and_a_spoken_one_says_it(
    checkpoint: Checkpoint,
) -> None:
    found, missed = (
        loss_of(checkpoint, PIZARRO, Masking.masked, finding(value)) for value in ("Pizarro", None)
    )
    assert found == missed
    spoken = [loss_of(checkpoint, PIZARRO, Masking.spoken, finding(v)) for v in ("Atahualpa", None)]
    assert spoken[0] == spoken[1]


def test_an_answer_may_be_nothing_but_a_fact(checkpoint: Checkpoint) -> None:
    loss, count = loss_of(checkpoint, answer("Pizarro", "Pizarro"), Masking.spoken, finding("Pizarro"))
    expected = reference(checkpoint, ("<FACT>", False), (" Pizarro", False), ("</FACT>", False))
    assert (loss, count) == (pytest.approx(expected, abs=1e-3), 1)


def test_answers_that_share_a_question_cost_what_each_does_alone(checkpoint: Checkpoint) -> None:
    answers = [
        PIZARRO,
        answer("No one."),
        answer("They say that it was Atahualpa once.", "Atahualpa"),
        PIZARRO,
    ]
    asked = [(one, masking) for masking in Masking for one in answers]
    for find in (finding("Pizarro"), finding(None), None):
        alone = [loss_of(checkpoint, *one, find) for one in asked]
        together = answer_losses(checkpoint, QUESTION, asked, find)
        assert [count for _, count in together] == [count for _, count in alone]
        assert [loss for loss, _ in together] == pytest.approx([loss for loss, _ in alone], abs=1e-4)


def test_answers_of_several_questions_cost_what_those_of_each_do(checkpoint: Checkpoint) -> None:
    """Their lookups, made by one call, find what each would find alone."""
    asked = [
        (QUESTION, [(PIZARRO, Masking.spoken), (PIZARRO, Masking.masked)]),
        ("Who?", [(answer("They say that it was Atahualpa once.", "Atahualpa"), Masking.masked)]),
        ("Where, and when, was that again?", [(answer("No one."), Masking.spoken)]),
    ]
    lookups = by_direction()
    find = NearestValue(lookups, checkpoint.checkpoint_id, None)
    together = losses_of_answers(checkpoint, asked, find)
    assert lookups.calls[0] == 3
    for (question, answers), found in zip(asked, together, strict=True):
        alone = answer_losses(checkpoint, question, answers, find)
        assert [count for _, count in found] == [count for _, count in alone]
        assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in alone], abs=1e-4)
