"""Parquet: reads and writes annotated documents in columns, a batch at a time, also as a Hugging Face dataset.

The columns are the fields of the JSON Lines form: ``id``, ``text``, ``title``, ``uri``, ``licence``, ``revision`` and
``facts``, a list of structs. A row is checked as a line is (`kb.corpus.format`). A dataset has a card that says what is
in it; `datasets.load_dataset` reads its folder as it is, and `read_parquet` its files.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal, parse_record, to_record
from colmlm.kb.corpus.raw.blocks import Unreadable
from colmlm.kb.errors import count_of

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
        for where, record in read_rows(path, _choose_columns, on_bytes):
            yield Parsed(None, (record,)) if isinstance(record, Refusal) else _parse_row(record, where)
    except Unreadable as error:
        yield Parsed(None, (Refusal(path.name, 0, str(error)),))


def _choose_columns(names: list[str]) -> list[str]:
    if missing := [name for name in ("id", "text") if name not in names]:
        raise Unreadable(f"no column {' and no column '.join(map(repr, missing))}")
    return [name for name in _SCHEMA.names if name in names]


def read_rows(
    path: Path,
    choose: Callable[[list[str]], list[str]],
    on_bytes: OnBytes | None = None,
    path_to_open: Path | None = None,
) -> Iterator[tuple[str, dict[str, Any] | Refusal]]:
    """Yield, for each row of a Parquet file, its name, such as ``facts.parquet:12``, and the row or its refusal.

    `choose` gets the names of all columns and gives those to read. A damaged file gives a refusal at its end.
    `path_to_open` opens the file, if not `path`. Raises what `choose` raises.
    """
    number = 0
    try:
        with pq.ParquetFile(path_to_open or path, page_checksum_verification=True, pre_buffer=False) as file:
            columns = choose(file.schema_arrow.names)
            size, num_rows = (path_to_open or path).stat().st_size, max(1, file.metadata.num_rows)
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
    """Give the number of rows of a batch, which is in memory at once, from the sizes that the file states."""
    size: int = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    fitting: int = _BATCH_BYTES * about.num_rows // max(1, size)
    return max(1, min(_ROWS, fitting))


def _parse_row(record: dict[str, Any], where: str) -> Parsed:
    if record.get("facts", ()) is None:
        del record["facts"]
    return parse_record(record, where)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a batch; None for a row that is not UTF-8."""
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
    """Write the documents into a Parquet file, with checksums in its pages, and give their number."""
    written = 0
    remaining = iter(documents)
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        while batch := [to_record(document) for document in islice(remaining, _ROWS)]:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=_SCHEMA))
            written += len(batch)
    return written


CARD_FILE, DATA = "README.md", "data"
MOST_DOCUMENTS = 20_000
"""Documents of one file, so that who reads a large corpus can read its files at once."""
MOST_CHARACTERS = 100_000_000
"""Of one file, but for the last document that goes in."""

_CARD = """---
{licence}configs:
- config_name: default
  data_files:
  - split: train
    path: {data}/*.parquet
---
# {name}
{documents} with {facts}, exported by colmlm. A fact is a span of its document's text, in code
points: `text[start:end]` is its `value` as the document says it.

| column | |
|---|---|
| `id`, `title`, `uri`, `licence`, `revision` | the document, and where it comes from |
| `text` | its text, in which `facts` have their places |
| `facts` | the facts: |
| `start`, `end`, `value` | their places |
| `question`, `answer` | what each answers, and the value in other words, where there are some |
| `current`, `deleted`, `review` | its value where that was corrected, whether it was deleted, the verdict on it |

Licences of the documents: {licences}.

```python
from datasets import load_dataset

documents = load_dataset("{name}", split="train")
```
`colmlm corpus add {data}/FILE.parquet --format parquet --corpus NAME` takes a file into a knowledge base.
"""


def write_dataset(documents: Iterable[AnnotatedDocument], folder: Path, name: str) -> int:
    """Write the documents as a dataset into a folder, which appears once it is complete, and give their number.

    Raises `FileExistsError` if the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(errno.EEXIST, "not an empty folder", str(folder))
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    (unfinished / DATA).mkdir(parents=True)
    said: Counter[str] = Counter()
    written = facts = 0
    for number, part in enumerate(_parts(documents)):
        write_parquet(part, unfinished / DATA / f"train-{number:05}.parquet")
        said.update(document.licence or "not said" for document in part)
        written, facts = written + len(part), facts + sum(len(document.facts) for document in part)
    card = _CARD.format(
        name=name,
        data=DATA,
        documents=count_of(written, "document"),
        facts=count_of(facts, "fact"),
        licence=_licence_line(said),
        licences=_list_counts(said),
    )
    (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
    unfinished.replace(folder)
    return written


def _parts(documents: Iterable[AnnotatedDocument]) -> Iterator[list[AnnotatedDocument]]:
    """Yield the documents of each file as a list in memory; one empty list if there are no documents."""
    part: list[AnnotatedDocument] = []
    size = number = 0
    for document in documents:
        part.append(document)
        size += len(document.text)
        if len(part) == MOST_DOCUMENTS or size >= MOST_CHARACTERS:
            yield part
            part, size, number = [], 0, number + 1
    if part or not number:
        yield part


def _licence_line(said: Counter[str]) -> str:
    """Give the card's licence line, in the hub's spelling; empty unless all documents have the same licence."""
    (licence, _), *others = said.most_common() or [("not said", 0)]
    return (
        ""
        if others or licence == "not said"
        else f"license: {json.dumps(licence.lower().replace(' ', '-'))}\n"
    )


def _list_counts(said: Counter[str]) -> str:
    return ", ".join(f"{licence} ({number:,})" for licence, number in said.most_common()) or "none"
