"""Bad values: refuses what no column can hold, in whatever statement it is given, as an error of the tree.

Verbs check what they are given where that has a name. This is behind all of them, so that none has to be thought of: it
is the last place that an id beyond 64 bits, a negative limit, a NUL or a lone surrogate gets to.
"""

from __future__ import annotations

import psycopg
from psycopg import errors
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

from colmlm.kb.errors import InvalidValue

MOST = 1_000_000_000  # items of a list that somebody may ask for at once

_NUMBER = "it is a number that is too large or too small; give ids from 1 to 9223372036854775807"
_TEXT = "it holds a NUL character or a lone surrogate, which no text does; remove it"


def check_limit(limit: int, least: int = 1) -> None:
    """Raises `InvalidValue` for a number of items that nobody can be given."""
    if not least <= limit <= MOST:
        raise InvalidValue("limit", f"it is {limit}; give a number from {least} to {MOST:,}")


def refuse_bad_values(engine: Engine) -> None:
    """Makes statements on this engine raise `InvalidValue` for what the database cannot take."""

    def refuse(context: ExceptionContext) -> None:
        if (refused := refusal_of_value(context.original_exception)) is not None:
            raise refused from context.original_exception

    event.listen(engine, "handle_error", refuse)


def refusal_of_value(error: BaseException) -> InvalidValue | None:
    """Gives the error of the tree for a value that the driver or the database did not take; None for all else."""
    match error:
        case (
            errors.NumericValueOutOfRange()
            | errors.InvalidRowCountInLimitClause()
            | errors.InvalidRowCountInResultOffsetClause()
            | OverflowError()
        ):
            return InvalidValue("value", _NUMBER)
        case UnicodeEncodeError() | errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            return InvalidValue("value", _TEXT)
        case psycopg.DataError() if error.sqlstate is None and "NUL" in str(error):  # the driver's own check
            return InvalidValue("value", _TEXT)
    return None
