"""A corpus as a dataset of the Hugging Face hub: Parquet files, and a card that says what is in them.

`datasets.load_dataset` reads the folder as it is, and `read_parquet` its files.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.parquet import write_parquet

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
{documents:,} documents with {facts:,} facts, exported by colmlm. A fact is a span of its document's text, in code
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
    """Write the documents into a folder, which is there once it is whole, and give their number.

    Raises `FileExistsError` where something is there.
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
        name=name, data=DATA, documents=written, facts=facts, licence=_tag(said), licences=_listed(said)
    )
    (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
    unfinished.replace(folder)
    return written


def _parts(documents: Iterable[AnnotatedDocument]) -> Iterator[list[AnnotatedDocument]]:
    """Yield the documents of each file, which are in memory at once; one empty part where there are none."""
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


def _tag(said: Counter[str]) -> str:
    """Give the card's licence in the hub's spelling, where all documents have one and the same."""
    (licence, _), *others = said.most_common() or [("not said", 0)]
    return (
        ""
        if others or licence == "not said"
        else f"license: {json.dumps(licence.lower().replace(' ', '-'))}\n"
    )


def _listed(said: Counter[str]) -> str:
    return ", ".join(f"{licence} ({number:,})" for licence, number in said.most_common()) or "none"
