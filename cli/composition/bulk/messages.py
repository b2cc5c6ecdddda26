"""What a command, Ray's driver and its workers say to each other, as JSON lines."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from colmlm.cli.composition.answering import CONFIDENCE

CONNECTED = "connected"  # a driver's first line, once it is in its cluster
STOP_SECONDS = 10.0  # in which a driver ends when its stdin does; then it is killed with all that it started


class Order(msgspec.Struct, frozen=True):
    """Which errand is to be run and what it is given, where (None: on this machine), by how many workers (None: one for
    each GPU, or else core), and in which directory Ray may write.
    """

    errand: str
    given: Any
    address: str | None
    workers: int | None
    directory: str


class RowOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a row: what the errand made of it, or the exit code and the line of its failure."""

    made: Any = None
    exit_code: int = 0
    line: str = ""


class EncodingBy(msgspec.Struct, frozen=True):
    """Whose encoder is to encode: that of a keyset, in this base, of this checkpoint."""

    database_id: str
    keyset_id: int
    checkpoint_id: str


class ModelAt(msgspec.Struct, frozen=True):
    """Where the command has an annotator or a reader, and the digest of its description."""

    path: str
    digest: str


class AnnotatingBy(msgspec.Struct, frozen=True):
    """Who is to annotate: without `questions` nobody asks, and without a `reader` nobody verifies what is asked."""

    spans: ModelAt
    questions: ModelAt | None
    reader: ModelAt | None
    threshold: float | None
    drop_unquestioned: bool


# Annotators and readers by path and digest, so that a worker elsewhere takes what the command has, or says
# so.


def at(path: Path) -> ModelAt:
    """Say where a model is, and what it is. Raises `AnnotatorError` where it is damaged or none."""
    from colmlm.model.annotate.checkpoint import AnnotatorConfig

    AnnotatorConfig.load(path)
    return ModelAt(str(path.absolute()), _digest(path))


def found(model: ModelAt, own: Path) -> Path:
    """Find the command's model on this machine: at the same path, else as `own`, which that of the settings is.

    Raises `AnnotatorError` where another is there.
    """
    from colmlm.model.annotate.config import AnnotatorError

    path = Path(model.path) if Path(model.path).is_dir() else own
    if _digest(path) != model.digest:
        raise AnnotatorError(
            f"{path} on a machine of Ray's is not what the command has in {model.path}; put the same there"
        )
    return path


def _digest(path: Path) -> str:
    """Digest a model's description, which has the digests of its weights, and a reader's confidence."""
    from colmlm.model.annotate.checkpoint import ANNOTATOR_FILE

    files = [path / ANNOTATOR_FILE, path / CONFIDENCE]
    return sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()
