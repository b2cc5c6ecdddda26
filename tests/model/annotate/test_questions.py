"""The question generator reads a document once for all its spans, and writes the same as one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from colmlm.model.annotate.prompts import GeneratedQuestion, mark, number, suffix
from colmlm.model.annotate.questions import Passage, QuestionGenerator

TEXT = (
    "The capital of Peru is Lima. Its great lake (Titicaca) is old. In 1911 a man came to the city of Cusco. "
    * 2
)
VALUES = ("Lima", "Titicaca", "1911", "Cusco")
SPANS = [(TEXT.index(v), TEXT.index(v) + len(v)) for v in VALUES]
PASSAGES = [
    Passage(TEXT, SPANS, "Peru"),
    Passage("No spans.", []),
    Passage("It is 1981 now.", [(6, 10)]),
    Passage(TEXT[:60], SPANS[:1]),
    Passage(
        TEXT * 3, [*SPANS, *((s + 3 * len(TEXT) // 2, e + 3 * len(TEXT) // 2) for s, e in SPANS)], "Peru"
    ),
]


@pytest.fixture
def bytes_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the written bytes as they are, since random weights do not write two lines."""
    monkeypatch.setattr(
        "colmlm.model.annotate.questions.parse", lambda written: GeneratedQuestion(written, "?")
    )
    monkeypatch.setattr(
        QuestionGenerator, "_take", lambda self, row, token: _count(row, token, self.max_new_tokens)
    )


def _count(row, token: int, most: int) -> None:
    """Ends rows at different lengths, so that some leave the batch before others."""
    row.written.append(token % 256 if not row.finished else 0)
    row.finished = row.finished or len(row.written) >= most - row.span % 5
    if row.finished:
        del row.written[most - row.span % 5 :]


def naive(
    generator: QuestionGenerator, text: str, spans: list[tuple[int, int]], title: str | None
) -> list[str]:
    """Writes each question by itself; every token by a pass over all earlier ones: no cache, no batch, no mask."""
    tokens, written = generator.tokenizer, []
    marked = mark(tokens, text, spans, title)
    for i, (start, end) in enumerate(spans):
        ids = [*marked.lead, *marked.ids[: marked.stops[i]], *suffix(tokens, text[start:end], number(i))]
        new: list[int] = []
        with torch.inference_mode():
            while len(new) < generator.max_new_tokens - i % 5:
                logits = generator.model(torch.tensor([[*ids, *new]])).logits
                new.append(int(logits[0, -1].argmax()) % 256)
        written.append(tokens.decode(new))
    return written


def texts_of(questions: list[GeneratedQuestion | None]) -> list[str]:
    return [q.question if q else "" for q in questions]


def test_every_question_is_what_it_would_be_without_cache_batch_or_sharing(
    generator: QuestionGenerator, bytes_written: None
):
    short = [p for p in PASSAGES if len(p.text) < 250]
    together = generator.annotate(short)
    for passage, questions in zip(short, together, strict=True):
        assert texts_of(questions) == naive(generator, passage.text, list(passage.spans), passage.title)
    assert len({q for questions in together for q in texts_of(questions)}) > 3


@pytest.mark.parametrize("batch_tokens", [1, 600, 100_000])
def test_a_shared_prefix_gives_what_a_prefix_for_each_span_gives(
    generator: QuestionGenerator, bytes_written: None, monkeypatch: pytest.MonkeyPatch, batch_tokens: int
):
    monkeypatch.setattr(generator, "batch_tokens", batch_tokens)
    shared = generator.annotate(PASSAGES)
    assert shared == generator.annotate(PASSAGES, share_prefix=False)
    assert shared == [generator.questions(p.text, p.spans, p.title) for p in PASSAGES]
    assert [len(questions) for questions in shared] == [len(p.spans) for p in PASSAGES]
    assert all(q is not None for questions in shared for q in questions)


def test_a_question_does_not_depend_on_what_comes_later(generator: QuestionGenerator, bytes_written: None):
    ahead = TEXT.index(" In 1911")
    later = TEXT[:ahead] + " Something else altogether stands here, with 77 and 88."
    assert generator.questions(TEXT, SPANS, "Peru")[:2] == generator.questions(later, SPANS[:2], "Peru")
    assert generator.questions(TEXT, SPANS, "Peru")[1:2] != generator.questions(TEXT, SPANS, "Chile")[1:2]


def test_a_prefix_is_read_once_however_many_spans_it_has(
    generator: QuestionGenerator, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    inner: Callable = generator.model.model.forward

    def counting(*, input_ids: torch.Tensor, **rest: object) -> object:
        read.append(input_ids.numel())
        return inner(input_ids=input_ids, **rest)

    monkeypatch.setattr(generator.model.model, "forward", counting)
    generator.annotate(PASSAGES[:1])
    shared = read.copy()
    read.clear()
    generator.annotate(PASSAGES[:1], share_prefix=False)
    assert read[0] > 3 * shared[0]


def test_random_bytes_are_no_questions(generator: QuestionGenerator):
    assert generator.annotate(PASSAGES)[0] == [None] * 4


def test_nothing_to_ask_is_no_work(generator: QuestionGenerator):
    assert generator.annotate([]) == []
    assert generator.questions("No spans.", []) == []
