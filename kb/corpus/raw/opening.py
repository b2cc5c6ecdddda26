"""Opens a file that was found in a directory, and nothing that somebody has put in its place since."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Identity = tuple[int, int]  # the device of a file and its number there

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def identity_of(about: os.stat_result) -> Identity:
    return about.st_dev, about.st_ino


@contextmanager
def held(path: Path, identity: Identity | None) -> Iterator[Path]:
    """Gives a path by which the file is opened in the block: without an identity its own, as of a file that was named.

    With an identity it leads to that file, which is open meanwhile. Raises `OSError`, also where a link, a pipe or
    another file is there now.
    """
    if identity is None:
        yield path
        return
    number = _opened(path, identity)
    try:
        yield Path(f"/dev/fd/{number}")
    finally:
        os.close(number)


def _opened(path: Path, identity: Identity) -> int:
    another = OSError(errno.ESTALE, "something else is there now than when the directory was read")
    try:
        number = os.open(path, _FLAGS)
    except OSError as error:
        raise another if error.errno == errno.ELOOP else error from None
    about = os.fstat(number)
    if stat.S_ISREG(about.st_mode) and identity_of(about) == identity:
        return number
    os.close(number)
    raise another
