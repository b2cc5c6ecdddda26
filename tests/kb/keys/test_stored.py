"""Stored records: servers of the release before read what this one writes, and this one what the next one does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import IndexFit, SharedSnapshot
from colmlm.kb.lookup import shared
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, ingest

FIT = IndexFit("RR32,IVF64,RaBitQ", 64, 8, recall=0.99, spare=12)
# What the release before knows of each record, and it refuses one with any other name.
BEFORE = {
    "index_fit": {"spec", "lists", "lists_read", "recall"},
    "shared_snapshot": {"file", "sha256", "num_bytes", "spec", "count", "applied_seq", "log_hash"},
}


@pytest.fixture
def keyset_id(settings: Settings, kb: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path) -> int:
    """A keyset whose index was fitted, and whose snapshot is shared."""
    ingest(kb, PERU)
    place = tmp_path / "shared"
    place.mkdir()
    with KnowledgeBase.open(replace(settings, shared_snapshots=str(place))) as server:
        keyset_id = server.keysets.rekey(encoder).keyset_id
        with server.sessions.begin() as session:
            keysets.note_fit(session, keyset_id, FIT)
    return keyset_id


def column(kb: KnowledgeBase, name: str) -> dict[str, Any]:
    with kb.engine.connect() as connection:
        found = connection.execute(text(f"SELECT {name} FROM keyset")).scalar_one()
    assert isinstance(found, dict)
    return found


def write(kb: KnowledgeBase, name: str, record: Mapping[str, Any]) -> None:
    with kb.engine.begin() as connection:
        connection.execute(
            text(f"UPDATE keyset SET {name} = CAST(:said AS jsonb)"), {"said": json.dumps(record)}
        )


def snapshot(kb: KnowledgeBase) -> SharedSnapshot:
    with kb.sessions() as session:
        (found,) = shared.named_snapshots(session).values()
    return found


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.usefixtures("keyset_id")
def test_a_column_that_the_release_before_reads_has_no_name_that_it_does_not_know(
    kb: KnowledgeBase, name: str
) -> None:
    assert set(column(kb, name)) == BEFORE[name]


def test_a_record_is_read_whole(kb: KnowledgeBase, keyset_id: int, tmp_path: Path) -> None:
    assert kb.keysets.head(keyset_id).index_fit == FIT
    assert snapshot(kb).place == str(tmp_path / "shared")


def test_what_a_server_of_the_release_before_wrote_since_is_believed(
    kb: KnowledgeBase, keyset_id: int
) -> None:
    write(kb, "index_fit", column(kb, "index_fit") | {"lists_read": 9})
    write(kb, "shared_snapshot", column(kb, "shared_snapshot") | {"file": "later"})
    assert kb.keysets.head(keyset_id).index_fit == replace(FIT, lists_read=9, spare=None)
    assert (snapshot(kb).file, snapshot(kb).place) == ("later", None)


@pytest.mark.parametrize("prefix", ["", "whole_"])
def test_names_that_only_a_later_release_knows_are_passed_over(
    kb: KnowledgeBase, keyset_id: int, prefix: str
) -> None:
    before = snapshot(kb)
    for name in BEFORE:
        write(kb, f"{prefix}{name}", column(kb, f"whole_{name}") | {"beam": 3})
    assert kb.keysets.head(keyset_id).index_fit == FIT
    assert snapshot(kb) == before
