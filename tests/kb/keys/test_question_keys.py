"""Whether a keyset has question keys is asked with each fact that is added, and does not read all keys each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb.keys.calibration import seek_question_keys
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import synthetic_keys
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, ingest, numbered

NUM = 6_000
_READ = text("""
SELECT sum(idx_blks_read + idx_blks_hit) FROM pg_statio_user_indexes WHERE relname LIKE 'fact\\_key\\_%'
""")


@pytest.fixture
def keyset_id(kb: KnowledgeBase, encoder: FakeEncoder) -> int:
    """A keyset with a context key of each of many facts, and no question key."""
    ingest(kb, *numbered(NUM))
    keyset_id = kb.keysets.create(encoder.checkpoint).keyset_id
    with kb.engine.connect() as connection:
        ids = np.array(connection.execute(text("SELECT id FROM fact ORDER BY id")).scalars().all())
    keys = synthetic_keys(len(ids), encoder.checkpoint.dim, seed=1)
    kb.keysets.store_keys(keyset_id, ids, keys, actor="tester", reason="test")
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE fact_key"))
    return keyset_id


def pages(kb: KnowledgeBase, look: Callable[[], object]) -> int:
    """Counts the pages of keys' indexes that a look reads."""
    counts = []
    for work in (lambda: None, look):
        work()
        with kb.engine.connect() as connection:
            connection.execute(text("SELECT pg_stat_force_next_flush()"))
            connection.commit()
            counts.append(int(connection.execute(_READ).scalar_one()))
    return counts[1] - counts[0]


def test_that_there_is_none_is_read_from_all_keys_once(kb: KnowledgeBase, keyset_id: int) -> None:
    def seek() -> None:
        with kb.sessions.begin() as session:
            assert not seek_question_keys(session, keyset_id)

    first, second = pages(kb, seek), pages(kb, seek)
    assert first > NUM // 400 and 4 * second < first


@pytest.mark.slow(reason="keys a corpus several times")
def test_question_keys_that_came_since_are_found(
    kb: KnowledgeBase, keyset_id: int, encoder: FakeEncoder
) -> None:
    with kb.sessions.begin() as session:
        assert not seek_question_keys(session, keyset_id)
    ingest(kb, PERU)
    kb.facts.add("Who?", "Ann", actor="tester", reason="test")
    kb.keysets.rekey(encoder)
    assert not kb.keysets.has_question_keys(keyset_id), (
        "the question key of a fact without a document is none"
    )
    kb.keysets.rekey(encoder, kinds=("context", "question"), corpus="lands")
    assert kb.keysets.has_question_keys(keyset_id)
