"""Foreign keys of rows in bulk: they hold as if each row were checked, also for who deletes meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from colmlm.kb.errors import FactNotFound
from colmlm.kb.keys.keycopy import store_keys
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.database import MANY, checked_at_once
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered

BY = {"actor": "tester", "reason": "test"}
DANGLING = text("""
SELECT (SELECT count(*) FROM fact f LEFT JOIN document d ON d.id = f.document_id WHERE d.id IS NULL)
     + (SELECT count(*) FROM fact_version v LEFT JOIN fact f ON f.id = v.fact_id WHERE f.id IS NULL)
     + (SELECT count(*) FROM sentence s LEFT JOIN document d ON d.id = s.document_id WHERE d.id IS NULL)
     + (SELECT count(*) FROM fact_key k LEFT JOIN fact f ON f.id = k.fact_id WHERE f.id IS NULL)
""")
WAITING = text("""
SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
               WHERE NOT l.granted AND a.datname = current_database())
""")
# The bit of 4 is that of INSERT.
ON_INSERT = text("""
SELECT count(*) FILTER (WHERE tgrelid = ANY('{document, fact, fact_version, sentence, fact_key}'::regclass[])
                        OR EXISTS (SELECT FROM pg_inherits WHERE inhrelid = tgrelid)),
       count(*)
FROM pg_trigger WHERE NOT tgisinternal AND tgtype & 4 <> 0
""")
NOBODYS = text("INSERT INTO fact_version (fact_id, version, value, from_seq) VALUES (1000000, 1, 'x', 1)")


def filled(kb: KnowledgeBase, encoder: FakeEncoder) -> tuple[int, np.ndarray, np.ndarray]:
    """Ingests as many facts as are checked at once; gives a keyset, their ids and their keys."""
    ingest(kb, *numbered(MANY))
    ids = np.arange(1, MANY + 1)
    return kb.keysets.create(encoder.checkpoint).keyset_id, ids, encoder.encode_questions(list(map(str, ids)))


def delete(kb: KnowledgeBase, fact_id: int) -> None:
    """Removes a fact's row and those of its versions, as nobody but an operator at the database could."""
    with kb.engine.begin() as connection:
        delete_in(connection, fact_id)


def delete_in(connection: Connection, fact_id: int) -> None:
    for table, column in (("fact_version", "fact_id"), ("fact", "id")):
        connection.execute(text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": fact_id})


def await_lock(kb: KnowledgeBase) -> None:
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        end = time.monotonic() + 60
        while not connection.scalar(WAITING):
            assert time.monotonic() < end, "nobody waits"
            time.sleep(0.02)


def test_rows_of_a_large_ingest_and_its_keys_refer_to_rows_that_are_there(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    keyset_id, ids, keys = filled(kb, encoder)
    kb.keysets.store_keys(keyset_id, ids, keys, **BY)
    with kb.sessions() as session:
        assert session.scalar(DANGLING) == 0
    assert kb.upkeep.fsck().ok


def test_no_trigger_would_have_to_run_for_rows_in_bulk(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    filled(kb, encoder)
    with kb.sessions() as session:
        on_bulk, on_any = session.execute(ON_INSERT).one()
    assert on_bulk == 0 < on_any


def test_rows_are_checked_one_by_one_again_after_a_block(kb: KnowledgeBase) -> None:
    with kb.sessions() as session:
        with checked_at_once(session, MANY) as at_once:
            assert at_once
        with pytest.raises(IntegrityError, match="fact_version_fact_id_fkey"):
            session.execute(NOBODYS)


def test_rows_are_checked_one_by_one_where_they_are_few_or_the_role_may_not_else(kb: KnowledgeBase) -> None:
    with kb.sessions() as session:
        with checked_at_once(session, MANY - 1) as at_once:
            assert not at_once
        session.execute(text("CREATE ROLE plain; SET LOCAL ROLE plain"))
        with checked_at_once(session, MANY) as at_once:
            assert not at_once


def test_who_deletes_a_fact_that_is_being_keyed_waits_and_is_refused(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    keyset_id, ids, keys = filled(kb, encoder)
    with ThreadPoolExecutor() as threads, kb.sessions() as session:
        store_keys(session, keyset_id, ids, keys, "context", **BY)
        deleting = threads.submit(delete, kb, MANY // 2)
        await_lock(kb)
        session.commit()
        with pytest.raises(IntegrityError, match="fact_key"):
            deleting.result()


def test_a_fact_that_is_deleted_meanwhile_gets_no_key(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    keyset_id, ids, keys = filled(kb, encoder)
    with ThreadPoolExecutor() as threads, kb.sessions() as session:
        delete_in(session.connection(), MANY // 2)
        storing = threads.submit(kb.keysets.store_keys, keyset_id, ids, keys, **BY)
        await_lock(kb)
        session.commit()
        with pytest.raises(FactNotFound, match=str(MANY // 2)):
            storing.result()
        assert session.scalar(DANGLING) == 0
