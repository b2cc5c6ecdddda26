"""An import that the program's release before began goes on, and only with the store that it began with."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import text

from colmlm.kb.corpus.release import ENTRIES, IDS, INDEX, Release
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import copy_keys
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.log import audit
from colmlm.kb.lookup.index import SealedIndex
from colmlm.kb.releases.releases import FactsOfRelease, StoredPieces
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ADOPTED
from colmlm.lab.bench.synthetic import make_release, synthetic_keys
from tests.refusals import raises_code

NUM, DIM, BEGUN = 600, 32, 400
WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", synthetic_keys(NUM, DIM, seed=1))
    return tmp_path / "release"


def begin(kb: KnowledgeBase, release: Path, facts: int, keys: int = 0) -> None:
    """Stores so many facts and keys as the release before did: known by their order, and of no index by name."""
    named = [line.rpartition("\t")[2] for line in (release / IDS).read_text().splitlines()]
    order = hashlib.sha256("".join(f"{entry}\n" for entry in named).encode()).hexdigest()
    with kb.sessions.begin() as session:
        (piece,) = Release(release).pieces(NUM)
        FactsOfRelease(order, "wiki", **WHO).store(session, 0, piece[:facts])
    if not keys:
        return
    with kb.sessions.begin() as session:
        made_by = CheckpointInfo(f"release-{order[:16]}", "release", DIM)
        keyset_id = keysets.create_keyset(session, made_by, None, "tester").keyset_id
    with kb.sessions.begin() as session:
        stored = StoredPieces.read(session, order, "wiki")
        numbers, keys_ND = next(SealedIndex(release / INDEX).blocks(keys))
        pending = audit.begin_change(session, "tester", "test")
        first = copy_keys(session, keyset_id, ADOPTED, stored.fact_ids(numbers).tolist(), keys_ND)
        payload = {
            "keyset": keyset_id, "release": order, "corpus": "wiki", "upto": keys, "keys": [first, first + keys - 1]
        }  # fmt: skip
        audit.append_change(session, pending, "key", num_facts=keys, payload=payload)


def counted(kb: KnowledgeBase, table: str) -> int:
    with kb.engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


@pytest.mark.parametrize(("facts", "keys"), [(BEGUN, 0), (NUM, 0), (NUM, 250), (NUM, NUM)])
def test_an_import_goes_on_where_the_release_before_was(
    kb: KnowledgeBase, release: Path, facts: int, keys: int
) -> None:
    begin(kb, release, facts, keys)
    report = kb.releases.take(release, "wiki", **WHO)
    assert (report.there, report.facts, report.adopted) == (facts, NUM - facts, NUM - keys)
    assert counted(kb, "fact") == counted(kb, "fact_key") == NUM
    assert [keyset.num_keys for keyset in kb.keysets.all()] == [NUM]
    again = kb.releases.take(release, "wiki", **WHO)
    assert (again.there, again.facts, again.adopted) == (NUM, 0, 0)


def test_another_edition_of_the_same_entries_is_refused_before_anything_is_stored(
    kb: KnowledgeBase, release: Path
) -> None:
    begin(kb, release, BEGUN)
    with closing(sqlite3.connect(release / ENTRIES)) as entries, entries:
        statement = "UPDATE entries SET data = json_set(data, '$.fact_span', 'Cusco') WHERE entry_id = ?"
        assert entries.execute(statement, ("e000000017",)).rowcount == 1
    with raises_code("InvalidRelease", match="e000000017 is stored from another edition"):
        kb.releases.take(release, "wiki", **WHO)
    assert counted(kb, "fact") == BEGUN


def test_keys_of_another_index_are_refused(kb: KnowledgeBase, release: Path, tmp_path: Path) -> None:
    begin(kb, release, NUM, 250)
    others: npt.NDArray[np.float32] = synthetic_keys(NUM, DIM, seed=2)
    make_release(tmp_path / "other", others)
    (tmp_path / "other" / INDEX).replace(release / INDEX)
    with raises_code("InvalidRelease", match="from another index"):
        kb.releases.take(release, "wiki", **WHO)
    assert counted(kb, "fact_key") == 250
