"""The question generator reads a document once for all its spans, and writes the same as one by one."""

from __future__ import annotations

from math import prod

import pytest
import torch

from colmlm.model.annotate.annotators import (
    GeneratedQuestion,
    QuestionGenerator,
    QuestionsBeingWritten,
    mark_spans,
    parse_question,
    question_suffix,
    span_number,
)
from colmlm.model.annotate.checkpoint import LoadedAnnotator
from colmlm.model.annotate.spans import SpannedText
from tests.accelerator import Accelerator

TEXT = (
    "The capital of Peru is Lima. Its great lake (Titicaca) is old. In 1911 a man came to the city of Cusco. "
    * 2
)
VALUES = ("Lima", "Titicaca", "1911", "Cusco")
SPANS = [(TEXT.index(v), TEXT.index(v) + len(v)) for v in VALUES]
PASSAGES = [
    SpannedText(TEXT, SPANS, "Peru"),
    SpannedText("No spans.", []),
    SpannedText("It is 1981 now.", [(6, 10)]),
    SpannedText(TEXT[:60], SPANS[:1]),
    SpannedText(
        TEXT * 3, [*SPANS, *((s + 3 * len(TEXT) // 2, e + 3 * len(TEXT) // 2) for s, e in SPANS)], "Peru"
    ),
]


def naive(generator: QuestionGenerator, passage: SpannedText) -> list[GeneratedQuestion | None]:
    """Writes each question by itself; every token by a pass over all earlier ones: no cache, no batch, no mask."""
    tokens, asked = generator.tokenizer, []
    marked = mark_spans(tokens, passage.text, passage.spans, passage.title)
    for i, (start, end) in enumerate(passage.spans):
        value = passage.text[start:end]
        ids = [*marked.lead, *marked.ids[: marked.stops[i]], *question_suffix(tokens, value, span_number(i))]
        asked.append(parse_question(tokens.decode(_written(generator, ids))))
    return asked


def _written(generator: QuestionGenerator, ids: list[int]) -> list[int]:
    """Decodes the tokens of two lines, greedily."""
    new: list[int] = []
    with torch.inference_mode():
        while len(new) < generator.max_new_tokens and generator.tokenizer.decode(new).count("\n") < 2:
            token = int(generator.model(torch.tensor([[*ids, *new]])).logits[0, -1].argmax())
            if token in generator.ends:
                break
            new.append(token)
    return new


def test_every_question_is_what_it_would_be_without_cache_batch_or_sharing(writer: QuestionGenerator):
    short = [p for p in PASSAGES if len(p.text) < 250]
    together = writer.annotate(short)
    assert together == [naive(writer, passage) for passage in short]
    asked = [question for questions in together for question in questions if question]
    assert len(set(asked)) > 3 and len({len(f"{one.question}{one.answer}") for one in asked}) > 3


@pytest.mark.parametrize("batch_tokens", [1, 600, 100_000])
def test_a_shared_prefix_gives_what_a_prefix_for_each_span_gives(
    loaded_writer: LoadedAnnotator, batch_tokens: int
):
    writer = QuestionGenerator(loaded_writer, batch_tokens=batch_tokens)
    shared = writer.annotate(PASSAGES)
    assert shared == writer.annotate(PASSAGES, share_prefix=False)
    assert shared == [writer.questions(p.text, p.spans, p.title) for p in PASSAGES]
    assert [len(questions) for questions in shared] == [len(p.spans) for p in PASSAGES]
    assert all(q is not None for questions in shared for q in questions)


def test_a_question_does_not_depend_on_what_comes_later(writer: QuestionGenerator):
    ahead = TEXT.index(" In 1911")
    later = TEXT[:ahead] + " Something else altogether stands here, with 77 and 88."
    assert writer.questions(TEXT, SPANS, "Peru")[:2] == writer.questions(later, SPANS[:2], "Peru")
    assert writer.questions(TEXT, SPANS, "Peru")[1:2] != writer.questions(TEXT, SPANS, "Chile")[1:2]


def test_a_prefix_is_read_once_however_many_spans_it_has(generator: QuestionGenerator):
    read: list[int] = []
    for share_prefix in (True, False):
        with Accelerator() as watched:
            generator.annotate(PASSAGES[:1], share_prefix=share_prefix)
        read.append(sum(prod(shape) * times for shape, times in watched.read.items()))
    (prefix,) = generator._prefixes(PASSAGES[0], True)
    assert read[1] - read[0] > 1.5 * len(prefix.ids)


def test_rows_are_taken_by_the_next_spans_in_steps_of_few_shapes(loaded_writer: LoadedAnnotator):
    """Many more spans than rows, of documents of all lengths: each gets what it gets alone."""
    generator = QuestionGenerator(loaded_writer, batch_tokens=6000)
    passages = [SpannedText(TEXT * (1 + n % 3), SPANS[: 1 + n % 4], f"Peru {n}") for n in range(24)]
    read = [(n, prefix) for n, one in enumerate(passages) for prefix in generator._prefixes(one, True)]
    with torch.inference_mode():
        writing = QuestionsBeingWritten(generator, generator._suffixes(passages, read))
        rows = list(writing.run(generator._read_prefixes(read)))
    spans = sum(len(one.spans) for one in passages)
    assert spans >= len(rows) > 2 * writing.cache.rows
    assert writing.steps.shapes.total() > 4 * len(writing.steps.shapes)
    assert generator.annotate(passages) == [generator.questions(p.text, p.spans, p.title) for p in passages]


def test_random_bytes_are_no_questions(generator: QuestionGenerator):
    assert generator.annotate(PASSAGES)[0] == [None] * 4


def test_nothing_to_ask_is_no_work(generator: QuestionGenerator):
    assert generator.annotate([]) == []
    assert generator.questions("No spans.", []) == []
