"""Nothing is answered from a standby; audits and backups read it, and once promoted it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from colmlm.kb.answers.answering import Answering
from colmlm.kb.backup.write import verify_backup, write_backup
from colmlm.kb.errors import StandbyAsked, StorageReadOnly
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.causes import refusal_of
from colmlm.kb.store.settings import Settings
from tests.debian_servers import ReplicatedPair, replicated_pair
from tests.fakes import FakeEncoder, NearReader
from tests.kb.corpora import CAPITAL, PERU, ask, fact_id, ingest
from tests.servers import DEBIANS

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def pair() -> Iterator[ReplicatedPair]:
    if not DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIANS}")
    with replicated_pair() as found:
        yield found


@pytest.fixture
def primary(pair: ReplicatedPair, tmp_path: Path) -> Iterator[KnowledgeBase]:
    settings = Settings(home=tmp_path / "home", database_url=pair.url, actor="tester")
    engine = database.connect(settings)
    database.migrate(engine)
    engine.dispose()
    with KnowledgeBase.open(settings) as kb:
        ingest(kb, PERU)
        kb.keysets.rekey(FakeEncoder())
        pair.replicate()
        yield kb


def test_a_standby_is_refused_until_it_is_promoted(
    pair: ReplicatedPair, primary: KnowledgeBase, tmp_path: Path
) -> None:
    encoder = FakeEncoder()
    settings = Settings(home=tmp_path / "other", database_url=pair.standby_url, actor="tester")
    with KnowledgeBase.open(settings) as standby:
        with pytest.raises(StandbyAsked, match="promote"):
            ask(standby, encoder, CAPITAL)
        with pytest.raises(StandbyAsked):
            Answering(standby, None, NearReader()).ask(CAPITAL)
        with pytest.raises(Exception) as failed:
            standby.facts.delete([1], **WHO)  # type: ignore[arg-type]
        assert isinstance(refusal_of(failed.value), StorageReadOnly)
        pair.fail_over()
        (lookup,) = ask(standby, encoder, CAPITAL)
        assert lookup.hits[0].value == "Lima"


def test_audits_and_backups_read_a_standby_which_shows_what_was_acknowledged(
    pair: ReplicatedPair, primary: KnowledgeBase, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "other", database_url=pair.standby_url, actor="tester")
    with KnowledgeBase.open(settings) as standby:
        for n in range(20):
            deleted = primary.facts.add(f"Question {n}?", f"value {n}", **WHO).fact_ids  # type: ignore[arg-type]
            primary.facts.delete(deleted, **WHO)  # type: ignore[arg-type]
            assert standby.facts.show(deleted[0]).deleted_seq is not None
        assert standby.log.verify().ok
        assert standby.outputs.trace_fact(fact_id(standby, "Lima")).fact.value == "Lima"
        written = write_backup(standby, tmp_path / "backup", Ed25519PrivateKey.generate())
    assert verify_backup(tmp_path / "backup") == written


def test_who_names_both_goes_on_with_the_one_that_is_promoted(
    pair: ReplicatedPair, primary: KnowledgeBase
) -> None:
    encoder = FakeEncoder()
    lima = fact_id(primary, "Lima")
    primary.facts.edit(lima, "Lima Metropolitana", **WHO)  # type: ignore[arg-type]
    pair.fail_over()
    primary.engine.dispose()
    assert ask(primary, encoder, CAPITAL)[0].hits[0].value == "Lima Metropolitana"
    primary.facts.delete([lima], **WHO)  # type: ignore[arg-type]
    assert not [hit for hit in ask(primary, encoder, CAPITAL)[0].hits if hit.fact_id == lima]
