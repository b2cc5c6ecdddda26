"""No document takes its reader along: each is taken, or refused with the reason, and the next one goes on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import MOST_BREACHES, read_corpus, read_raw
from colmlm.kb.texts.characters import DocumentLimits
from tests.hostile_documents import ANNOTATED, DOCUMENTS, Hostile, parquet_bomb, slow_lines, written
from tests.refusals import raises_code

STRICT = DocumentLimits(memory_mb=256, seconds=4, characters=1_000_000)
CALM = b'{"id": "calm", "text": "Lima."}'


def read(*paths: Path, limits: DocumentLimits = STRICT) -> list[Parsed]:
    return list(read_raw(find_files(paths).files, limits=limits))


def codes(parsed: list[Parsed]) -> set[str]:
    return {refusal.code for one in parsed for refusal in one.refusals}


@pytest.mark.parametrize("hostile", DOCUMENTS, ids=lambda one: one.name)
def test_a_hostile_file_is_taken_or_refused_and_the_next_is_read(hostile: Hostile, tmp_path: Path) -> None:
    calm = tmp_path / "calm.txt"
    calm.write_text("Lima.", encoding="utf-8")
    *before, last = read(written(hostile, tmp_path), calm)
    assert codes(before) <= set(hostile.codes) and (codes(before) or not hostile.codes)
    assert last.document is not None and last.document.text == "Lima."


@pytest.mark.parametrize("hostile", ANNOTATED, ids=lambda one: one.name)
def test_a_hostile_annotated_file_is_taken_or_refused(hostile: Hostile, tmp_path: Path) -> None:
    format_ = {".parquet": "parquet", ".json": "squad"}.get(Path(hostile.name).suffix, "annotated")
    parsed = list(read_corpus(written(hostile, tmp_path), format_, limits=STRICT))
    assert codes(parsed) == set(hostile.codes)
    said = [refusal.reason for one in parsed for refusal in one.refusals]
    assert len(said) <= 1001 and max(map(len, said)) <= 1010


def test_lines_after_one_that_takes_too_much_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    greedy = b"[" + b"[]," * 5_000_000 + b"[]]"
    path.write_bytes(b"\n".join([CALM, b"", b" ", greedy, CALM.replace(b"calm", b"after")]))
    first, refused, last = read(path)
    assert first.document is not None and last.document is not None
    (refusal,) = refused.refusals
    assert (refusal.document, refusal.code) == ("x.jsonl:4", "memory") and "256 MB" in refusal.reason


@pytest.mark.slow(reason="reads files of many megabytes")
def test_a_file_of_many_such_lines_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes((b"[" + b"[]," * 3_000_000 + b"[]]\n") * (MOST_BREACHES + 2) + CALM)
    *refused, last = read(path, limits=DocumentLimits(memory_mb=128))
    assert len(refused) == MOST_BREACHES and "given up" in last.refusals[0].reason


def test_a_text_larger_than_allowed_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps({"id": "large", "text": "x" * 2000}).encode() + b"\n" + CALM)
    large, calm = read(path, limits=DocumentLimits(characters=1000))
    (refusal,) = large.refusals
    assert (refusal.document, refusal.code) == ("large", "size") and "1000 characters" in refusal.reason
    assert calm.document is not None


def test_rows_before_one_that_inflates_too_far_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet_bomb(100, 1000))
    assert len([one for one in read_corpus(path, "parquet", limits=STRICT) if one.document]) == 100


class Enough(Exception):
    pass


def test_whoever_reads_is_heard_while_a_document_takes_its_time(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(slow_lines())
    heard = []

    def on_bytes(_: int) -> None:
        heard.append(children())
        if len(heard) == 3:
            raise Enough

    with pytest.raises(Enough):
        list(read_raw(find_files([path]).files, on_bytes=on_bytes))
    assert len(heard[-1] - children()) == 1, "the reading process is gone"


def test_a_reading_that_is_left_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(CALM + b"\n" + CALM)
    before = children()
    reading: Iterator[Parsed] = read_raw(find_files([path]).files)
    next(reading)
    assert len(children() - before) == 1
    del reading
    assert children() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_reading_process_knows_no_secret_and_no_file_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_DATABASE_URL", "postgresql://a:secret@b/c")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gzip.py").write_text("raise SystemExit('taken over')", encoding="utf-8")
    (tmp_path / "x.jsonl").write_bytes(CALM)
    before = children()
    reading = read_raw(find_files([Path("x.jsonl")]).files)
    with (tmp_path / "ours").open("wb") as ours:
        os.set_inheritable(ours.fileno(), True)
        assert next(reading).document is not None
        (process,) = children() - before
        proc = Path("/proc") / str(process)
        assert b"secret" not in (proc / "environ").read_bytes()
        opened = set()
        for one in (proc / "fd").iterdir():
            with suppress(FileNotFoundError):  # it closes files meanwhile
                opened.add(str(one.readlink()))
        assert str(tmp_path / "ours") not in opened
        assert "Max core file size        0" in (proc / "limits").read_text()
    del reading


def test_a_reader_that_cannot_start_is_no_fault_of_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    path = tmp_path / "x.txt"
    path.write_text("Lima.", encoding="utf-8")
    with raises_code("ReaderUnavailable", match="no python"):
        read(path)


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[1]) == os.getpid() and words[0] != "Z":
            found.add(int(stat.parent.name))
    return found
