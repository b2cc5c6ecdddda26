"""Who did it: the log keeps who was authenticated, beside whom they named, and its hash covers both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from colmlm.kb.log import audit
from colmlm.kb.principal import Origin, Principal, acting_as, local_user, origin
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, fact_id, ingest
from tests.kb.log import rewriting
from tests.kb.log.rewriting import tamper

KEY = Principal("key", "curator", 3)


@contextmanager
def asked_by(principal: Principal, **said: str) -> Iterator[None]:
    token = origin.set(Origin(principal, "r1", **said))
    try:
        yield
    finally:
        origin.reset(token)


def test_a_token_is_the_actor_of_what_it_changes_whoever_is_named(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    with asked_by(KEY, on_behalf_of="ann", client_request_id="mine"):
        edit = kb.facts.delete([fact_id(kb, "Lima")], actor="admin", reason="wrong")
        kb.facts.restore(edit.fact_ids, actor="admin", reason="right")
        with acting_as(KEY, "curator"):
            kb.facts.delete(edit.fact_ids, actor="admin", reason="wrong")
    deleted, restored, last = kb.log.changes(after=edit.seq - 1)
    assert (deleted.actor, deleted.principal, deleted.on_behalf_of) == ("curator", KEY, "ann")
    assert (restored.request_id, restored.client_request_id) == ("r1", "mine")
    assert (last.actor, last.on_behalf_of) == ("curator", None)


def test_on_the_machine_itself_the_system_says_who_it_is(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(variable, "admin")
    assert Settings.from_environment({"COLMLM_HOME": "/nowhere"}).actor == local_user() != "admin"
    for actor in ("ann", local_user()):
        kb.facts.add(f"Who is {actor}?", actor, actor=actor, reason="test")
    named, own = kb.log.changes()
    assert named.principal == own.principal == Principal("local", local_user())
    assert (named.actor, named.on_behalf_of) == ("ann", "ann")
    assert (own.actor, own.on_behalf_of) == (local_user(), None)


def test_the_hash_covers_who_was_authenticated(kb: KnowledgeBase) -> None:
    with asked_by(KEY):
        kb.facts.add("Who?", "Ann", actor="ann", reason="test")
    assert kb.upkeep.fsck().chain_ok
    tamper(kb, """UPDATE change SET payload = jsonb_set(payload, '{principal,key_id}', '4')""")
    assert kb.upkeep.fsck().chain_first_break == 1


def test_changes_from_before_principals_were_kept_still_verify(kb: KnowledgeBase) -> None:
    kb.facts.add("Who?", "Ann", actor="ann", reason="test")
    rewriting.forget(kb, "principal", "on_behalf_of", "request_id")
    kb.facts.add("Who else?", "Bob", actor="ann", reason="test")
    old, new = kb.log.changes()
    assert (old.principal, old.on_behalf_of, old.request_id) == (None, None, None)
    assert new.principal is not None and kb.upkeep.fsck().chain_ok


def test_changes_are_found_by_who_was_authenticated(kb: KnowledgeBase) -> None:
    with asked_by(KEY):
        kb.facts.add("Who?", "Ann", actor="ann", reason="test")
    kb.facts.add("Who else?", "Bob", actor="curator", reason="test")
    with kb.sessions() as session:
        by_key = audit.list_changes(session, 0, 10, principal="curator")
        by_name = audit.list_changes(session, 0, 10, actor="curator")
    assert [change.seq for change in by_key] == [1] and [change.seq for change in by_name] == [1, 2]


def test_an_exported_log_names_them_too(kb: KnowledgeBase) -> None:
    with asked_by(KEY, on_behalf_of="ann"):
        kb.facts.add("Who?", "Ann", actor="ann", reason="test")
    _, line = kb.log.export()
    payload = json.loads(line)["payload"]
    assert (payload["principal"], payload["on_behalf_of"]) == (KEY.to_json(), "ann")


def test_a_plan_to_forget_is_the_tokens_too(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    with asked_by(KEY, on_behalf_of="ann"):
        Forgetting(kb).plan(Selector(text="Lima"), actor="admin", reason="test")
    (run,) = Forgetting(kb).runs(0, 10)
    assert (run.actor, run.on_behalf_of) == ("curator", "ann")


def test_a_principal_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    kept = {"kind": "key", "name": "ann", "key_id": 1, "more": 2}
    assert Principal.from_json(kept) == Principal("key", "ann", 1)
