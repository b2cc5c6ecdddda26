from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine, select, text
from sqlalchemy.orm import Session

from kb import database
from kb.access import ROLES, Right, create_key, list_keys, revoke_key, verify
from kb.errors import InvalidValue
from kb.service import KnowledgeBase
from kb.tables import ApiKey, roles
from tests.conftest import clone


def test_token_verifies_and_is_not_stored(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        token = create_key(session, "laptop", "operator")
        session.commit()
        found = verify(session, token)
        stored = session.scalars(select(ApiKey)).one()
    assert found is not None and (found.name, found.role) == ("laptop", "operator")
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


def test_a_role_is_a_set_of_rights(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        for role in ROLES:
            create_key(session, role, role)
        reach = {key.role: {right.value for right in Right if key.may(right)} for key in list_keys(session)}
    assert reach == {
        "decoder": {"lookup"},
        "reader": {"lookup", "read"},
        "operator": {"lookup", "read", "edit", "audit"},
        "auditor": {"lookup", "read", "audit"},
        "trainer": {"lookup", "read", "train"},
        "admin": {"lookup", "read", "edit", "audit", "train", "admin"},
    }


def test_the_tables_know_the_roles() -> None:
    assert tuple(ROLES) == roles


def test_keys_of_before_keep_what_they_could_do(server: URL) -> None:
    from alembic import command

    with clone(server) as url:
        engine = create_engine(url)
        config = database._alembic()
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0002")
            for role in ("reader", "editor", "operator"):
                connection.execute(
                    text("INSERT INTO api_key (name, key_hash, role) VALUES (:role, :hash, :role)"),
                    {"role": role, "hash": role.encode()},
                )
            command.upgrade(config, "head")
            after = {row.name: row.role for row in connection.execute(text("SELECT name, role FROM api_key"))}
        engine.dispose()
    assert after == {"reader": "reader", "editor": "operator", "operator": "admin"}
