"""Annotators and readers by path and digest, so that a worker elsewhere takes what the command has, or says so."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from colmlm.cli.bulk.messages import ModelAt
from colmlm.cli.composition.answering import CONFIDENCE


def at(path: Path) -> ModelAt:
    """Says where a model is, and what it is. Raises `AnnotatorError` where it is damaged or none."""
    from colmlm.model.annotate.checkpoint import AnnotatorConfig

    AnnotatorConfig.load(path)
    return ModelAt(str(path.absolute()), _digest(path))


def found(model: ModelAt, own: Path) -> Path:
    """Finds the command's model on this machine: at the same path, else as `own`, which that of the settings is.

    Raises `AnnotatorError` where another is there.
    """
    from colmlm.model.annotate.errors import AnnotatorError

    path = Path(model.path) if Path(model.path).is_dir() else own
    if _digest(path) != model.digest:
        raise AnnotatorError(
            f"{path} on a machine of Ray's is not what the command has in {model.path}; put the same there"
        )
    return path


def _digest(path: Path) -> str:
    """Digests a model's description, which has the digests of its weights, and a reader's confidence."""
    from colmlm.model.annotate.checkpoint import ANNOTATOR_FILE

    files = [path / ANNOTATOR_FILE, path / CONFIDENCE]
    return sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()
