"""Seal the texts in rows of COPY on their way into a backup, and open them on their way into a database.

A sealed field begins with the number of its owner (document, fact or output), the name of its key and a nonce. Then
comes its stand-in for a destroyed key: JSON and arrays without their words, nothing for other columns. The rest is the
field under AES-GCM, bound to base, table, column, row and stand-in. Empty fields stay empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from cryptography.exceptions import InvalidTag
from psycopg import sql
from sqlalchemy import Column, Table, Text, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument, document_digests
from colmlm.kb.errors import refusals, sealing_keys_unfit
from colmlm.kb.facts.redaction import MARK, ErasureTarget
from colmlm.kb.log import audit
from colmlm.kb.removal.erase import end_erased
from colmlm.kb.removal.quotations import ErasedFacts, redact_quotations
from colmlm.kb.removal.sealing import ID_BITS, OWNERS, KeyTree, SealingKeys
from colmlm.kb.tables import (
    ERASED_BY_REDACTION,
    ERASURE,
    AttributionRow,
    DocumentRow,
    FactKeyRow,
    FactPairRow,
    FactRow,
    GenerationRow,
    IdempotencyRow,
)

LOST = "sealed: its key was destroyed"
NONCE = 12
TAG = 16

# What a row of a table belongs to, in SQL: what is joined for it, the number of the owner's kind, and the owner's id.
_OF_FACT = "LEFT JOIN fact AS of_fact ON of_fact.id = t.fact_id"
_OWNERS = {table: ("", str(kind), "t.id") for table, kind in OWNERS.items()}
for _table, _join, _document, _fact in (
    ("fact", "", "t.document_id", "t.id"),
    ("fact_version", _OF_FACT, "of_fact.document_id", "t.fact_id"),
    ("fact_past", _OF_FACT, "coalesce(t.document_id, of_fact.document_id)", "t.fact_id"),
):
    _kind = f"CASE WHEN {_document} IS NULL THEN {OWNERS['fact']} ELSE {OWNERS['document']} END"
    _OWNERS[_table] = (_join, _kind, f"coalesce({_document}, {_fact})")
_OWNERS["attribution"] = ("", str(OWNERS["generation"]), "t.generation_id")

# Beside the columns that an erasure redacts: names that go with them, digests without a key, what is made of texts.
_BESIDE = {
    DocumentRow.__tablename__: ("title", "uri", "sha256", "record_sha256"),
    FactRow.__tablename__: ("frame",),
    AttributionRow.__tablename__: ("query",),
    IdempotencyRow.__tablename__: ("body",),
}

_INT16, _INT32, _OWNER = Struct(">h"), Struct(">i"), Struct(">q")
_HEAD = Struct(">q8s12sI")
_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_NULL, _END = _INT32.pack(-1), _INT16.pack(-1)
_MARK = MARK.encode()
Row = list[bytes | None]


def sealed_columns(table: Table) -> tuple[str, ...]:
    """Give the names of the columns of a table that backups seal."""
    beside = _BESIDE.get(table.name, ())
    return tuple(
        c.name for c in table.columns if c.info.get(ERASURE) == ERASED_BY_REDACTION or c.name in beside
    )


def archive_columns(table: Table) -> list[str]:
    """Give the columns of a table in the order of the archive: those that are sealed come last."""
    last = sealed_columns(table)
    return [*(column.name for column in table.columns if column.name not in last), *last]


def select_rows(table: Table) -> sql.Composed:
    """Give the SELECT of a table's rows for the archive; if it has sealed texts, the owner's number is first."""
    columns: list[sql.Composable] = [
        sql.SQL("t.{}").format(sql.Identifier(name)) for name in archive_columns(table)
    ]
    join = ""
    if sealed_columns(table):
        join, kind, owner = _OWNERS[table.name]
        columns.insert(0, sql.SQL(f"(({kind})::bigint << {ID_BITS}) | ({owner})"))
    return sql.SQL("SELECT {} FROM {} AS t {}").format(
        sql.SQL(", ").join(columns), sql.Identifier(table.name), sql.SQL(join)
    )


def split_rows(blocks: Iterable[bytes]) -> Iterator[Row]:
    """Yield the fields of each row of a binary COPY in blocks of any size. Raises `ValueError` for other bytes."""
    buffer, at, begun, ended = b"", 0, False, False
    for block in blocks:
        buffer, at = buffer[at:] + block, 0
        if not begun and len(buffer) >= len(_START):
            if not buffer.startswith(_START):
                raise ValueError("its rows do not begin as colmlm writes them")
            begun, at = True, len(_START)
        while begun and not ended and len(buffer) - at >= 2:
            (count,) = _INT16.unpack_from(buffer, at)
            if count < 0:
                ended = True
                break
            row, end = _read_row(buffer, at + 2, count)
            if end < 0:
                break
            at = end
            yield row
    if not ended:
        raise ValueError("its rows are cut short")


def _read_row(buffer: bytes, at: int, count: int) -> tuple[Row, int]:
    """Read the fields of a row, and give where it ends; -1 where the buffer ends before it."""
    row: Row = []
    unpack, last = _INT32.unpack_from, len(buffer)
    for _ in range(count):
        if at + 4 > last:
            return row, -1
        (length,) = unpack(buffer, at)
        at += 4
        if length < 0:
            row.append(None)
            continue
        if at + length > last:
            return row, -1
        row.append(buffer[at : at + length])
        at += length
    return row, at


def join_rows(rows: Iterable[Sequence[bytes | None]], size: int) -> Iterator[bytes]:
    """Write rows as a binary COPY, in blocks of about this many bytes."""
    parts, gathered = [_START], 0
    pack = _INT32.pack
    for row in rows:
        parts.append(_INT16.pack(len(row)))
        for value in row:
            if value is None:
                parts.append(_NULL)
            else:
                parts += (pack(len(value)), value)
                gathered += len(value)
        if gathered >= size:
            yield b"".join(parts)
            parts, gathered = [], 0
    parts.append(_END)
    yield b"".join(parts)


@dataclass(frozen=True, slots=True)
class RowForm:
    """The layout of a table's rows in the archive: `identity` are the positions of the primary key, `sealed` the
    columns from `first` on.
    """

    table: str
    identity: tuple[int, ...]
    first: int
    sealed: tuple[Column[Any], ...]
    bound: tuple[bytes, ...]  # what a field of each sealed column is bound to, beside its row

    @classmethod
    def of(cls, table: Table, database: str) -> RowForm:
        columns = archive_columns(table)
        sealed = sealed_columns(table)
        bound = tuple("\0".join((database, table.name, name, "")).encode() for name in sealed)
        identity = tuple(columns.index(column.name) for column in table.primary_key)
        return cls(
            table.name,
            identity,
            len(columns) - len(sealed),
            tuple(table.columns[name] for name in sealed),
            bound,
        )

    def name_row(self, row: Row) -> bytes:
        """Give the primary key of a row as bytes, to which its sealed fields are bound."""
        return b"\0".join(row[at] or b"" for at in self.identity)


def seal_rows(rows: Iterable[Row], form: RowForm, tree: KeyTree) -> Iterator[Row]:
    """Encrypt the texts of rows by the key of their owner, whose number begins each given row and is left out.

    Raises `BackupRefused` where the tree has no key for an owner, such as a document.
    """
    for owner, *row in rows:
        assert owner is not None, "each row belongs to something"
        (number,) = _OWNER.unpack(owner)
        key = tree.key_of(number)
        if key is None:
            raise refusals.backup_refused(form.table, f"the tree of sealing keys has none for {number:#x}")
        name, encrypt, of_row = key.name, key.cipher.encrypt, form.name_row(row)
        for at, (column, bound) in enumerate(zip(form.sealed, form.bound, strict=True), form.first):
            if value := row[at]:
                shape, nonce = _shape_of(column, value), os.urandom(NONCE)
                sealed = encrypt(nonce, value, bound + of_row + shape)
                row[at] = _HEAD.pack(number, name, nonce, len(shape)) + shape + sealed
        yield row


def _shape_of(column: Column[Any], value: bytes) -> bytes:
    """Give what stands for a value once its key is destroyed: its JSON or array without words; for others no bytes."""
    if isinstance(column.type, JSONB):
        return value[:1] + json.dumps(_without_words(json.loads(value[1:]))).encode()
    if isinstance(column.type, ARRAY):
        if len(value) < 20:
            return value  # it is empty
        count: int = _INT32.unpack_from(value, 12)[0]
        return value[:20] + (_INT32.pack(len(_MARK)) + _MARK) * count
    return b""


_WORDS = frozenset({"policy", "selector_digest", "checkpoint_id", "at", "outcome"})


def _without_words(value: Any, name: str = "") -> Any:
    """Give JSON with a mark for each string, but in the fields `_WORDS`, and lists without items that hold a mark."""
    if isinstance(value, str):
        return value if name in _WORDS else MARK
    if isinstance(value, dict):
        return {key: _without_words(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [
            shown
            for item in value
            if MARK not in json.dumps(shown := _without_words(item), ensure_ascii=False)
        ]
    return value


@dataclass(slots=True)
class RowOpener:
    """Opens sealed rows with the keys of a file, and collects the owners (`lost`) whose keys were destroyed."""

    keys: SealingKeys
    file: str
    key_file: str
    seq: int
    tree: KeyTree = field(init=False)
    lost: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tree = KeyTree(self.keys.seeds)

    def open(self, rows: Iterable[Row], form: RowForm) -> Iterator[Row]:
        """Yield rows with their texts opened, or with stand-ins where the key was destroyed."""
        for row in rows:
            of_row = form.name_row(row)
            for at, (column, bound) in enumerate(zip(form.sealed, form.bound, strict=True), form.first):
                if value := row[at]:
                    row[at] = self._unseal(value, column, bound + of_row)
            yield row

    def _unseal(self, value: bytes, column: Column[Any], bound: bytes) -> bytes | None:
        owner, name, nonce, length = _HEAD.unpack_from(value)
        shape, sealed = value[_HEAD.size : _HEAD.size + length], value[_HEAD.size + length :]
        key = self.tree.key_of(owner)
        if key is None or key.name != name:
            if self.keys.seq < self.seq:  # a key that was made after this file of keys
                cause = f"it is of change {self.keys.seq}, and the backup of {self.seq}"
                raise sealing_keys_unfit(self.file, self.key_file, cause)
            self.lost.add(owner)
            return _stand_in(column, shape, len(sealed) - TAG, nonce)
        try:
            return key.cipher.decrypt(nonce, sealed, bound + shape)
        except InvalidTag as error:
            cause = f"a sealed field of {column.table.name} is not as it was written"
            raise refusals.backup_refused(self.file, cause) from error


def _stand_in(column: Column[Any], shape: bytes, num_bytes: int, nonce: bytes) -> bytes | None:
    """Give the stand-in of a sealed value whose key was destroyed; None for a column of neither text nor JSON."""
    if shape:
        return shape
    if column.name == "title":
        return LOST.encode()
    if column.name == "on_behalf_of":  # those of people who judged the same output must differ
        return _MARK + nonce.hex().encode()
    # A text has no more characters than bytes, so every place in it still is one.
    return _MARK * max(1, num_bytes) if isinstance(column.type, Text) else None


# Ends what cannot be opened as an erasure does: what it said is gone, and the record that it was there stays.


def erase_lost(session: Session, opener: RowOpener, actor: str) -> dict[str, tuple[int, ...]]:
    """Erase the documents, facts and outputs whose keys were destroyed, as one change, and give their ids by table.

    The base takes over the keys of the file. Outputs that quote one of these documents are redacted, too.
    """
    by_table = {
        table: tuple(sorted(owner - (kind << ID_BITS) for owner in opener.lost if owner >> ID_BITS == kind))
        for table, kind in OWNERS.items()
    }
    lost = {table: ids for table, ids in by_table.items() if ids}
    pending = audit.begin_change(session, actor, LOST)
    documents, outputs = lost.get("document", ()), lost.get("generation", ())
    targets = _facts_of(session, documents, lost.get("fact", ()))
    ids = [target.fact_id for target in targets]
    opener.keys.store(session, pending.seq, ids)
    if not lost:
        return {}
    with _without_holds(session):
        end_erased(session, targets, pending.seq)
    _end_documents(session, documents, pending.seq)
    session.execute(
        update(GenerationRow)
        .where(GenerationRow.id == func.any(list(outputs)))
        .values(redacted_seq=pending.seq)
    )
    pairs = or_(FactPairRow.fact_id == func.any(ids), FactPairRow.other_id == func.any(ids))
    session.execute(delete(FactPairRow).where(pairs))
    dropping = delete(FactKeyRow).where(FactKeyRow.fact_id == func.any(ids)).returning(FactKeyRow.id)
    dropped = sorted(session.scalars(dropping))
    session.flush()
    quoting = redact_quotations(session, ErasedFacts.of_erasure(session, [], ids, set()), pending.seq)
    payload = {
        "sealed": {table: list(found) for table, found in lost.items()},
        "documents": list(documents),
        "whole_documents": list(documents),
        "generations": list(quoting.generations),
        "dropped_keys": dropped,
        "mentions": "same-document",
    }
    audit.append_change(session, pending, "erase", ids, payload=payload)
    return lost


def _facts_of(session: Session, document_ids: Sequence[int], fact_ids: Sequence[int]) -> list[ErasureTarget]:
    """Give the facts of these documents, and these facts, as targets of an erasure: by their places, without texts."""
    here = or_(FactRow.document_id == func.any(list(document_ids)), FactRow.id == func.any(list(fact_ids)))
    rows = session.execute(
        select(FactRow.id, FactRow.span_start, FactRow.span_end).where(here).order_by(FactRow.id)
    )
    return [
        ErasureTarget(row.id, None, None, (), start=row.span_start or 0, end=row.span_end or 0)
        for row in rows
    ]


def _end_documents(session: Session, document_ids: Sequence[int], seq: int) -> None:
    rows = select(DocumentRow).where(DocumentRow.id == func.any(list(document_ids))).order_by(DocumentRow.id)
    for row in session.scalars(rows.execution_options(yield_per=200)):
        row.erased_seq = row.erased_seq or seq
        row.replaced_seq = row.replaced_seq or seq
        about = {name: getattr(row, name) for name in ("title", "uri", "licence", "revision")}
        row.sha256, row.record_sha256 = document_digests(
            AnnotatedDocument(row.external_id, row.text, (), **about)
        )
    session.flush()


_HELD = ("document", "fact", "fact_version", "fact_past")


@contextmanager
def _without_holds(session: Session) -> Iterator[None]:
    """Suspend the triggers of holds, so that facts of held documents can be ended: their texts are gone already."""
    for table in _HELD:
        session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER kept_text, DISABLE TRIGGER kept_row"))
    yield
    for table in _HELD:
        session.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER kept_text, ENABLE TRIGGER kept_row"))
