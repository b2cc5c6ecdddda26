"""Spreads rows of work over the workers of Ray, and yields the outcome of each row when it is done.

The workers run on this machine's cores or on a running cluster, as two options say. Ray runs in a process of
its own (`cli.composition.bulk.driver`), which is ended with everything that it started.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from colmlm.cli.errors import DATABASE, FAULT, FailedElsewhere, Failure
from colmlm.kb import interpreter
from colmlm.kb.errors import DatabaseUnavailable, SettingsError, refusals

if TYPE_CHECKING:
    from colmlm.cli.composition.runtime import Runtime

AUTO = "auto"
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")
_LAST_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REACHED_IN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RayPlace:
    """The address of a running cluster (None: Ray is started on this machine's cores and ends with the work).

    `workers` is the number of processes, each with a model of its own; by default one for each GPU, or else core.
    """

    address: str | None = None
    workers: int | None = None

    @classmethod
    def parse_address(cls, address: str, workers: int | None = None) -> RayPlace:
        """Read HOST:PORT, or `auto`: the cluster of RAY_ADDRESS, else this machine. Raises `ValueError`."""
        found = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
        if found in ("", AUTO, "local"):
            return cls(None, workers)
        if not _ADDRESS.fullmatch(found) or int(found.rpartition(":")[2]) > _LAST_PORT:
            form = "HOST:PORT of a cluster's head, as 10.0.0.5:6379"
            if address == AUTO:
                raise ValueError(
                    f"{AUTO} takes the address in RAY_ADDRESS, and {found!r} is not {form}. Correct RAY_ADDRESS, unset "
                    f"it to use this machine, or name the head in place of {AUTO}"
                )
            raise ValueError(f"{found!r} is neither {AUTO} nor {form}; write one of them")
        return cls(found, workers)


def require_cluster(address: str) -> None:
    """Raise `ClusterUnavailable` if nobody listens at the address, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # A head may listen at its machine's own address alone. Ray takes that in place of the loopback.
    hosts = [host, socket.gethostname()] if host in _LOOPBACK else [host]
    causes: list[OSError] = []
    for tried in hosts:
        try:
            socket.create_connection((tried, int(port)), _REACHED_IN_SECONDS).close()
        except OSError as error:
            causes.append(error)
        else:
            return
    raise refusals.cluster_unavailable(address, causes[0].strerror or str(causes[0]))


def _address(value: str | None) -> str | None:
    if value is not None:
        try:
            RayPlace.parse_address(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None
    return value


Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|ADDRESS",
        callback=_address,
        help="Do the bulk of it on Ray: on this machine's cores (auto; or the cluster in RAY_ADDRESS), or on the "
        "cluster at HOST:PORT. Default: COLMLM_RAY. Needs the extra ray.",
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option(
        "--ray-workers",
        min=1,
        max=10_000,
        help="How many processes work there. Default: one for each GPU, or else core.",
    ),
]


# What a command and Ray's driver say to each other, as JSON lines.

CONNECTED = "connected"  # a driver's first line, once it is in its cluster
STOP_SECONDS = 10.0  # in which a driver ends when its stdin does; then it is killed with all that it started


class Order(msgspec.Struct, frozen=True):
    """The first line to a driver: the errand's name and settings, the address of a cluster (None: start one here), the
    number of workers (None: one for each GPU, or else core), and the directory in which Ray may write.
    """

    errand: str
    given: Any
    address: str | None
    workers: int | None
    directory: str


class RowOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a row: what the errand returned, or the exit code and the error line of its failure."""

    made: Any = None
    exit_code: int = 0
    line: str = ""


# By name and not with `-m`, so that Ray finds the class of its workers in the module.
DRIVER = "from colmlm.cli.composition.bulk.driver import main; main()"
ROUND = 10_000  # rows that are sent at once; in each round the workers load their models anew
BEAT_SECONDS = 1.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
_TO_ITSELF = {
    # Whatever address it is given, Ray takes the one that others reach this machine by, unless it may have no cluster.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill workers for what others use of the machine
}


@dataclass(frozen=True, slots=True)
class Spreading:
    """Runs errands on Ray at a place. Workers that are started for it on this machine get the settings of a runtime."""

    runtime: Runtime
    place: RayPlace

    def outcomes(
        self, errand: str, given: Any, rows: Iterable[Any], *, at_once: int = ROUND
    ) -> Generator[Any, None, None]:
        """Run the errand on all rows; yield each result as soon as it is there, and None every second without one.

        Raises `ClusterUnavailable`, or the failure of a worker as `FailedElsewhere` or `DatabaseUnavailable`. The other
        workers are ended then.
        """
        left = iter(rows)
        if self.place.address is not None:
            require_cluster(self.place.address)
        with scratch() as directory, self._driver(directory) as driver:
            order = Order(errand, given, self.place.address, self.place.workers, f"{directory}/r")
            driver.send(order)
            while several := list(islice(left, at_once)):
                yield from driver.run_round(several)

    @contextmanager
    def _driver(self, directory: str) -> Iterator[_Driver]:
        with Path(directory, "said").open("w+b") as said:
            process = subprocess.Popen(
                interpreter.command("-c", DRIVER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=directory,
                env=self._environment(),
                start_new_session=True,
            )
            try:
                yield _Driver(process, said, self.place.address)
            finally:
                _end(process)

    def _environment(self) -> dict[str, str]:
        """Give the environment of workers on this machine: this process's, overridden by the runtime's settings."""
        user, settings = self.runtime.user, self.runtime.settings
        paths = {
            "COLMLM_HOME": settings.home,
            "COLMLM_CHECKPOINT": user.checkpoint,
            "COLMLM_SPAN_ANNOTATOR": user.span_annotator,
            "COLMLM_QUESTION_GENERATOR": user.question_generator,
            "COLMLM_READER": user.reader,
        }
        given = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
        if (url := self.runtime.database_url) is not None:
            given["COLMLM_DATABASE_URL"] = url
        kept = {name: value for name, value in os.environ.items() if name != "COLMLM_DATABASE_URL_FILE"}
        if self.place.address is None:
            # Else Ray would make a token of its own and leave it in the user's home.
            given |= {**_TO_ITSELF, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return {**kept, **given, **_QUIET}


def spreading_of(runtime: Runtime) -> Spreading | None:
    """Make the `Spreading` for this runtime's bulk work; give None if its settings name no Ray.

    Raises `SettingsError` for a malformed address, and `ModuleNotFoundError` without the extra `ray`.
    """
    user = runtime.user
    if user.ray is None:
        return None
    try:
        place = RayPlace.parse_address(user.ray, user.ray_workers)
    except ValueError as error:
        raise SettingsError("COLMLM_RAY", str(error)) from error
    if find_spec("ray") is None:
        raise ModuleNotFoundError("ray is not installed", name="ray")
    return Spreading(runtime, place)


class _Driver:
    """The command's end of a driver's pipes: writes rows and reads their outcomes."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes], address: str | None) -> None:
        self._process, self._said, self._address = process, said, address
        self._is_connected = False
        self._answers: SimpleQueue[bytes] = SimpleQueue()  # an empty line where the driver has ended
        threading.Thread(target=self._read, name="Ray's answers", daemon=True).start()

    def send(self, *rows: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which `_wait_for_outcome` tells
            self._process.stdin.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            self._process.stdin.flush()

    def run_round(self, rows: list[Any]) -> Generator[Any, None, None]:
        """Send these rows; yield each result as soon as it is there, and None every second without one."""
        self.send(*rows)
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        left = len(rows)
        while left:
            outcome = self._wait_for_outcome()
            left -= outcome is not None
            yield None if outcome is None else outcome.made

    def _wait_for_outcome(self) -> RowOutcome | None:
        """Wait for a row's outcome; give None if there is none in `BEAT_SECONDS`. Raises the row's failure."""
        try:
            line = self._answers.get(timeout=BEAT_SECONDS)
        except Empty:
            return None
        if not line:
            raise self._exit_error()
        if line.strip() == CONNECTED.encode():
            self._is_connected = True
            return None
        told = msgspec.json.decode(line, type=RowOutcome)
        if told.exit_code == DATABASE:  # whoever works for a job takes it up again once the database is back
            after = "Set COLMLM_DATABASE_URL to an address that the workers reach too."
            raise DatabaseUnavailable("a worker of Ray", told.line, after)
        if told.exit_code:
            raise FailedElsewhere(Failure(told.exit_code, f"A worker of Ray failed: {told.line}"))
        return told

    def _exit_error(self) -> Exception:
        """Give the error of an ended driver: `ClusterUnavailable` if it never connected, else `FailedElsewhere`."""
        code, words = self._process.wait(), self._last_words()
        if self._address is not None and not self._is_connected and code > 0:
            return refusals.cluster_unavailable(self._address, words.removeprefix("RuntimeError: "))
        return FailedElsewhere(Failure(FAULT, f"Ray ended with code {code}: {words}"))

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        finally:
            self._answers.put(b"")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the driver's stdin, on which it ends what it started; kill its processes if it has not ended in time."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


# Directories in which Ray works on this machine: one for each command, and swept once that is gone.

PREFIX = "colmlm-ray-"
_SHORT = 20  # characters: Ray's sockets have long names, and the system takes 107 in all


@contextmanager
def scratch() -> Iterator[str]:
    """Make a private directory that is removed after the block; also remove those that killed commands left.

    Ray gets a directory below it for its sockets and logs, since Ray opens the directory that it is given to all users.
    """
    usual = tempfile.gettempdir()
    where = usual if len(usual) < _SHORT else "/tmp"
    for left in Path(where).glob(f"{PREFIX}*"):
        if (held := _lock_directory(left)) is not None:
            _remove(left, held)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    while (held := _lock_directory(directory)) is None:  # somebody swept it before it was locked
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    try:
        yield str(directory)
    finally:
        _remove(directory, held)


def _lock_directory(directory: Path) -> int | None:
    """Open and lock a directory of this user for as long as this process lives; None if another process has it."""
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(held).st_uid == os.getuid() and os.path.samestat(os.fstat(held), directory.stat()):
            return held
    except OSError:  # locked by its command, or gone by now
        pass
    os.close(held)
    return None


def _remove(directory: Path, held: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    os.close(held)
