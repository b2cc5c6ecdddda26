"""Contention: repeats transactions that PostgreSQL ended because each waited for another.

Locks are taken in one order (docs/design.md, "Edits"), so this should not happen among verbs of one release. It may
happen beside another release, beside an operator's statements, or with locks of PostgreSQL's own.
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


def retry_on_contention(transaction: Callable[P, T]) -> Callable[P, T]:
    """Make a function that is one transaction repeat itself after contention; raise the last failure unchanged.

    `kb.store.waits` translates that.
    """

    @wraps(transaction)
    def trying(*arguments: P.args, **options: P.kwargs) -> T:
        for attempt in range(1, ATTEMPTS):
            try:
                return transaction(*arguments, **options)
            except (DBAPIError, psycopg.Error) as error:
                if not is_contention(error):
                    raise
            time.sleep(random.uniform(0, PAUSE_SECONDS * 2**attempt))  # random, so as not to collide again
        return transaction(*arguments, **options)

    return trying


def is_contention(error: BaseException) -> bool:
    """Say whether the transaction failed only because of another one: by deadlock or serialisation."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, DeadlockDetected | SerializationFailure)
