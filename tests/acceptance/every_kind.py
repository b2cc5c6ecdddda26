"""One folder with a file of every kind that is read: facts with right offsets from each, and a sync of three changes.

`python -m tests.acceptance.every_kind` does it in a home of its own, with the released annotators and checkpoint, and
prints what came of it. It ends with 1 where a file gave no fact, or a fact does not stand where it says.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kb.corpus.raw.packed import docx, epub
from tests.kb.corpus.raw.pdfs import pdf

CORPUS = "every-kind"
Run = Callable[..., Any]

PAGE = "<page><title>{0}</title><ns>0</ns><id>77</id><revision><id>5</id><text>{1}</text></revision></page>"
DUMP = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo>'
    f"<base>https://wiki.example.org/wiki/Start</base></siteinfo>{PAGE}</mediawiki>"
)


def record(name: str, sentence: str) -> dict[str, str]:
    return {"id": f"{name}-1", "title": name, "text": sentence}


def line(name: str, sentence: str) -> bytes:
    return (json.dumps(record(name, sentence)) + "\n").encode()


def book(name: str, sentence: str) -> bytes:
    return epub(name, {"one.xhtml": f"<html><body><h1>{name}</h1><p>{sentence}</p></body></html>"})


# What makes the file of a kind out of the name of a building and a sentence about it.
MAKERS: Mapping[str, Callable[[str, str], bytes]] = {
    "library.txt": lambda name, said: f"{name}\n\n{said}\n".encode(),
    "harbour.md": lambda name, said: f"# {name}\n\n**{said}**\n".encode(),
    "museum.html": lambda name, said: f"<nav>x</nav><h1>{name}</h1><p>{said}</p>".encode(),
    "page.xhtml": lambda name, said: f"<html><body><h1>{name}</h1><p>{said}</p></body></html>".encode(),
    "lighthouse.pdf": lambda name, said: pdf([name], [said]),
    "school.docx": lambda name, said: docx([said], heading=name),
    "church.epub": book,
    "station.jsonl": line,
    "mill.jsonl.gz": lambda name, said: gzip.compress(line(name, said)),
    "bakery.ndjson.bz2": lambda name, said: bz2.compress(line(name, said)),
    "theatre.csv": lambda name, said: f'id,title,text\n{name}-1,{name},"{said}"\n'.encode(),
    "market.tsv": lambda name, said: f"id\ttitle\ttext\n{name}-1\t{name}\t{said}\n".encode(),
    "bridge.parquet": lambda name, said: parquet(record(name, said)),
    "castle.xml": lambda name, said: DUMP.format(name, f"'''{said}'''").encode(),
    "wiki_00": lambda name, said: line(name, said),
}


def parquet(row: dict[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row]), sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def fill(folder: Path) -> None:
    """Makes a file of every kind."""
    folder.mkdir()
    for number, (name, make) in enumerate(MAKERS.items()):
        (folder / name).write_bytes(make(*about(name, 1801 + 7 * number)))


def about(name: str, year: int) -> tuple[str, str]:
    building = f"{name.partition('.')[0].capitalize()} of Lundvik"
    return building, f"The {building} was opened by Hanne Falk in {year}."


def change(folder: Path) -> None:
    """Makes one file new, changes one, and takes one away."""
    (folder / "fountain.txt").write_text("Fountain\n\nThe Fountain of Lundvik was built in 1999.\n")
    (folder / "library.txt").write_bytes(MAKERS["library.txt"](*about("library.txt", 1977)))
    (folder / "museum.html").unlink()


def facts_by_document(run: Run) -> dict[str, list[str]]:
    """Gives the values of each document's facts. Raises `AssertionError` where one does not stand where it says."""
    found: dict[str, list[str]] = {}
    for exported in map(json.loads, run("corpus", "export", CORPUS).out.splitlines()):
        text = exported["text"]
        for fact in exported["facts"]:
            assert text[fact["start"] : fact["end"]] == fact["value"], (exported["id"], fact)
        found[exported["id"]] = [fact["value"] for fact in exported["facts"] if not fact.get("deleted")]
    return found


def rehearse(run: Run, folder: Path) -> dict[str, Any]:
    """Syncs a corpus with a folder of every kind, changes three files, and syncs again. Gives what came of it."""
    fill(folder)
    sync = ("corpus", "sync", folder, "--corpus", CORPUS, "--json")
    first = run(*sync)
    before = facts_by_document(run)
    change(folder)
    dry = run(*sync, "--dry-run")
    second = run(*sync, "--yes", "--reason", "three changes")
    again = run(*sync)
    told = {"first": first, "dry run": dry, "second": second, "again": again}
    return {"facts": before, "facts after": facts_by_document(run)} | {
        name: {"code": ran.code, **ran.json} for name, ran in told.items()
    }


def main() -> int:
    from tests.cli.conftest import invoke

    with tempfile.TemporaryDirectory() as place:
        os.environ["COLMLM_HOME"] = str(Path(place) / "home")
        done = rehearse(invoke, Path(place) / "folder")
        invoke("db", "down")
    for name, values in done["facts"].items():
        print(f"{name:<20} {len(values)} facts, all in place: {', '.join(values)}")
    for name in ("first", "dry run", "second", "again"):
        kept = ("code", "files", "documents", "facts", "deleted_facts", "new", "changed", "gone", "refused")
        print(f"{name}: {json.dumps({one: done[name][one] for one in kept})}")
    print(f"after: {json.dumps(done['facts after'])}")
    return int(len(done["facts"]) < len(MAKERS) or not all(done["facts"].values()))


if __name__ == "__main__":
    sys.exit(main())
