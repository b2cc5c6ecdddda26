from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from kb.access import ROLES, create_key, list_keys, revoke_key, verify
from kb.errors import InvalidValue
from kb.service import KnowledgeBase
from kb.tables import ApiKey


def test_token_verifies_and_is_not_stored(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        token = create_key(session, "laptop", "editor")
        session.commit()
        found = verify(session, token)
        stored = session.scalars(select(ApiKey)).one()
    assert found is not None and (found.name, found.role) == ("laptop", "editor")
    assert len(stored.key_hash) == 32
    assert token.encode() not in stored.key_hash and token not in repr(vars(stored))


def test_anything_else_verifies_as_nobody(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        token = create_key(session, "laptop", "reader")
        for wrong in ("", "colmlm_", "x" * 50, "\x00", "\ud800", "é", token + "x", token[:-1]):
            assert verify(session, wrong) is None, wrong


def test_two_keys_never_share_a_token(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        tokens = {create_key(session, f"key {n}", "reader") for n in range(20)}
    assert len(tokens) == 20


def test_revoked_key_is_nobody_and_keeps_its_name(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        token = create_key(session, "laptop", "reader")
        revoke_key(session, "laptop")
        assert verify(session, token) is None
        assert [(key.name, key.revoked_at is None) for key in list_keys(session)] == [("laptop", False)]
        with pytest.raises(InvalidValue, match="taken"):
            create_key(session, "laptop", "reader")
        with pytest.raises(InvalidValue, match="no key"):
            revoke_key(session, "laptop")


@pytest.mark.parametrize(
    ("name", "role"), [("x", "king"), ("", "reader"), (" ", "reader"), ("a\nb", "reader")]
)
def test_unknown_role_or_blank_name_is_refused(kb: KnowledgeBase, name: str, role: str) -> None:
    with Session(kb.engine) as session, pytest.raises(InvalidValue):
        create_key(session, name, role)


def test_each_role_may_what_those_below_it_may(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        for role in ROLES:
            create_key(session, role, role)
        keys = {key.role: key for key in list_keys(session)}
    reach = {role: [other for other in ROLES if keys[role].may(other)] for role in ROLES}
    assert [len(reach[role]) for role in ROLES] == [1, 2, 3]
    assert not any(key.may("king") for key in keys.values())
