"""The released reader, on sentences that it has never seen."""

from __future__ import annotations

import pytest

from colmlm.kb.answers.reading import Passage
from colmlm.model.annotate.checkpoint import RELEASED_READER
from colmlm.model.lm.config import DIFFERENCE, MAX_BYTES
from colmlm.model.reader.reader import ExtractiveReader

BRIDGE = Passage(
    "Marlow Bridge",
    "The bridge over the Arn was built in 1847 by the engineer Clara Voss. It is 312 metres long and has two tracks.",
)
LEAVE = Passage(
    "Staff handbook",
    "Requests for leave are sent to the head of the department. Every employee has 28 days of leave a year.",
)
CELLS = Passage(
    "Brine batteries",
    "The cells fail below minus ten degrees because the brine freezes. They are charged overnight.",
)


@pytest.fixture(scope="module")
def reader() -> ExtractiveReader:
    return ExtractiveReader.load(RELEASED_READER)


@pytest.mark.parametrize(
    ("question", "passage", "answer"),
    [
        ("When was the bridge built?", BRIDGE, "1847"),
        ("Who built the bridge over the Arn?", BRIDGE, "Clara Voss"),
        ("HOW LONG IS MARLOW BRIDGE", BRIDGE, "312 metres"),
        ("How many days of leave does an employee have?", LEAVE, "28"),
        ("Who are requests for leave sent to?", LEAVE, "head of the department"),
        ("Why do the cells fail below minus ten degrees?", CELLS, "brine freezes"),
        ("engineer bridge Arn", BRIDGE, "Clara Voss"),
        ("The bridge over the Arn was built in", BRIDGE, "1847"),
    ],
)
def test_the_answer_is_found_where_it_stands_and_refused_elsewhere(
    reader: ExtractiveReader, question: str, passage: Passage, answer: str
) -> None:
    others = [other for other in (BRIDGE, LEAVE, CELLS) if other != passage]
    held, *empty = reader.read(question, [passage, *others])
    start, end, _ = held.spans[0]
    assert answer in passage.text[start:end] and end - start <= len(answer) + 20
    assert held.margin > max(one.margin for one in empty) and max(one.margin for one in empty) < 0


def test_the_release_is_small() -> None:
    assert (RELEASED_READER / DIFFERENCE).stat().st_size <= MAX_BYTES
