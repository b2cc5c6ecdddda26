"""The base class of all tables, with their types, naming conventions, and what an erasure does with each text.

Each column of texts is declared with one of the types below, and a test refuses one that is not. So erasures find the
columns that they redact, search and name in the tables themselves: see `kb.removal.traces`.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar

from sqlalchemy import BigInteger, Column, DateTime, LargeBinary, MetaData, Text, inspect
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

T = TypeVar("T", bound="DataclassRecord")

ERASURE = "erasure"  # the entry of a column's `info` that says what an erasure does with it
ERASED_BY_REDACTION: Final = "redacted"
LEFT_BUT_NAMED: Final = "named in `left`"  # of the report of an erasure
_redacted = {ERASURE: ERASED_BY_REDACTION}
_named = {ERASURE: LEFT_BUT_NAMED}
_word = {ERASURE: "never holds content: it is one of the words that the program knows"}
_digest = {ERASURE: "never holds content: it is a digest or a random name that the program makes"}
_figures = {ERASURE: "never holds content: it is figures, ids and known words that the program writes"}

# What a person or a model wrote. An erasure redacts it.
Content = Annotated[str, mapped_column(info=_redacted)]
Contents = Annotated[list[str], mapped_column(info=_redacted)]
ContentObject = Annotated[dict[str, Any], mapped_column(info=_redacted)]
# What things are known by, and what cannot be altered. It stays, and the report of an erasure names it.
Name = Annotated[str, mapped_column(info=_named)]
Names = Annotated[list[str], mapped_column(info=_named)]
NameObject = Annotated[dict[str, Any], mapped_column(info=_named)]
# What only the program writes. It is not searched.
Word = Annotated[str, mapped_column(info=_word)]
Words = Annotated[list[str], mapped_column(info=_word)]
Digest = Annotated[str, mapped_column(info=_digest)]
Figures = Annotated[dict[str, Any], mapped_column(info=_figures)]


class TableRow(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "fk": "%(table_name)s_%(column_0_name)s_fkey",
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
        }
    )
    type_annotation_map: ClassVar = {
        int: BigInteger,
        str: Text,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[int]: ARRAY(BigInteger),
        list[str]: ARRAY(Text),
    }


def columns_of(row: type[TableRow], *treatments: str) -> list[Column[Any]]:
    """Give the columns of a table that an erasure treats in one of these ways, such as `ERASED_BY_REDACTION`."""
    return [column for column in inspect(row).columns if column.info.get(ERASURE) in treatments]


def content_of(row: type[TableRow]) -> tuple[str, ...]:
    """Give the names of the columns of a table that an erasure redacts."""
    return tuple(column.name for column in columns_of(row, ERASED_BY_REDACTION))


class DataclassRecord(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def copy_columns(kind: type[T], row: Any, **given: Any) -> T:
    """Make a record of a row: fields have the values of columns of their names, unless others are given.

    A field without either keeps its default.
    """
    names = (field.name for field in fields(kind) if field.name not in given and hasattr(row, field.name))
    return kind(**{name: getattr(row, name) for name in names}, **given)
