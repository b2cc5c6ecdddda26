"""Annotates documents on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from colmlm.cli.composition.bulk.messages import AnnotatingBy
from colmlm.kb.corpus.format import AnnotatedDocument

if TYPE_CHECKING:
    from colmlm.model.annotate.checks import Reviewed
from colmlm.cli.composition.bulk.spreading import Spreading

_ROWS = 250  # of a batch of documents each, which are read and sent at once


class DocumentAnnotator(Protocol):
    """Annotates documents, as `model.annotate.pipeline.Annotator` does."""

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[Reviewed]: ...


@dataclass(frozen=True, slots=True)
class AnnotatorElsewhere:
    """Annotates documents by the workers of Ray, and gives them as they are done.

    Batches are those of one process, so that each document gets the facts that it would get there. `on_wait` is called
    every second in which none is done.
    """

    spreading: Spreading
    by: AnnotatingBy
    on_wait: Callable[[], None] = lambda: None

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[Reviewed]:
        from colmlm.model.annotate.checks import Reviewed

        rows = _rows(iter(documents), skip or (lambda _: False))
        with closing(self.spreading.outcomes("annotate", self.by, rows, at_once=_ROWS)) as outcomes:
            for outcome in outcomes:
                if outcome is None:
                    self.on_wait()
                else:
                    yield from msgspec.convert(outcome, list[Reviewed])


def _rows(
    documents: Iterator[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool]
) -> Iterator[dict[str, Any]]:
    from colmlm.model.annotate.pipeline import BATCH

    while batch := list(islice(documents, BATCH)):
        left_out = [document.external_id for document in batch if skip(document)]
        if len(left_out) < len(batch):
            yield {"documents": [asdict(document) for document in batch], "skip": left_out}
