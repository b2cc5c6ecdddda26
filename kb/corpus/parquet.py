"""Parquet: reads and writes annotated documents in columns, a batch at a time.

The columns are the fields of the JSON Lines form: ``id``, ``text``, ``title``, ``uri``, ``licence``, ``revision`` and
``facts``, a list of structs. A row is checked as a line is (`kb.corpus.format`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal, parse_record, to_record
from colmlm.kb.corpus.raw.text import Unreadable

OnBytes = Callable[[int], None]

_ROWS = 500  # rows of a batch, which is in memory at once, unless they are unusually large
_BATCH_BYTES = 32_000_000

_FACT = pa.struct(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("value", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("current", pa.string()),
        ("deleted", pa.bool_()),
        ("review", pa.string()),
    ]
)
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("uri", pa.string()),
        ("licence", pa.string()),
        ("revision", pa.string()),
        ("text", pa.large_string()),
        ("facts", pa.list_(_FACT)),
    ]
)


def read_parquet(path: Path, on_bytes: OnBytes | None = None) -> Iterator[Parsed]:
    """Read every row of a Parquet file, in order. A row whose `facts` is null has its spans in the text, inline.

    A file that cannot be read, or not to its end, gives one refusal that names it. `on_bytes` is called with the number
    of bytes read so far, estimated by rows.
    """
    try:
        for where, record in read_rows(path, _annotated, on_bytes):
            yield Parsed(None, (record,)) if isinstance(record, Refusal) else _parsed(record, where)
    except Unreadable as error:
        yield Parsed(None, (Refusal(path.name, 0, str(error)),))


def _annotated(names: list[str]) -> list[str]:
    if missing := [name for name in ("id", "text") if name not in names]:
        raise Unreadable(f"no column {' and no column '.join(map(repr, missing))}")
    return [name for name in _SCHEMA.names if name in names]


def read_rows(
    path: Path,
    choose: Callable[[list[str]], list[str]],
    on_bytes: OnBytes | None = None,
    place: Path | None = None,
) -> Iterator[tuple[str, dict[str, Any] | Refusal]]:
    """Read the columns that `choose` gives of those there are. Gives each row, or why it is refused, with its name.

    A file that is damaged gives a refusal at its end. `place` is where it is opened, if not at its path.
    Raises what `choose` raises.
    """
    number = 0
    try:
        with pq.ParquetFile(place or path, page_checksum_verification=True, pre_buffer=False) as file:
            columns = choose(file.schema_arrow.names)
            size, num_rows = (place or path).stat().st_size, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_rows(file.metadata), columns=columns, use_threads=False):
                for record in _records(batch):
                    number += 1
                    where = f"{path.name}:{number}"
                    yield where, record or Refusal(where, 0, "not UTF-8")
                if on_bytes is not None:
                    on_bytes(size * number // num_rows)
    except (pa.ArrowMemoryError, Unreadable):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        refusal = Refusal(path.name, 0, f"not a Parquet file that can be read, after row {number}: {cause}")
        yield path.name, refusal


def _rows(about: pq.FileMetaData) -> int:
    """Give the number of rows to have in memory at once, by their size according to the file."""
    size: int = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    fitting: int = _BATCH_BYTES * about.num_rows // max(1, size)
    return max(1, min(_ROWS, fitting))


def _parsed(record: dict[str, Any], where: str) -> Parsed:
    if record.get("facts", ()) is None:
        del record["facts"]
    return parse_record(record, where)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | None]:
    """Give the rows of a batch; None for one that is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # pyarrow checks the bytes of a string only when it makes one
        for row in range(batch.num_rows):
            yield _record(batch.slice(row, 1))


def _record(row: pa.RecordBatch) -> dict[str, Any] | None:
    try:
        (record,) = row.to_pylist()
    except UnicodeDecodeError:
        return None
    found: dict[str, Any] = record
    return found


def write_parquet(documents: Iterable[AnnotatedDocument], path: Path) -> int:
    """Write the documents, with checksums in the pages, and give their number."""
    written = 0
    remaining = iter(documents)
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        while batch := [to_record(document) for document in islice(remaining, _ROWS)]:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_SCHEMA))
            written += len(batch)
    return written
