"""What a command, Ray's driver and its workers say to each other, as JSON lines."""

from __future__ import annotations

from typing import Any

import msgspec

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
