"""Questions of several threads, encoded together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest

from colmlm.cli.composition.encoders import MOST_GATHERED, GatheringEncoder
from tests.fakes import FakeEncoder, Vectors


@dataclass
class Held(FakeEncoder):
    """Encodes as the fake does, but holds its first call up until it is let go, and refuses the word "bad"."""

    asked: list[list[str]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        self.asked.append(list(questions))
        self.begun.set()
        assert self.let_go.wait(30)
        if "bad" in questions:
            raise ValueError("bad")
        return super().encode_questions(questions)


def _ask(questions: Sequence[Sequence[str]]) -> tuple[Held, list[Vectors | BaseException]]:
    """Asks the first by itself and the others, in their order, while that is under way."""
    held = Held()
    together = GatheringEncoder(held)
    with ThreadPoolExecutor(len(questions)) as threads:
        futures = [threads.submit(together.encode_questions, questions[0])]
        assert held.begun.wait(30)
        for n, asked in enumerate(questions[1:], 1):
            futures.append(threads.submit(together.encode_questions, asked))
            while len(together._waiting) < n:
                pass
        held.let_go.set()
    return held, [future.exception() or future.result() for future in futures]


def test_what_is_asked_while_a_call_is_under_way_is_the_next_call():
    questions = [["a"], ["b", "c"], ["d"], []]
    held, rows = _ask(questions)
    assert held.asked == [["a"], ["b", "c", "d"]]
    for asked, found in zip(questions, rows, strict=True):
        np.testing.assert_array_equal(found, FakeEncoder().encode_questions(asked))


def test_a_question_that_is_refused_spoils_no_other():
    _, (first, good, bad) = _ask([["a"], ["b"], ["bad"]])
    np.testing.assert_array_equal(good, FakeEncoder().encode_questions(["b"]))
    assert isinstance(bad, ValueError) and not isinstance(first, Exception)


def test_a_call_has_a_bounded_number_of_questions_of_several_threads():
    held, rows = _ask([["a"], ["b"] * (MOST_GATHERED - 1), ["c", "d"], ["e"] * (MOST_GATHERED + 1)])
    assert [len(asked) for asked in held.asked] == [1, MOST_GATHERED - 1, 2, MOST_GATHERED + 1]
    assert [len(found) for found in rows] == [1, MOST_GATHERED - 1, 2, MOST_GATHERED + 1]


def test_a_thread_that_asks_alone_gets_what_the_encoder_raises():
    held = Held()
    held.let_go.set()
    with pytest.raises(ValueError, match="bad"):
        GatheringEncoder(held).encode_questions(["bad"])
