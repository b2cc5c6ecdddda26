"""Raw files become documents whose text is what was read; what is none is refused by itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, Refusal
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import read_raw
from tests.kb.corpus.raw.pdfs import pdf

MARKDOWN = """---
title: 'The harbour'
---
# Old name

The harbour of **Lundvik** has
[nine](http://x.example) piers &amp; a `crane`.\\
It is deep.

- one
- two

| year | ships |
|------|-------|
| 1834 | 12    |

```
x  = 1
```
<p>End <b>here</b>.</p>
"""
HTML = """<!doctype html><html><head><meta charset="iso-8859-1"><title>The Museum | Site</title>
<style>p { color: red }</style></head><body><nav>Home</nav><main><h1>The
 Museum</h1><p>The museum of <i>Lundvik</i> opened in&nbsp;1902,<br>in a caf\xe9.</p>
<ul><li>Monday: closed</li><li>Sunday: <a href=x>open</a></li></ul><table><tr><th>a<td>1</table>
<p hidden>secret</p><aside>Ads</aside><script>var x</script></main><footer>(c)</footer></body></html>"""


def read(path: Path, content: bytes, encoding: str | None = None) -> AnnotatedDocument | str:
    """The document of a file with this content, or why it was refused."""
    path.write_bytes(content)
    (parsed,) = read_raw(find_files([path]).files, encoding=encoding)
    if parsed.document is not None:
        return parsed.document
    (refusal,) = parsed.refusals
    assert refusal.document in (path.name, f"{path.name}:1")
    return refusal.reason


def document(path: Path, content: bytes, encoding: str | None = None) -> AnnotatedDocument:
    got = read(path, content, encoding)
    assert isinstance(got, AnnotatedDocument), got
    return got


@pytest.mark.parametrize(
    "content",
    [b"Caf\xc3\xa9.\r\nLima.\r", b"\xef\xbb\xbfCaf\xc3\xa9.\nLima.\n", "Café.\nLima.\n".encode("utf-16")],
)
def test_text_is_taken_in_any_encoding_that_it_states(tmp_path: Path, content: bytes) -> None:
    got = document(tmp_path / "old_town-notes.txt", content)
    assert (got.text, got.title) == ("Café.\nLima.\n", "old town notes")
    assert got.uri == (tmp_path / "old_town-notes.txt").as_uri() and got.facts == ()


def test_an_encoding_is_never_guessed(tmp_path: Path) -> None:
    assert "byte 0xe9 at 3; convert it to UTF-8" in str(read(tmp_path / "x.txt", b"caf\xe9 in Lima"))
    assert document(tmp_path / "x.txt", b"caf\xe9 in Lima", "cp1252").text == "café in Lima"


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("x.txt", b"", "empty"),
        ("x.md", b" \n\t\n", "empty"),
        ("x.html", b"<html><body><script>x</script></body></html>", "no text"),
        ("x.html", b"<meta charset=klingon><p>x", "'klingon'"),
        ("x.html", b"<div>" * 5000 + b"x", "nested"),
        ("x.txt", bytes(range(256)) * 4, "binary"),
        ("x.txt", b"\x01\x02\x03abc" * 9, "binary"),
        ("x.pdf", pdf(["Lima"], encrypted=True), "encrypted"),
        ("x.pdf", pdf([]), "without a text layer, so probably scanned"),
        ("x.pdf", pdf(["Lima"])[:-40], "not a PDF"),
        ("x.pdf", b"Lima", "not a PDF"),
        ("x.jsonl", b"{no", "not JSON"),
        ("x.jsonl", b"[1]", "not a JSON object"),
        ("x.jsonl.gz", b"no gzip", "damaged gzip"),
    ],
)
def test_what_is_no_document_is_refused_with_its_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    (parsed,) = read_raw(find_files([path]).files)
    assert parsed.document is None and reason in parsed.refusals[0].reason


def test_markdown_reads_as_its_page_does(tmp_path: Path) -> None:
    got = document(tmp_path / "x.md", MARKDOWN.encode())
    assert got.title == "The harbour"
    assert got.text == (
        "Old name\n\nThe harbour of Lundvik has nine piers & a crane.\nIt is deep.\n\none\ntwo\n\n"
        "year | ships\n1834 | 12\n\nx  = 1\n\nEnd here."
    )


def test_a_heading_that_is_the_title_is_not_said_twice(tmp_path: Path) -> None:
    got = document(tmp_path / "x.md", b"# The *lake*\n\nIt is deep.\n")
    assert (got.title, got.text) == ("The lake", "It is deep.")


def test_html_gives_the_main_part_of_the_page(tmp_path: Path) -> None:
    got = document(tmp_path / "x.html", HTML.encode("iso-8859-1"))
    assert got.title == "The Museum"
    assert got.text == (
        "The museum of Lundvik opened in 1902,\nin a café.\n\nMonday: closed\nSunday: open\n\na | 1"
    )


def test_the_lines_of_a_pdf_become_paragraphs(tmp_path: Path) -> None:
    lines = [
        "The lighthouse", "The lighthouse of Lundvik was built in 1871 and", "stands forty metres high above the bay.",
        "Its keeper", "Hanne Falk was its last keeper.",
    ]  # fmt: skip
    got = document(tmp_path / "x.pdf", pdf(lines, title="Lighthouses"))
    assert got.title == "Lighthouses"
    assert got.text == f"{lines[0]}\n{lines[1]} {lines[2]}\n{lines[3]}\n{lines[4]}"
    paged = document(tmp_path / "x.pdf", pdf([], ["Lima", "Lima is a big city by the sea."], ["End."]))
    assert (paged.title, paged.text) == ("Lima", "\n\f\nLima\nLima is a big city by the sea.\n\f\nEnd.")
    assert document(tmp_path / "x.pdf", pdf(["Lima"], title="Microsoft Word - x.doc")).title == "x"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("The lighthouse\n\nIt was built in 1871.\n", "The lighthouse"),
        ("THE LIGHTHOUSE\n==============\nIt was built in 1871.\n", "THE LIGHTHOUSE"),
        (
            "The keeper of the light\nTitle: The lighthouse\nAuthor: H. Falk\n\nIt was built.\n",
            "The lighthouse",
        ),
        ("\n\n  What was it?  \n\nA light.", "What was it?"),
        ("It was built in 1871.\n\nIt stands.", "x"),
        ("The lighthouse\nwas built in 1871.", "x"),
        ("The lighthouse", "x"),
        ("1871\n\nIt was built.", "x"),
        ("So many words that this is no heading of a text but its first sentence\n\nIt was built.", "x"),
    ],
)
def test_a_text_is_named_by_its_heading_or_else_by_its_file(tmp_path: Path, text: str, title: str) -> None:
    got = document(tmp_path / "x.txt", text.encode())
    assert (got.title, got.text) == (title, text)


def test_a_page_without_a_title_is_named_by_its_first_heading(tmp_path: Path) -> None:
    assert document(tmp_path / "x.md", b"## The lake\n\nIt is deep.\n").title == "The lake"
    assert document(tmp_path / "x.html", b"<h2>The lake</h2><p>It is deep.").title == "The lake"
    lines = ["The lighthouse", "The lighthouse of Lundvik was built in 1871 and"]
    assert document(tmp_path / "x.pdf", pdf(lines)).title == "The lighthouse"


def test_records_keep_their_ids_and_addresses(tmp_path: Path) -> None:
    records = [
        {"id": 7, "title": "Lima", "text": "Lima is <FACT>big</FACT>.\r\n", "url": "https://e.example/lima"},
        {"id": "b", "text": "Cusco."},
        {"id": "c", "text": "x", "facts": [{"start": 0}]},
        {"id": "d"},
    ]
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    heard: list[int] = []
    lima, cusco, annotated, textless = read_raw(find_files([path]).files, on_bytes=heard.append)
    assert lima.document == AnnotatedDocument(
        "7", "Lima is <FACT>big</FACT>.\n", title="Lima", uri="https://e.example/lima"
    )
    assert cusco.document is not None and cusco.document.uri == path.as_uri()
    assert "annotated already" in annotated.refusals[0].reason and "no text" in textless.refusals[0].reason
    assert heard == sorted(heard) and heard[-1] == path.stat().st_size
    texts = [one.document for one in read_raw(find_files([path]).files, fields=FieldNames(text="text"))]
    assert [one and (one.external_id, one.text, one.facts) for one in texts[2:]] == [("c", "x", ()), None]


def test_a_damaged_archive_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": str(n), "text": f"{n:0500}"}) + "\n" for n in range(3000))
    whole = gzip.compress(lines.encode())
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    *taken, last = read_raw(find_files([path]).files)
    assert len(taken) > 100 and all(parsed.document for parsed in taken)
    assert f"after line {len(taken)}" in last.refusals[0].reason


def test_one_bad_file_and_one_id_given_twice_do_not_end_the_others(tmp_path: Path) -> None:
    for name in ("a/x.txt", "b/x.txt", "b/y.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Lima" if name != "a/x.txt" else "", encoding="utf-8")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "y.txt").write_text("Cusco")
    parsed = list(read_raw(find_files([tmp_path / name for name in "abc"]).files))
    assert [p.document.external_id for p in parsed if p.document] == ["x.txt", "y.txt"]
    refused: list[Refusal] = [refusal for p in parsed for refusal in p.refusals]
    assert [(r.document, r.reason[:8]) for r in refused] == [("x.txt", "the file"), ("y.txt", "a second")]
