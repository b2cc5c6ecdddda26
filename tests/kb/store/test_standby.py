"""Nothing is answered from a standby; audits and backups read it, and once promoted it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from litestar.testing import TestClient

from colmlm.api.app import create_app
from colmlm.kb.access.tokens import create_token
from colmlm.kb.answers.answering import Answering
from colmlm.kb.backup.write import verify_backup, write_backup
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import refusal_of
from tests.api.generator import LookupGenerator
from tests.debian_servers import ReplicatedPair, replicated_pair
from tests.fakes import FakeEncoder, NearReader
from tests.kb.corpora import CAPITAL, PERU, ask, fact_id, ingest
from tests.refusals import code_of, raises_code
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
    engine = database.connect_database(settings)
    database.migrate_database(engine)
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
        with raises_code("StandbyAsked", match="promote"):
            ask(standby, encoder, CAPITAL)
        with raises_code("StandbyAsked"):
            Answering(standby, None, NearReader()).ask(CAPITAL)
        with pytest.raises(Exception) as failed:
            standby.facts.delete([1], **WHO)  # type: ignore[arg-type]
        assert code_of(refusal_of(failed.value)) == "StorageReadOnly"
        pair.fail_over()
        (lookup,) = ask(standby, encoder, CAPITAL)
        assert lookup.hits[0].value == "Lima"


def test_no_verb_of_lookups_and_no_route_gives_a_hit_from_a_standby(
    primary: KnowledgeBase, pair: ReplicatedPair, tmp_path: Path
) -> None:
    encoder = FakeEncoder()
    queries, of = encoder.encode_questions([CAPITAL]), encoder.checkpoint.checkpoint_id
    keyset_id, seq = primary.keysets.active().keyset_id, primary.log.head_seq()
    with primary.sessions.begin() as session:
        token = create_token(session, "auditor", "admin")
    settings = Settings(home=tmp_path / "other", database_url=pair.standby_url, actor="tester")
    with KnowledgeBase.open(settings) as standby:
        lookups = standby.lookups
        lookups.catch_up()
        finders: list[Callable[[], object]] = [
            lambda: lookups.find(queries, checkpoint_id=of),
            lambda: lookups.nearest(queries, checkpoint_id=of, k=1),
            lambda: lookups.as_of(seq).find(queries, checkpoint_id=of),
            lambda: lookups.in_keyset(keyset_id).find(queries, checkpoint_id=of),
            lambda: lookups.in_keyset(keyset_id).nearest(queries, checkpoint_id=of, k=1),
        ]
        for find in finders:
            with raises_code("StandbyAsked"):
                find()
        app = create_app(standby, encoder, LookupGenerator(standby, encoder), reader=NearReader())
        with TestClient(app, base_url="http://127.0.0.1:8484", raise_server_exceptions=False) as client:
            client.headers["Authorization"] = f"Bearer {token}"
            for method, path, body in routes_with_hits(f"checkpoint_id={of}&dim={queries.shape[1]}", seq):
                sent: dict[str, Any] = {"json": body} if body else {}
                if "vectors" in path:
                    octets = {"Content-Type": "application/octet-stream"}
                    sent = {"content": queries.astype("<f4").tobytes(), "headers": octets}
                answer = client.request(method, path, **sent)
                assert (answer.status_code, "is a standby" in answer.text) == (503, True), (path, answer.text)
                assert "Lima" not in answer.text


def routes_with_hits(vectors: str, seq: int) -> list[tuple[str, str, dict[str, Any] | None]]:
    return [
        ("POST", "/v1/lookups", {"questions": [CAPITAL]}),
        ("POST", "/v1/lookups", {"questions": [CAPITAL], "as_of": seq}),
        ("POST", f"/v1/lookups/vectors?{vectors}", None),
        ("POST", f"/v1/lookups/vectors?{vectors}&as_of={seq}", None),
        ("POST", "/v1/answers", {"question": CAPITAL}),
        ("POST", "/v1/answers", {"question": CAPITAL, "mode": "paper"}),
        ("POST", "/v1/generations", {"prompt": CAPITAL}),
        ("POST", "/v1/completions", {"model": "colmlm", "prompt": CAPITAL}),
        ("GET", f"/v1/facts?near={quote(CAPITAL)}", None),
    ]


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
