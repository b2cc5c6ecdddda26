"""Which files are taken: those of a directory in one order, with a word on every one that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.raw.files import find_files, walk_folder
from colmlm.kb.corpus.raw.reading import read_corpus, read_raw
from tests.hostile_documents import swapping

SWAPPED = "cannot be read: something else is there now than when the directory was read"


def write(path: Path, content: bytes = b"Lima") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_directory_gives_its_readable_files_sorted_and_passes_over_the_rest(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.MD", "a/b/d.jsonl.gz", ".hidden/e.txt", "a/.f.txt", "g.png", "a/h.PNG", "i"):
        write(tmp_path / name)
    found = find_files([tmp_path])
    assert [file.external_id for file in found.files] == ["b.txt", "a/c.MD", "a/b/d.jsonl.gz"]
    assert [file.kind for file in found.files] == ["text", "markdown", "records"]
    assert found.passed_over == {".png": 2, "no suffix": 1} and found.refusals == []


def test_what_is_named_and_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    inputs = [tmp_path / "pipe.txt", write(tmp_path / "x.xlsx"), tmp_path / "none.txt"]
    reasons = [refusal.reason for refusal in find_files(inputs).refusals]
    assert reasons[0] == "not a file" and "no reader" in reasons[1] and "No such file" in reasons[2]


def test_links_end_no_walk_and_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "a.txt")
    outside = write(tmp_path / "secret.txt")
    (tmp_path / "docs" / "loop").symlink_to(tmp_path / "docs")
    (tmp_path / "docs" / "out.txt").symlink_to(outside)
    found = find_files([tmp_path / "docs"])
    assert [file.external_id for file in found.files] == ["a.txt"]
    assert [(r.document, "symbolic link" in r.reason) for r in found.refusals] == [("out.txt", True)]
    assert [file.external_id for file in find_files([tmp_path / "docs" / "out.txt"]).files] == ["out.txt"]


def test_a_name_that_is_no_text_is_refused_in_words_that_can_be_printed(tmp_path: Path) -> None:
    with (tmp_path / os.fsdecode(b"caf\xe9.txt")).open("w") as file:
        file.write("x")
    (refusal,) = find_files([tmp_path]).refusals
    assert refusal.document == "caf\\xe9.txt" and "not UTF-8" in refusal.reason


def test_a_folder_whose_name_is_no_text_is_named_where_its_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    listed = write(folder / "a.txt")
    reason = f"its path {tmp_path}/caf\\xe9/a.txt is not UTF-8; rename it"
    for inputs in (folder, listed):
        found = find_files([inputs])
        assert found.files == [] and found.refusals == [Refusal("a.txt", 0, reason)]
    (parsed,) = read_corpus(listed, "annotated")
    assert parsed.refusals == (Refusal("a.txt", 0, reason),)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "wiki.xml"])
@pytest.mark.parametrize("swap", ["link", "pipe", "file"])
def test_what_took_a_listed_file_s_place_is_not_read(tmp_path: Path, name: str, swap: str) -> None:
    outside, folder = write(tmp_path / "secret", b"secret"), tmp_path / "docs"
    listed = write(folder / name, b"<mediawiki/>")
    found = find_files([folder])
    listed.rename(tmp_path / "before")
    if swap == "link":
        listed.symlink_to(outside)
    elif swap == "pipe":
        os.mkfifo(listed)
    else:
        write(listed, b"secret")
    (parsed,) = read_raw(found.files)
    (refusal,) = parsed.refusals
    assert parsed.document is None and (refusal.document, refusal.reason) == (name, SWAPPED)


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "in" / "a.txt")
    write(tmp_path / "outside" / "a.txt")
    found = find_files([tmp_path / "docs"])
    (tmp_path / "docs" / "in").rename(tmp_path / "docs" / "was")
    (tmp_path / "docs" / "in").symlink_to(tmp_path / "outside")
    (parsed,) = read_raw(found.files)
    assert parsed.document is None and parsed.refusals[0].reason == SWAPPED


def test_a_folder_that_becomes_a_link_during_the_walk_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "a.txt")
    write(tmp_path / "docs" / "in" / "b.txt")
    write(tmp_path / "outside" / "b.txt", b"secret")
    refusals: list[Refusal] = []
    walked = walk_folder(tmp_path / "docs", refusals)
    assert next(walked)[0] == "a.txt"
    (tmp_path / "docs" / "in").rename(tmp_path / "was")
    (tmp_path / "docs" / "in").symlink_to(tmp_path / "outside")
    assert list(walked) == []
    assert [(refusal.document, refusal.reason) for refusal in refusals] == [("in", SWAPPED)]


def test_no_walk_beside_such_swaps_finds_or_reads_a_file_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "docs" / "in" / "deep", tmp_path / "outside"
    for number in range(20):
        write(inside / f"{number}.txt", b"inside")
        write(outside / "deep" / f"{number}.txt", b"outside")
    theirs = {path.stat().st_ino for path in outside.rglob("*.txt")}
    found, texts = set(), set()
    with swapping(tmp_path / "docs" / "in", outside):
        for turn in range(400):
            files = find_files([tmp_path / "docs"]).files
            found |= {path.origin.inode for path in files if path.origin is not None}
            if turn % 20 == 0:
                texts |= {one.document.text for one in read_raw(files) if one.document is not None}
    assert found and not found & theirs and "outside" not in texts
