"""The released readers, the small one and the large one behind it, on sentences that they have never seen."""

from __future__ import annotations

import pytest

from colmlm.kb.answers.reading import Passage, Reader
from colmlm.model.annotate.checkpoint import LARGE_READER, SMALL_READER
from colmlm.model.lm.checkpoint import ADAPTER, MAX_BYTES
from colmlm.model.lm.config import DIFFERENCE
from colmlm.model.reader.reader import CascadeReader, load_reader

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


@pytest.fixture(scope="module", params=[SMALL_READER, LARGE_READER], ids=["small", "large"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return load_reader(request.param, tmp_path_factory.mktemp("bases"))


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
    reader: Reader, question: str, passage: Passage, answer: str
) -> None:
    others = [other for other in (BRIDGE, LEAVE, CELLS) if other != passage]
    held, *empty = reader.read(question, [passage, *others])
    start, end, _ = held.spans[0]
    assert answer in passage.text[start:end] and end - start <= len(answer) + 20
    assert held.margin > max(one.margin for one in empty) and max(one.margin for one in empty) < 0


def test_the_large_one_reads_the_passages_that_the_small_one_likes(reader: Reader) -> None:
    if isinstance(reader, CascadeReader):
        far = [Passage("", f"Nobody has heard of place {n}.") for n in range(5)]
        read = reader.read("When was the bridge built?", [*far, BRIDGE])  # in the order of a search
        assert sum(bool(one.spans) for one in read) == reader.most and read[5].spans
        assert [one.margin for one in read if not one.spans] == [float("-inf")] * (6 - reader.most)


def test_the_releases_are_small() -> None:
    assert (SMALL_READER / DIFFERENCE).stat().st_size <= MAX_BYTES
    assert (LARGE_READER / ADAPTER).stat().st_size <= MAX_BYTES
