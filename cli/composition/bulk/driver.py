"""Ray's driver, a process of its own that `spreading` starts, and the workers that it starts.

Ray takes over a process: it knows one cluster in it, replaces handlers of signals, writes on stdout, and puts the
current directory on the path of all workers. So it gets this one, in an empty directory, with the environment that its
workers are to have. On stdin it reads an order, and then rounds of rows, each ended by an empty line. On stdout it
writes one line when it is connected to its cluster, and then the outcome of each row when that is done. When stdin
ends, the command has ended or wants no more rows: then this process ends with all that it started.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TextIO

import msgspec

from colmlm.cli.composition.bulk.errands import AnnotatingBy, EncodingBy, find_model
from colmlm.cli.composition.bulk.spreading import CONNECTED, STOP_SECONDS, Order, RowOutcome
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import explain
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.errors import KeysetMismatch, SettingsError
from colmlm.kb.keys.records import RekeyPart
from colmlm.kb.principal import Origin, origin
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.model.annotate.checks import ReviewedDocument

LOOPBACK = "127.0.0.1"
STORE_BYTES = 256 << 20  # rows are small; by default Ray takes a third of the memory


def main() -> None:
    """Read an order from stdin and run its errand on the rows that follow, until stdin ends."""
    answers = _stdout()
    # Not sys.stdin: Python locks that when it ends, and the thread reads until then.
    source = os.fdopen(0, "rb", closefd=False)
    order = msgspec.json.decode(source.readline(), type=Order)
    waiting: SimpleQueue[list[str]] = SimpleQueue()
    threading.Thread(target=_read, args=(source, waiting), name="the command", daemon=True).start()
    with _cluster(order):
        _say(answers, CONNECTED)
        while True:
            for told in _process_rows(order, waiting.get()):
                _say(answers, told)


def _say(answers: TextIO, line: str) -> None:
    answers.write(f"{line}\n")
    answers.flush()


def rounds(source: BinaryIO) -> Iterator[list[str]]:
    """Yield the rounds of a stream, each the rows before an empty line, decoded as UTF-8 whatever the locale is."""
    while rows := [line.decode().rstrip("\n") for line in takewhile(bytes.strip, source)]:
        yield rows


def _read(source: BinaryIO, waiting: SimpleQueue[list[str]]) -> None:
    """Queue the rounds of stdin until it ends. Then send this process SIGTERM and, if Ray does not end it, SIGKILL."""
    try:
        for rows in rounds(source):
            waiting.put(rows)
    finally:  # also where a row cannot be read, or the others would wait for more
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)


def _stdout() -> TextIO:
    """Give a copy of stdout for this module alone, and redirect what others write on stdout to stderr."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


@contextmanager
def _cluster(order: Order) -> Iterator[None]:
    """Connect to the order's cluster for the block, or start one on this machine that only this machine can reach."""
    import logging

    import ray

    if order.address is None:
        ray.init(
            address="local",
            num_cpus=order.workers,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=LOOPBACK,
            _temp_dir=order.directory,
        )
    else:
        ray.init(address=order.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _process_rows(order: Order, rows: list[str]) -> Iterator[str]:
    """Yield the outcome of each row as JSON. Ray runs a row again if its worker or node died, and yields it once."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    has_gpus = bool(there := int(ray.cluster_resources().get("GPU", 0)))
    workers = order.workers or there or max(1, int(ray.cluster_resources().get("CPU", 1)))
    made = ray.data.from_items([{"row": row} for row in rows], override_num_blocks=len(rows)).map(
        RayWorker,
        fn_constructor_args=(order.errand, msgspec.json.encode(order.given).decode()),
        compute=ActorPoolStrategy(size=min(workers, len(rows))),
        num_cpus=0 if has_gpus else 1,
        num_gpus=1 if has_gpus else 0,
    )
    for row in made.iter_rows():
        yield str(row["told"])


# The workers. Each errand keeps one model, which is loaded for its first row. A worker reads its own settings from the
# environment that Ray was started in, so no secret is in what it is sent.


class RayWorker:
    """An actor of Ray, which runs an errand on rows. A row and its outcome are JSON texts."""

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
    """Work that is done row by row. Rows and their results are values that JSON can hold."""

    def run(self, row: Any) -> Any: ...


class KeyingBy(msgspec.Struct, frozen=True):
    """The settings of the errand `Keying`: the request's origin, and the checkpoint's path (None: as registered)."""

    origin: Origin
    checkpoint: str | None


class Keying:
    """Makes the keys of a part of a rekey, each batch in its own transaction; `run` gives the number of keys."""

    def __init__(self, given: Any) -> None:
        self.by = msgspec.convert(given, KeyingBy)
        self.runtime = _runtime_with_base()
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
    """Encodes questions by the encoder of a keyset; `run` gives the queries as base64 of float32."""

    def __init__(self, given: Any) -> None:
        from colmlm.cli.composition.keying import encoder_of

        by = msgspec.convert(given, EncodingBy)
        with _runtime_with_base() as runtime:
            _require_base(runtime, by.database_id)
            self.encoder = encoder_of(runtime, by.keyset_id)
        if (found := self.encoder.checkpoint.checkpoint_id) != by.checkpoint_id:
            raise KeysetMismatch(found, by.checkpoint_id, by.keyset_id)

    def run(self, row: Any) -> dict[str, Any]:
        queries = self.encoder.encode_questions(row["questions"])
        return {"number": row["number"], "queries": b64encode(queries.astype("<f4").tobytes()).decode()}


class Annotating:
    """Annotates batches of documents: finds their facts, writes a question for each, and verifies the questions."""

    def __init__(self, given: Any) -> None:
        from colmlm.cli.composition import annotators, readers

        by, runtime = msgspec.convert(given, AnnotatingBy), _runtime()
        questions = None
        if by.questions is not None:
            questions = find_model(by.questions, annotators.questions_at(runtime, None))
        if by.reader is not None:
            reader = find_model(by.reader, readers.verifying_reader_at(runtime.user))
            runtime.user = replace(runtime.user, reader=reader)
        self.annotator = annotators.light_annotators(
            runtime,
            find_model(by.spans, annotators.spans_at(runtime, None)),
            questions,
            asks=questions is not None,
            verifies=by.reader is not None,
            threshold=by.threshold,
            drop_unquestioned=by.drop_unquestioned,
        )

    def run(self, row: Any) -> list[ReviewedDocument]:
        documents = msgspec.convert(row["documents"], list[AnnotatedDocument])
        left_out = set(row["skip"])
        return list(self.annotator.annotate(documents, skip=lambda one: one.external_id in left_out))


def _runtime_with_base() -> Runtime:
    """Give a worker's runtime on the shared database. Raises `SettingsError` without a URL of that database."""
    runtime = _runtime()
    if runtime.settings.database_url is None:  # an embedded server would have a base of its own
        raise SettingsError("COLMLM_DATABASE_URL", "a Ray worker needs it. Set it before `ray start`")
    return runtime


def _require_base(runtime: Runtime, database_id: str) -> None:
    """Refuse a database other than the command's: its keysets may have the same ids. Raises `SettingsError`."""
    if (found := runtime.kb.log.database_id()) != database_id:
        raise SettingsError(
            "COLMLM_DATABASE_URL",
            f"a Ray machine has the database {found}, but the work is for {database_id}. Set the same there",
        )


def _runtime() -> Runtime:
    """Give a worker's runtime, which prints no notes or progress, and does not use Ray itself."""
    runtime = Runtime.from_environment(telling=Telling())
    runtime.application = f"colmlm, process {os.getpid()} of Ray"
    runtime.user = replace(runtime.user, ray=None)
    return runtime


ERRANDS: Mapping[str, Callable[[Any], Errand]] = MappingProxyType(
    {"annotate": Annotating, "encode": Encoding, "key": Keying}
)
