"""Writes secrets to files of this user: private from the first byte, and complete as soon as they have their name."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import TextIO


def write_secret(file: Path, secret: str) -> None:
    """Write a secret, in place of the one before."""
    _written(file, secret).close()


@contextmanager
def held_secret(file: Path, secret: str) -> Iterator[None]:
    """Write a secret that is true while the block runs, and remove it at the end.

    Until then the file is locked. The system takes the lock back from a process that is killed, so that what this
    leaves behind is known to be of nobody.
    """
    held = _written(file, secret)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(), os.fstat(held.fileno())):
                file.unlink()
        held.close()


def read_held_secret(file: Path) -> str | None:
    """Give a secret that this user alone may read and that its writer still holds; None where there is none."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # it is not there, or it is a link, or another user's
        return None
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as opened:
        about = os.fstat(descriptor)
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & 0o077
        return opened.read() if is_ours and _is_held(opened) else None


def _is_held(opened: TextIO) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _written(file: Path, secret: str) -> TextIO:
    """Give the file, open and locked. It is a new one under a name of its own until it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = mkstemp(dir=file.parent, prefix=f".{file.name}.")
    out = os.fdopen(descriptor, "w", encoding="utf-8")
    try:
        out.write(secret + "\n")
        out.flush()
        fcntl.flock(out, fcntl.LOCK_EX)
        Path(scratch).replace(file)
    except BaseException:
        out.close()
        Path(scratch).unlink()
        raise
    return out
