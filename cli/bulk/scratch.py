"""Directories in which Ray works on this machine: one for each command, and swept once that is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "colmlm-ray-"
_SHORT = 20  # characters: Ray's sockets have long names, and the system takes 107 in all


@contextmanager
def scratch() -> Iterator[str]:
    """Gives a directory of this user alone, which goes with the block; sweeps those of commands that were killed.

    Ray has its sockets and logs in one below, since it lets everybody into what it is given.
    """
    usual = tempfile.gettempdir()
    where = usual if len(usual) < _SHORT else "/tmp"
    for left in Path(where).glob(f"{PREFIX}*"):
        if (held := _locked(left)) is not None:
            _remove(left, held)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    while (held := _locked(directory)) is None:  # somebody swept it before it was locked
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    try:
        yield str(directory)
    finally:
        _remove(directory, held)


def _locked(directory: Path) -> int | None:
    """Opens a directory of this user with a lock, which lasts as long as this process; None where another has it."""
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
