"""Tokens are in the log too, and nothing that follows facts minds them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.access.tokens import create_token, revoke_token, rotate_token
from colmlm.kb.principal import local_user
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, ingest, values
from tests.refusals import raises_code

KINDS = ["create-api-key", "rotate-api-key", "revoke-api-key"]


def live_a_life(kb: KnowledgeBase) -> list[str]:
    """Make a token, rotate and revoke it, and give its secrets."""
    with Session(kb.engine) as session, session.begin():
        first = create_token(session, "laptop", "operator", actor="ann", rate_limit=7)
    with Session(kb.engine) as session, session.begin():
        second = rotate_token(session, "laptop", grace=timedelta(hours=1), expires_in=timedelta(days=1))
        revoke_token(session, "laptop")
    return [first, second]


def test_making_rotating_and_revoking_a_token_are_changes_without_its_secret(kb: KnowledgeBase) -> None:
    secrets = live_a_life(kb)
    made, rotated, revoked = kb.log.changes()
    assert [made.kind, rotated.kind, revoked.kind] == KINDS
    assert (made.actor, made.on_behalf_of, revoked.actor) == ("ann", "ann", local_user())
    assert "laptop" in made.reason and "operator" in made.reason
    with kb.engine.connect() as connection:
        log = " ".join(connection.scalars(text("SELECT change::text FROM change")))
        kept = connection.scalars(text("SELECT payload->'api_key' FROM change ORDER BY seq")).all()
    assert not [part for secret in secrets for part in (secret, secret[7:], secret[:13]) if part in log]
    assert (kept[0]["role"], kept[0]["rate_limit"], kept[0]["expires_at"]) == ("operator", 7, None)
    assert kept[1]["expires_at"] is not None and kept[1]["previous_until"] is not None
    assert kb.upkeep.fsck().ok and kb.upkeep.fsck().changes_checked == 3


def test_what_is_refused_or_undone_leaves_no_change(kb: KnowledgeBase) -> None:
    live_a_life(kb)
    with Session(kb.engine) as session, raises_code("ApiKeyEnded"):
        revoke_token(session, "laptop")
    with Session(kb.engine) as session:
        create_token(session, "desktop", "reader")
    assert kb.log.head_seq() == 3


def test_nothing_that_follows_facts_minds_them(
    kb: KnowledgeBase, encoder: FakeEncoder, another_process: KnowledgeBase
) -> None:
    ingest(kb, PERU)
    keyset = kb.keysets.rekey(encoder)
    kb.lookups.snapshot()
    assert values(another_process, encoder, ["What is the capital of Peru?"]) == ["Lima"]
    before, counted = kb.log.head_seq(), kb.upkeep.statistics()
    live_a_life(kb)
    assert another_process.lookups.catch_up() == kb.log.head_seq() == before + 3
    assert values(another_process, encoder, ["What is the capital of Peru?"]) == ["Lima"]
    assert set(kb.log.diff(before, kb.log.head_seq()).counts.values()) == {0}
    after = kb.upkeep.statistics()
    assert (after.facts, after.deleted, after.corpora) == (counted.facts, counted.deleted, counted.corpora)
    assert not kb.keysets.standing(keyset.keyset_id).checked and kb.upkeep.fsck().ok
