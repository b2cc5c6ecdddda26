"""Adding documents: how long it takes is measured and told, and how far it is while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import format_duration
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.progress import Advance, Telling
from colmlm.kb.service import KnowledgeBase
from colmlm.model.annotate.checks import ReviewedDocument

WHO = {"actor": "tester", "reason": "test"}


class Eight:
    """Annotates nothing, eight documents at a time, and notes before each what progress says.

    It waits until those before it are stored, `piece` at a time.
    """

    def __init__(self, kb: KnowledgeBase, piece: int, reached: list[tuple[int, int | None]]) -> None:
        self.kb, self.piece, self.bytes_done = kb, piece, reached
        self.seen: list[int] = []

    def annotate(self, documents: Iterable[AnnotatedDocument]) -> Iterator[ReviewedDocument]:
        remaining = iter(documents)
        while batch := list(islice(remaining, 8)):
            for document in batch:
                self._wait(len(self.seen) // self.piece * self.piece)
                self.seen.append(self.bytes_done[-1][0])
                yield ReviewedDocument(document)

    def _wait(self, stored: int) -> None:
        deadline = time.monotonic() + 60
        while sum(corpus.documents for corpus in self.kb.corpora.all()) != stored:
            assert time.monotonic() < deadline, f"{stored} documents should be stored"
            time.sleep(0.01)


@pytest.mark.parametrize(("asks", "piece"), [(False, 20), (True, 4)])
def test_progress_is_of_what_is_annotated_and_documents_are_found_while_others_are_annotated(
    home: Path, kb: KnowledgeBase, tmp_path: Path, asks: bool, piece: int
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(24):
        (folder / f"{n:02}.txt").write_text(f"Hall {n}. " * 500)
    told: list[tuple[int, str]] = []
    reached: list[tuple[int, int | None]] = []

    @contextmanager
    def progress(description: str) -> Iterator[Advance]:
        yield lambda done, total: reached.append((done, total))

    annotator = Eight(kb, piece, reached)
    with Runtime.from_environment() as runtime:
        telling = Telling(lambda line: told.append((len(annotator.seen), line)), progress)
        found = find_files([folder])
        adding = Adding(runtime, "halls", found, asks=asks, telling=telling, worth_telling=0)
        adding.ingest(lambda _: annotator, **WHO)
        total = adding.size // 1000
    done = [kilobytes for kilobytes, _ in reached]
    assert done == sorted(done) and done[-1] == total and {of for _, of in reached} == {total}
    assert all(seen <= n * total / 24 for n, seen in enumerate(annotator.seen))
    ((documents, line),) = told
    assert documents == 8 and re.fullmatch(
        r"\d+ KB: about .+ left on this machine, about .+ of them for keys\.", line
    )


def test_how_long_it_takes_is_told_roughly() -> None:
    assert [format_duration(seconds) for seconds in (3, 33, 200, 20_000)] == [
        "about 10 seconds", "about 30 seconds", "about 3 minutes", "about 6 hours"
    ]  # fmt: skip
