"""Where the database cannot note what was sent, receivers are not sent the same again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.sending import RetryPolicy
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.debian_servers import replicated_pair
from tests.kb.webhooks.conftest import edit
from tests.receiver import LOOPBACK, Receiver
from tests.servers import DEBIANS

PATIENT = RetryPolicy(first_wait=timedelta(minutes=1))


@contextmanager
def unwritable(kb: KnowledgeBase, when: str) -> Iterator[None]:
    """Has the database take no writes of webhooks in the block, where this holds of them."""
    with kb.sessions.begin() as session:
        session.execute(
            text(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'no space left'; END $$"
            )
        )
        session.execute(
            text(
                "CREATE TRIGGER full_disk BEFORE UPDATE ON webhook FOR EACH ROW "
                f"WHEN ({when}) EXECUTE FUNCTION full_disk()"
            )
        )
    try:
        yield
    finally:
        with kb.sessions.begin() as session:
            session.execute(text("DROP FUNCTION full_disk CASCADE"))


def test_nothing_is_sent_that_cannot_be_noted(kb: KnowledgeBase, hook: Receiver) -> None:
    kb.webhooks.add(hook.url)
    seqs = edit(kb, 2)
    with unwritable(kb, "true"):
        for _ in range(2):
            with pytest.raises(SQLAlchemyError, match="no space left"):
                Deliverer(kb).run_once()
        assert hook.received == []
    Deliverer(kb).run_once()
    assert hook.taken() == seqs


def test_what_was_sent_and_not_noted_is_sent_again_only_after_a_while(
    kb: KnowledgeBase, hook: Receiver
) -> None:
    kb.webhooks.add(hook.url)
    seqs = edit(kb, 2)
    deliverer = Deliverer(kb, PATIENT, poll_seconds=0.01)
    running = threading.Thread(target=deliverer.run)
    with unwritable(kb, "NEW.delivered_seq <> OLD.delivered_seq"):
        running.start()
        try:
            hook.await_number(1)
            time.sleep(0.5)
        finally:
            deliverer.stop()
            running.join()
        assert hook.seqs() == seqs[:1]
    Deliverer(kb).run_once()
    assert hook.seqs() == [seqs[0], *seqs] and hook.names()[0] == hook.names()[1]


def test_a_standby_sends_nothing_until_it_is_promoted(tmp_path: Path, hook: Receiver) -> None:
    if not DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIANS}")
    with replicated_pair() as pair:
        here = Settings(home=tmp_path / "a", database_url=pair.url, webhook_networks=LOOPBACK)
        there = Settings(home=tmp_path / "b", database_url=pair.standby_url, webhook_networks=LOOPBACK)
        engine = database.connect_database(here)
        database.migrate_database(engine)
        engine.dispose()
        with KnowledgeBase.open(here) as primary:
            _, webhook = primary.webhooks.add(hook.url)
            pair.replicate()
            seqs = edit(primary, 2)
            with KnowledgeBase.open(there) as standby:
                assert standby.webhooks.show(webhook.webhook_id) == webhook
                Deliverer(standby).run_once()
                assert hook.received == []
                pair.fail_over()
                Deliverer(standby).run_once()
                assert hook.taken() == seqs
