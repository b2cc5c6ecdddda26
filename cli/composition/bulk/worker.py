"""A worker process of Ray: does the rows of one errand, and tells a failure in a line instead of a traceback.

Each errand keeps one model, which is loaded for its first row. A worker reads its own settings from the environment
that Ray was started in, so no secret is in what it is sent.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from colmlm.cli.composition.bulk.messages import (
    AnnotatingBy,
    EncodingBy,
    RowOutcome,
    found,
)
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import explain
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.errors import KeysetMismatch, SettingsError
from colmlm.kb.keys.records import RekeyPart
from colmlm.kb.log.audit import Origin, origin
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.model.annotate.checks import Reviewed


class RayWorker:
    """The class of Ray's actors. A row is a text in, and a text out."""

    def __init__(self, errand: str, given: str) -> None:
        self.name, self.given = errand, given
        self.errand: Errand | None = None

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        return {"told": msgspec.json.encode(self._run_row(row["row"]), enc_hook=str).decode()}

    def _run_row(self, row: str) -> RowOutcome:
        try:
            if self.errand is None:
                self.errand = ERRANDS[self.name](msgspec.json.decode(self.given))
            return RowOutcome(self.errand.run(msgspec.json.decode(row)))
        except Exception as error:  # noqa: BLE001 - an exception that Ray carries loses its class and gains a traceback
            return RowOutcome(None, *explain(error))


class Errand(Protocol):
    """Does one row after another. Rows and what comes of them are what JSON can say."""

    def run(self, row: Any) -> Any: ...


class KeyingBy(msgspec.Struct, frozen=True):
    """Who asked for keys, as the log names them, and where the checkpoint is (None: as registered)."""

    origin: Origin
    checkpoint: str | None


class Keying:
    """Keys parts of a rekey, each batch in a transaction of its own; gives how many keys it stored."""

    def __init__(self, given: Any) -> None:
        self.by = msgspec.convert(given, KeyingBy)
        self.runtime = _with_base()
        self._encoders: dict[int, Encoder] = {}

    def run(self, row: Any) -> int:
        part = msgspec.convert(row, RekeyPart)
        encoder = self._encoder(part.keyset_id)
        before = origin.set(self.by.origin)
        try:
            return self.runtime.kb.keysets.rekey_part(encoder, part)
        finally:
            origin.reset(before)

    def _encoder(self, keyset_id: int) -> Encoder:
        from colmlm.cli.composition.keying import encoder_of

        if keyset_id not in self._encoders:
            named = None if self.by.checkpoint is None else Path(self.by.checkpoint)
            self._encoders[keyset_id] = encoder_of(self.runtime, keyset_id, named)
        return self._encoders[keyset_id]


class Encoding:
    """Encodes questions by the encoder of a keyset; the queries are the base64 of float32."""

    def __init__(self, given: Any) -> None:
        from colmlm.cli.composition.keying import encoder_of

        by = msgspec.convert(given, EncodingBy)
        with _with_base() as runtime:
            _require_base(runtime, by.database_id)
            self.encoder = encoder_of(runtime, by.keyset_id)
        if (found := self.encoder.checkpoint.checkpoint_id) != by.checkpoint_id:
            raise KeysetMismatch(found, by.checkpoint_id)

    def run(self, row: Any) -> dict[str, Any]:
        queries = self.encoder.encode_questions(row["questions"])
        return {"number": row["number"], "queries": b64encode(queries.astype("<f4").tobytes()).decode()}


class Annotating:
    """Annotates batches of documents: finds their facts, writes a question for each, and checks these."""

    def __init__(self, given: Any) -> None:
        from colmlm.cli.composition import annotators, readers

        by, runtime = msgspec.convert(given, AnnotatingBy), _runtime()
        questions = None
        if by.questions is not None:
            questions = found(by.questions, annotators.questions_at(runtime, None))
        if by.reader is not None:
            reader = found(by.reader, readers.verifying_reader_at(runtime.user))
            runtime.user = replace(runtime.user, reader=reader)
        self.annotator = annotators.light(
            runtime,
            found(by.spans, annotators.spans_at(runtime, None)),
            questions,
            asks=questions is not None,
            verifies=by.reader is not None,
            threshold=by.threshold,
            drop_unquestioned=by.drop_unquestioned,
        )

    def run(self, row: Any) -> list[Reviewed]:
        documents = msgspec.convert(row["documents"], list[AnnotatedDocument])
        left_out = set(row["skip"])
        return list(self.annotator.annotate(documents, skip=lambda one: one.external_id in left_out))


def _with_base() -> Runtime:
    """Give a runtime whose base is that of every worker."""
    runtime = _runtime()
    if runtime.settings.database_url is None:  # an embedded server would have a base of its own
        raise SettingsError(
            "COLMLM_DATABASE_URL", "a worker of Ray needs it; set it where `ray start` is called"
        )
    return runtime


def _require_base(runtime: Runtime, database_id: str) -> None:
    """Refuse another base than that of the command, whose keysets have the same numbers."""
    if (found := runtime.kb.log.database_id()) != database_id:
        raise SettingsError(
            "COLMLM_DATABASE_URL",
            f"on a machine of Ray's it names the base {found}, and the work is of {database_id}",
        )


def _runtime() -> Runtime:
    """Give a runtime that reports to nobody, and that does its work itself."""
    runtime = Runtime.from_environment(telling=Telling())
    runtime.application = f"colmlm, process {os.getpid()} of Ray"
    runtime.user = replace(runtime.user, ray=None)
    return runtime


ERRANDS: Mapping[str, Callable[[Any], Errand]] = MappingProxyType(
    {"annotate": Annotating, "encode": Encoding, "key": Keying}
)
