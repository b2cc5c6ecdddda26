"""Translates failures of the database or the disk into errors of the tree, which say cause and remedy."""

from __future__ import annotations

import errno
import re

import psycopg
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from colmlm.kb.errors import Collided, KBError, LockHeld, StatementTooLong, StorageFull, StorageReadOnly

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")


def refusal_of(error: BaseException) -> KBError | None:
    """Gives the error of the tree for a failure of the driver or the system; None where there is none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    match cause:
        case errors.LockNotAvailable():
            return LockHeld(_where(cause))
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return Collided()
        case errors.QueryCanceled():
            return StatementTooLong()
        case errors.DiskFull():
            return StorageFull("the database")
        case errors.ReadOnlySqlTransaction():
            return StorageReadOnly("The database")
    return _of_the_disk(cause or error)


def _of_the_disk(error: BaseException) -> KBError | None:
    file = getattr(error, "filename", None)
    number = error.errno if isinstance(error, OSError) else _told_in_words(error)
    if number in _FULL:
        return StorageFull(str(file or "what was to be written"))
    if number == errno.EROFS:
        return StorageReadOnly(str(file or "The disk"))
    return None


def _told_in_words(error: BaseException) -> int | None:
    """What the system said, as libraries written in Rust put it: those that write weights and tokenizers."""
    told = _OF_RUST.search(str(error))
    return int(told[1]) if told else None


def _where(error: psycopg.Error) -> str:
    """Gives the lock that was waited for, in the server's words: `while locking tuple (0,1) in relation "api_key"`."""
    return (error.diag.context or "for another transaction").splitlines()[0]
