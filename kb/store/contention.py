"""Contention: transactions that PostgreSQL ended because each waited for another, done again.

Locks are taken in one order (docs/design.md, "Edits"), so that this should not happen among verbs; with a release
beside this one, with statements of an operator, or with locks of PostgreSQL's own it may.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure
from sqlalchemy.exc import DBAPIError

ATTEMPTS = 4
PAUSE_SECONDS = 0.05

P = ParamSpec("P")
T = TypeVar("T")


def tried_again(transaction: Callable[P, T]) -> Callable[P, T]:
    """A function that is one transaction, done again where it met another; the last failure is raised as it is.

    `kb.store.causes` says what it means.
    """

    @wraps(transaction)
    def trying(*arguments: P.args, **options: P.kwargs) -> T:
        for attempt in range(1, ATTEMPTS):
            try:
                return transaction(*arguments, **options)
            except (DBAPIError, psycopg.Error) as error:
                if not is_contention(error):
                    raise
            time.sleep(random.uniform(0, PAUSE_SECONDS * 2**attempt))  # so that they don't meet again
        return transaction(*arguments, **options)

    return trying


def is_contention(error: BaseException) -> bool:
    """Whether the transaction failed for another one alone: deadlock or serialisation."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, DeadlockDetected | SerializationFailure)
