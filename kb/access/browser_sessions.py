"""Browser sessions: what a browser holds in place of a token once it has signed in.

The functions never commit. The cookie is 32 random bytes that reveal nothing of the token, and the database keeps only
their SHA-256. A session ends when its user signs out, after `LIFE`, and when its token is revoked, rotated or expired.
Times are the database's.
"""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from colmlm.kb.access import tokens as access
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.access.tokens import USE_WRITTEN_EVERY, digest_of
from colmlm.kb.store.standby import is_read_only
from colmlm.kb.tables import BrowserSessionRow

LIFE = timedelta(hours=12)


def begin(session: Session, token: TokenRecord) -> str:
    """Begins a session and gives its secret for the cookie. It can't be read again."""
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.expires_at <= func.now()))
    secret = secrets.token_urlsafe(32)
    ends = func.now() + LIFE
    session.add(BrowserSessionRow(secret_hash=digest_of(secret), api_key_id=token.key_id, expires_at=ends))
    session.flush()
    return secret


def token_of(session: Session, secret: str) -> TokenRecord | None:
    """Gives the working token behind a session, or None where that has ended or never was.

    Notes the use, once a minute.
    """
    found = session.scalar(
        select(BrowserSessionRow).where(
            BrowserSessionRow.secret_hash == digest_of(secret), BrowserSessionRow.expires_at > func.now()
        )
    )
    if found is None or (token := access.working_token(session, found.api_key_id)) is None:
        return None
    if is_read_only(session):
        return token
    due = BrowserSessionRow.last_used_at <= func.now() - USE_WRITTEN_EVERY
    noted = update(BrowserSessionRow).where(BrowserSessionRow.id == found.id, due)
    session.execute(noted.values(last_used_at=func.now()).execution_options(synchronize_session=False))
    return token


def end(session: Session, secret: str) -> None:
    """Ends the session with this secret, where there is one."""
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.secret_hash == digest_of(secret)))


def end_all(session: Session) -> None:
    """Ends every session, of all tokens."""
    session.execute(delete(BrowserSessionRow))
