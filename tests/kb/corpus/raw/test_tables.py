"""Rows of tables become documents; a row that cannot be read is refused with its line, and the next are read."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, Refusal
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import read_raw


def read(
    path: Path, content: str | bytes, fields: FieldNames | None = None, encoding: str | None = None
) -> tuple[list[AnnotatedDocument], list[Refusal]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    parsed = list(read_raw(find_files([path]).files, fields=fields, encoding=encoding))
    return [p.document for p in parsed if p.document], [r for p in parsed for r in p.refusals]


def test_a_row_is_a_document_by_the_usual_names_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "halls.csv"
    rows = 'ID,Title,text,URL,stars\r\n7,"Hall, old","It opened\r\nin ""1834"".",https://e.example/7,3\r\n8,,Shut.,,\r\n'
    documents, refusals = read(path, rows)
    assert refusals == []
    assert documents == [
        AnnotatedDocument("7", 'It opened\nin "1834".', title="Hall, old", uri="https://e.example/7"),
        AnnotatedDocument("8", "Shut.", uri=path.as_uri()),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "id;text\n1;Lima, big.\n"),
        ("x.tsv", "id\ttext\n1\tLima, big.\n"),
        ("x.csv", "\ufeffid,text\n\n1,'Lima, big.'\n".replace("'", '"')),
        ("x.csv.gz", gzip.compress(b"id;text\n1;Lima, big.\n", mtime=0)),
        ("x.tsv.bz2", bz2.compress(b"id\ttext\n1\tLima, big.\n")),
        ("x.csv", 'id,text\n1,"Lima, big."\n'.encode("utf-16")),
    ],
)
def test_a_table_is_read_with_the_separator_and_the_packing_that_it_has(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    documents, refusals = read(tmp_path / name, content)
    assert ([(d.external_id, d.text) for d in documents], refusals) == ([("1", "Lima, big.")], [])


def test_fields_are_those_that_are_named_and_an_id_is_not_needed(tmp_path: Path) -> None:
    fields = FieldNames("sku", "name", "description")
    (lamp,), _ = read(tmp_path / "a.csv", "sku,id,name,description\nA1,9,Lamp,It shines.\n", fields)
    assert (lamp.external_id, lamp.title, lamp.text) == ("A1", "Lamp", "It shines.")
    for name, content in (
        ("b.csv", "title,content\nLima,Big.\nLima,Old.\n"),
        ("b.jsonl", '{"title": "Lima", "body": "Big."}\n{"title": "Lima", "body": "Old."}\n'),
    ):
        (big, old), refusals = read(tmp_path / name, content)
        assert refusals == [] and big.external_id != old.external_id and len(big.external_id) == 16
        assert [d.external_id for d in read(tmp_path / name, content)[0]] == [
            big.external_id,
            old.external_id,
        ]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
def test_columns_that_are_not_there_are_answered_with_those_that_are(tmp_path: Path, name: str) -> None:
    record = {"code": "1", "words": "Lima"}
    path = tmp_path / name
    if name == "x.parquet":
        pq.write_table(pa.Table.from_pylist([record]), path)
        content: str | bytes = path.read_bytes()
    else:
        content = json.dumps(record) if name == "x.jsonl" else "code,words\n1,Lima\n"
    for fields, missing in ((None, "'text'"), (FieldNames(text="words", id="no"), "'no'")):
        documents, (refusal,) = read(path, content, fields)
        assert documents == [] and f"no field {missing}; there are 'code', 'words'" in refusal.reason
    assert "--text-field" in read(path, content)[1][0].reason
    (lima,), _ = read(path, content, FieldNames(id="code", text="words"))
    assert (lima.external_id, lima.text) == ("1", "Lima")


def test_bad_rows_are_refused_with_their_line_and_the_next_are_read(tmp_path: Path) -> None:
    rows = [
        b"id,text", b'1,"two', b'lines"', b"2,a,b", b"3", b"4,caf\xe9", b"5,\0", b'6,"a"b', b"7,", b",x", b"1,again",
        b"8,Lima",
    ]  # fmt: skip
    documents, refusals = read(tmp_path / "x.csv", b"\n".join(rows))
    assert [(d.external_id, d.text) for d in documents] == [("1", "two\nlines"), ("8", "Lima")]
    assert [(r.document, r.reason[:12]) for r in refusals] == [
        ("x.csv:4", "3 cells unde"), ("x.csv:5", "1 cell under"), ("x.csv:6", "not UTF-8; c"),
        ("x.csv:7", "it has a NUL"), ("x.csv:8", "no row of a "), ("7", "no text ('te"), ("x.csv:10", "no document "),
        ("1", "a second doc"),
    ]  # fmt: skip
    assert read(tmp_path / "x.csv", b"id,text\n4,caf\xe9", encoding="cp1252")[0][0].text == "café"


def test_what_follows_damage_is_said_not_to_be_read(tmp_path: Path) -> None:
    rows = "id,text\n" + "".join(f"{n},{n:0500}\n" for n in range(3000))
    whole = gzip.compress(rows.encode())
    documents, (refusal,) = read(tmp_path / "x.csv.gz", whole[: len(whole) // 2])
    assert len(documents) > 100 and f"after line {len(documents) + 1}; the rest" in refusal.reason
    documents, (refusal,) = read(tmp_path / "x.csv", 'id,text\n1,Lima\n2,"Cusco\n3,Puno\n')
    assert [d.text for d in documents] == ["Lima"] and refusal.document == "x.csv:3"
    assert "binary" not in refusal.reason and "unexpected end of data" in refusal.reason
    assert "are named 'text'" in read(tmp_path / "x.csv", "id,text,text\n1,a,b\n")[1][0].reason


def test_rows_of_parquet_are_documents_and_other_columns_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = {
        "id": [1, 2, 3],
        "text": ["Lima\r\n", "Cusco", None],
        "revision": [7, None, 9],
        "vector": [[0.1], [0.2], [0.3]],
    }
    pq.write_table(pa.table(rows), path)
    documents, (refusal,) = read(path, path.read_bytes())
    assert documents == [
        AnnotatedDocument("1", "Lima\n", uri=path.as_uri(), revision="7"),
        AnnotatedDocument("2", "Cusco", uri=path.as_uri()),
    ]
    assert (refusal.document, refusal.reason[:7]) == ("3", "no text")
    assert "not a Parquet file" in read(path, b"PAR1 no")[1][0].reason
    pq.write_table(pa.table({"id": ["1"], "text": ["Lima"], "facts": [[]]}), path)
    assert "--format parquet" in read(path, path.read_bytes())[1][0].reason
