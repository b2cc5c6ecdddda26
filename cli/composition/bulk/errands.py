"""The work that is spread over the workers of Ray: annotate documents, encode questions, and key queues in parts.

This module is the command's side of it; `driver` has the workers, which do it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from colmlm.cli.composition.bulk.spreading import Spreading, spreading_of
from colmlm.cli.composition.encoders import WrappingEncoder
from colmlm.cli.composition.readers import CONFIDENCE
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.records import RekeyPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colmlm.cli.composition.runtime import Runtime
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.model.annotate.checks import ReviewedDocument


class EncodingBy(msgspec.Struct, frozen=True):
    """The settings of the errand `Encoding`: a keyset, its database and the checkpoint of its encoder."""

    database_id: str
    keyset_id: int
    checkpoint_id: str


class ModelAt(msgspec.Struct, frozen=True):
    """The path at which the command has an annotator or a reader, and the digest of its description."""

    path: str
    digest: str


class AnnotatingBy(msgspec.Struct, frozen=True):
    """The models of the errand `Annotating`. Without `questions` it writes none; without `reader` it verifies none."""

    spans: ModelAt
    questions: ModelAt | None
    reader: ModelAt | None
    threshold: float | None
    drop_unquestioned: bool


# Annotators and readers by path and digest, so that a worker elsewhere takes what the command has, or says so.


def locate_model(path: Path) -> ModelAt:
    """Give a model's absolute path and digest. Raises `AnnotatorError` if it is damaged or no annotator."""
    from colmlm.model.annotate.checkpoint import AnnotatorConfig

    AnnotatorConfig.load(path)
    return ModelAt(str(path.absolute()), _digest(path))


def find_model(model: ModelAt, own: Path) -> Path:
    """Find the command's model on this machine: at the same path, else at `own`, the path of this machine's settings.

    Raises `AnnotatorError` if the model that is found has another digest.
    """
    from colmlm.model.annotate.config import AnnotatorError

    path = Path(model.path) if Path(model.path).is_dir() else own
    if _digest(path) != model.digest:
        raise AnnotatorError(
            f"{path} on a machine of Ray's is not what the command has in {model.path}; put the same there"
        )
    return path


def _digest(path: Path) -> str:
    """Give the SHA-256 of a model's description, which has the digests of its weights, and of a reader's confidence."""
    from colmlm.model.annotate.checkpoint import ANNOTATOR_FILE

    files = [path / ANNOTATOR_FILE, path / CONFIDENCE]
    return sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


_ROWS = 250  # of a batch of documents each, which are read and sent at once


class DocumentAnnotator(Protocol):
    """Annotates documents, as `model.annotate.pipeline.Annotator` does."""

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[ReviewedDocument]: ...


@dataclass(frozen=True, slots=True)
class AnnotatorElsewhere:
    """Annotates documents by the workers of Ray, and yields each batch when it is done.

    Batches are the same as in one process, so that each document gets the same facts. `on_wait` is called in every
    second in which no batch is done.
    """

    spreading: Spreading
    by: AnnotatingBy
    on_wait: Callable[[], None] = lambda: None

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[ReviewedDocument]:
        from colmlm.model.annotate.checks import ReviewedDocument

        rows = _rows(iter(documents), skip or (lambda _: False))
        with closing(self.spreading.outcomes("annotate", self.by, rows, at_once=_ROWS)) as outcomes:
            for outcome in outcomes:
                if outcome is None:
                    self.on_wait()
                else:
                    yield from msgspec.convert(outcome, list[ReviewedDocument])


def _rows(
    documents: Iterator[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool]
) -> Iterator[dict[str, Any]]:
    from colmlm.model.annotate.pipeline import BATCH

    while batch := list(islice(documents, BATCH)):
        left_out = [document.external_id for document in batch if skip(document)]
        if len(left_out) < len(batch):
            yield {"documents": [asdict(document) for document in batch], "skip": left_out}


_ROW_QUESTIONS = 128  # of about one length, since those that are encoded together are padded to the longest


class EncoderElsewhere(WrappingEncoder):
    """An encoder whose questions were encoded by the workers of Ray beforehand. It encodes all else itself."""

    def __init__(self, encoder: Encoder, queries: dict[str, NDArray[np.float32]]) -> None:
        super().__init__(encoder, encoder.checkpoint)
        self.queries = queries

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        if all(question in self.queries for question in questions):
            return np.stack([self.queries[question] for question in questions])
        return super().encode_questions(questions)


def with_questions(runtime: Runtime, encoder: Encoder, keyset_id: int, questions: Sequence[str]) -> Encoder:
    """Encode questions on Ray, and give an encoder that has their queries; if no Ray is set, the given one."""
    if not questions or (spreading := spreading_of(runtime)) is None:
        return encoder
    made_by = encoder.checkpoint
    by = EncodingBy(runtime.kb.log.database_id(), keyset_id, made_by.checkpoint_id)
    return EncoderElsewhere(encoder, _encode_questions(spreading, by, made_by.dim, questions))


def _encode_questions(
    spreading: Spreading, by: EncodingBy, dim: int, questions: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    left = iter(sorted(set(questions), key=len, reverse=True))
    rows = list(iter(lambda: list(islice(left, _ROW_QUESTIONS)), []))
    numbered = [{"number": number, "questions": row} for number, row in enumerate(rows)]
    queries: dict[str, NDArray[np.float32]] = {}
    with closing(spreading.outcomes("encode", by, numbered)) as outcomes:
        for outcome in filter(None, outcomes):
            made = np.frombuffer(b64decode(outcome["queries"]), np.float32).reshape(-1, dim)
            queries |= zip(rows[outcome["number"]], made, strict=True)
    return queries


def keying_elsewhere(runtime: Runtime, checkpoint: Path | None = None) -> KeyingElsewhere | None:
    """Give a function that keys parts of a rekey on Ray, with the named `checkpoint` or else the registered one.

    Give None if the settings of the runtime name no Ray.
    """
    spreading = spreading_of(runtime)
    return None if spreading is None else KeyingElsewhere(spreading, checkpoint)


@dataclass(frozen=True, slots=True)
class KeyingElsewhere:
    """A `kb.keys.rekey.Elsewhere`: keys parts of a rekey on Ray, and yields the number of keys stored."""

    spreading: Spreading
    checkpoint: Path | None = None

    def __call__(self, parts: Sequence[RekeyPart]) -> Generator[int, None, None]:
        with closing(self.outcomes(parts)) as outcomes:
            for stored in outcomes:
                yield stored or 0

    def outcomes(self, parts: Sequence[RekeyPart]) -> Generator[int | None, None, None]:
        """Yield the number of keys stored for each part when it is done, and None every second without one."""
        from colmlm.kb.principal import current_origin  # imports the database's library

        named = None if self.checkpoint is None else str(self.checkpoint.absolute())
        given = {"origin": asdict(current_origin()), "checkpoint": named}
        return self.spreading.outcomes("key", given, parts)
