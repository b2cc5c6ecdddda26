from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from colmlm.kb.access.records import ROLES, Right
from colmlm.kb.access.tokens import (
    create_token,
    list_tokens,
    note_use,
    revoke_token,
    rotate_token,
    verify_token,
)
from colmlm.kb.errors import InvalidValue
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ApiKeyRow, roles
from tests.refusals import raises_code


def test_secret_verifies_and_is_not_stored(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        secret = create_token(session, "laptop", "operator")
        session.commit()
        found = verify_token(session, secret)
        stored = session.scalars(select(ApiKeyRow)).one()
    assert found is not None and (found.name, found.role) == ("laptop", "operator")
    assert len(stored.key_hash) == 32
    assert secret.encode() not in stored.key_hash and secret not in repr(vars(stored))


def test_anything_else_verifies_as_nobody(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        secret = create_token(session, "laptop", "reader")
        for wrong in ("", "colmlm_", "x" * 50, "\x00", "\ud800", "é", secret + "x", secret[:-1]):
            assert verify_token(session, wrong) is None, wrong


def test_two_tokens_never_share_a_secret(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        secrets = {create_token(session, f"key {n}", "reader") for n in range(20)}
    assert len(secrets) == 20


def test_revoked_token_is_nobody_and_keeps_its_name(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        secret = create_token(session, "laptop", "reader")
        revoke_token(session, "laptop")
        assert verify_token(session, secret) is None
        assert [(token.name, token.revoked_at is None) for token in list_tokens(session)] == [
            ("laptop", False)
        ]
        with pytest.raises(InvalidValue, match="taken"):
            create_token(session, "laptop", "reader")
        with raises_code("ApiKeyEnded", match="revoked"):
            revoke_token(session, "laptop")
        with raises_code("ApiKeyNotFound"):
            revoke_token(session, "desktop")


def test_unknown_role_or_blank_name_is_refused(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    for name, role in (("x", "king"), ("", "reader"), (" ", "reader"), ("a\nb", "reader")):
        with subtests.test(name=name, role=role), Session(kb.engine) as session, pytest.raises(InvalidValue):
            create_token(session, name, role)


HOUR = timedelta(hours=1)


def elapse(session: Session, span: timedelta) -> None:
    """Let time pass for every token: whatever was written lies that much further back."""
    for column in ("created_at", "expires_at", "last_used_at", "previous_until", "previous_used_at"):
        session.execute(text(f"UPDATE api_key SET {column} = {column} - :span"), {"span": span})
    session.expire_all()


def test_token_ends_by_itself_and_a_rotation_with_a_new_end_brings_it_back(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        secret = create_token(session, "laptop", "reader", expires_in=HOUR)
        elapse(session, HOUR - timedelta(seconds=5))
        assert verify_token(session, secret) is not None
        elapse(session, timedelta(seconds=10))
        assert verify_token(session, secret) is None and list_tokens(session)[0].state() == "expired"
        with raises_code("ApiKeyEnded", match="expired"):
            rotate_token(session, "laptop")
        assert verify_token(session, rotate_token(session, "laptop", expires_in=HOUR)) is not None


def test_rotation_lets_the_old_secret_work_for_its_grace_and_no_longer(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        first = create_token(session, "laptop", "operator", rate_limit=7)
        second = rotate_token(session, "laptop", grace=HOUR)
        by_first, by_second = verify_token(session, first), verify_token(session, second)
        assert by_first is not None and by_second is not None
        assert (by_first.by_previous, by_second.by_previous) == (True, False)
        assert (by_second.name, by_second.role, by_second.rate_limit) == ("laptop", "operator", 7)
        assert by_second.prefix == second[:13] and first[:13] != second[:13]
        elapse(session, HOUR + timedelta(seconds=1))
        assert verify_token(session, first) is None and verify_token(session, second) is not None


def test_at_most_two_secrets_of_a_token_work_and_revoking_ends_both(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        first = create_token(session, "laptop", "reader")
        second = rotate_token(session, "laptop", grace=HOUR)
        third = rotate_token(session, "laptop", grace=HOUR)
        assert [verify_token(session, secret) is None for secret in (first, second, third)] == [
            True,
            False,
            False,
        ]
        fourth = rotate_token(session, "laptop")
        assert [verify_token(session, secret) is None for secret in (second, third, fourth)] == [
            True,
            True,
            False,
        ]
        rotate_token(session, "laptop", grace=HOUR)
        revoke_token(session, "laptop")
        assert verify_token(session, fourth) is None


def test_use_is_written_once_a_minute_for_each_secret(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        old = create_token(session, "laptop", "reader")
        secret = rotate_token(session, "laptop", grace=HOUR)

        def use(secret: str) -> bool:
            found = verify_token(session, secret)
            session.expire_all()
            return found is not None and note_use(session, found)

        assert [use(secret), use(secret), use(old), use(old)] == [True, False, True, False]
        (token,) = list_tokens(session)
        assert token.last_used_at is not None and token.previous_used_at is not None
        elapse(session, timedelta(seconds=61))
        stale = verify_token(session, secret)
        session.expire_all()
        assert use(secret) and stale is not None
        assert not note_use(session, stale)  # another process that read the row before wrote nothing again


def test_end_or_limit_that_makes_no_sense_is_refused(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    for options in ({"expires_in": timedelta(0)}, {"expires_in": timedelta(days=9999)}, {"rate_limit": 0}):
        with subtests.test(options=options), Session(kb.engine) as session, pytest.raises(InvalidValue):
            create_token(session, "laptop", "reader", **options)


def test_a_role_is_a_set_of_rights(kb: KnowledgeBase) -> None:
    with Session(kb.engine) as session:
        for role in ROLES:
            create_token(session, role, role)
        reach = {
            token.role: {right.value for right in Right if token.may(right)} for token in list_tokens(session)
        }
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
