"""Write parts of the evaluation data as files that `colmlm` reads.

`python -m colmlm.lab.paper.excerpts PART DATA OUT [--rows N]`; `lab/paper/Makefile` calls it.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def lines(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield the first records of JSON Lines, gzipped or not."""
    with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
        yield from (json.loads(line) for line in islice(file, rows) if line.strip())


def spread(source: Path, rows: int | None) -> list[Record]:
    """Give records of JSON Lines at even distances. Neighbours are alike, so this samples every part."""
    return _evenly(list(lines(source, None)), rows)


def covered_articles(source: Path, rows: int | None, *, by: Path) -> list[Record]:
    """Give articles whose subjects have a lead among the vital articles, which says some of it in other words."""
    titles = {lead["title"].casefold() for lead in leads(by, None)}
    return [article for article in lines(source, None) if article["title"].casefold() in titles][:rows]


def questions(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield questions of PopQA's rows with passages, at even distances, since the rows are sorted by relation."""
    for row in _rows(source, rows):
        yield {"question": row["question"], "possible_answers": row["possible_answers"]}


def passages(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield, as documents, the passages of the rows that `questions` takes, each once."""
    seen = set()
    for row in _rows(source, rows):
        for passage in row["paragraphs"]:
            name = sha256(f"{passage['title']}\n{passage['text']}".encode()).hexdigest()[:16]
            if name not in seen and passage["text"].strip():
                seen.add(name)
                yield {"id": name, "title": passage["title"], "text": passage["text"]}


def leads(source: Path, rows: int | None) -> Iterator[Record]:
    """Yield the leads of the vital articles, which are stored by title, as documents."""
    articles = json.loads(source.read_text(encoding="utf-8")).items()
    for name, article in islice(articles, rows):
        if article["extract"].strip():
            yield {"id": name, "title": article["title"], "text": article["extract"]}


def leads_of(source: Path, rows: int | None, *, articles: Path) -> list[Record]:
    """Give the leads of the articles that `covered` gives."""
    titles = {article["title"].casefold() for article in covered_articles(articles, rows, by=source)}
    return [lead for lead in leads(source, None) if lead["title"].casefold() in titles]


def _rows(source: Path, rows: int | None) -> list[Record]:
    return _evenly(json.loads(source.read_text(encoding="utf-8")), rows)


def _evenly(found: list[Record], rows: int | None) -> list[Record]:
    if rows is None or rows >= len(found):
        return found
    return [found[number * len(found) // rows] for number in range(rows)]


def _parts(data: Path) -> dict[str, Callable[[int | None], Iterable[Record]]]:
    """Give what makes each part of the data in this folder, from a number of rows (None: all)."""
    popqa = data / "popqa" / "popqa_with_passages_500.json"
    vital = data / "vital_articles" / "summaries_en-us.json"
    articles = data / "simplewiki" / "eval_1k.jsonl.gz"
    return {
        "squad": lambda rows: spread(data / "squad" / "dev.jsonl", rows),
        "popqa-passages": lambda rows: passages(popqa, rows),
        "popqa-questions": lambda rows: questions(popqa, rows),
        "vital": lambda rows: leads(vital, rows),
        "leads": lambda rows: leads_of(vital, rows, articles=articles),
        "covered": lambda rows: covered_articles(articles, rows, by=vital),
        "articles": lambda rows: lines(articles, rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=sorted(_parts(Path())))
    parser.add_argument("data", type=Path, help="the folder of the evaluation data")
    parser.add_argument("out", type=Path, help="the JSON Lines file to write")
    parser.add_argument("--rows", type=int, help="take this many rows; default: all")
    asked = parser.parse_args()
    try:
        records: Iterable[Mapping[str, Any]] = _parts(asked.data)[asked.part](asked.rows)
        text = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    except FileNotFoundError as error:
        parser.error(f"{error.filename} is missing; name the folder of the evaluation data")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
