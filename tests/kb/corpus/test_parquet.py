"""Parquet: what is written is read back, what is wrong is refused as in JSON Lines, and damage is one line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmlm.kb.corpus import parquet
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, parse_record
from colmlm.kb.corpus.parquet import read_parquet, write_parquet
from tests.kb.corpora import numbered
from tests.strategies import documents


@settings(max_examples=60, deadline=None)
@given(st.lists(documents(), max_size=4))
def test_written_documents_are_read_back_the_same(written: list[AnnotatedDocument]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        write_parquet(written, path)
        parsed = list(read_parquet(path))
    assert [p.document for p in parsed] == written and not any(p.refusals for p in parsed)


def test_a_file_of_many_batches_is_streamed_in_order(tmp_path: Path):
    many = numbered(2 * parquet._ROWS + 1)
    write_parquet(many, tmp_path / "x.parquet")
    heard: list[int] = []
    assert [p.document for p in read_parquet(tmp_path / "x.parquet", heard.append)] == many
    assert heard == sorted(heard) and heard[-1] == (tmp_path / "x.parquet").stat().st_size and len(heard) == 3


def test_other_writers_types_and_fewer_columns_are_read(tmp_path: Path):
    fact = pa.struct([("start", pa.int32()), ("end", pa.uint16()), ("value", pa.large_string())])
    table = pa.table(
        {
            "text": pa.array(["🏔️ is a peak", "Its <FACT>peak</FACT>"]).dictionary_encode(),
            "id": ["a", "b"],
            "facts": pa.array([[{"start": 8, "end": 12, "value": "peak"}], None], pa.large_list(fact)),
            "other": [1.5, 2.5],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    first, second = read_parquet(tmp_path / "x.parquet")
    assert first.refusals == second.refusals == ()
    assert first.document == AnnotatedDocument("a", "🏔️ is a peak", (FactSpan(8, 12, "peak"),))
    assert second.document == AnnotatedDocument("b", "Its peak", (FactSpan(4, 8, "peak"),))


RECORDS: list[dict[str, Any]] = [
    {"id": None, "text": "x", "facts": []},
    {"id": "a", "text": " ", "facts": []},
    {"id": "b", "text": "a\0b", "facts": []},
    {"id": "c", "text": "Lima", "facts": [{"start": 0, "end": 4, "value": "lima"}, None]},
    {"id": "d", "text": "Lima", "facts": [{"start": 0, "end": 9, "value": "Lima"}]},
    {"id": "e", "text": "Lima", "facts": [{"start": None, "end": 4, "value": "Lima"}]},
    {"id": "f", "text": "Lima", "facts": [{"start": 0, "end": 4, "value": "Lima", "current": " "}]},
    {"id": "g", "text": "Lima", "facts": [{"start": 0, "end": 4, "value": "Lima"}]},
]


def test_the_same_is_refused_as_in_json_lines(tmp_path: Path):
    batch = pa.RecordBatch.from_pylist(RECORDS, schema=parquet._SCHEMA)
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "x.parquet")
    expected = [parse_record(json.loads(json.dumps(r)), f"x.parquet:{n}") for n, r in enumerate(RECORDS, 1)]
    assert list(read_parquet(tmp_path / "x.parquet")) == expected
    assert [len(parsed.refusals) for parsed in expected] == [1, 1, 1, 2, 1, 1, 1, 0]


def test_a_string_that_is_not_utf8_costs_its_own_row_only(tmp_path: Path):
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(
        pa.table({"id": raw, "text": ["x", "y", "z"], "facts": [[], [], []]}), tmp_path / "x.parquet"
    )
    first, second, third = read_parquet(tmp_path / "x.parquet")
    assert first.document is not None and third.document is not None
    assert [(r.document, r.reason) for r in second.refusals] == [("x.parquet:2", "not UTF-8")]


@pytest.mark.parametrize("damage", ["text", "empty", "footer", "half", "page", "columns", "ids"])
def test_a_file_that_cannot_be_read_is_one_refusal_that_names_it(tmp_path: Path, damage: str):
    path = tmp_path / "x.parquet"
    write_parquet(numbered(3000), path)
    content = path.read_bytes()
    if damage in ("columns", "ids"):
        pq.write_table(pa.table({"id": ["1"]} if damage == "columns" else {"id": [1.5], "text": ["x"]}), path)
    else:
        flipped = bytes([content[700] ^ 0xFF])
        path.write_bytes(
            {
                "text": b'{"id": "a"}\n' * 50,
                "empty": b"",
                "footer": content[:-3] + b"xxx",
                "half": content[: len(content) // 2],
                "page": content[:700] + flipped + content[701:],
            }[damage]
        )
    parsed = list(read_parquet(path))
    (refusal,) = parsed[-1].refusals
    assert parsed[-1].document is None and refusal.document.startswith("x.parquet")
    assert "\n" not in refusal.reason and len(parsed) < 3000
