"""Idempotency: a request that is sent twice is carried out once, and the second sending gets the first one's answer.

A caller names a request. The name is claimed in the database before the request is carried out, and the answer is
stored with it for a day. Each change that the request makes marks the claim in its own transaction
(`kb.log.audit.mark_change`), which shows whether a process that died had changed anything: a claim without a mark
changed nothing, and may be taken over after `LEASE`. A run whose claim was taken over can't edit under it any more.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.facts.suppression import hold_off_erasure
from colmlm.kb.log import audit
from colmlm.kb.log.audit import Claim
from colmlm.kb.tables import ChangeRow, IdempotencyRow, SecretRow

KEPT = timedelta(days=1)
LEASE = timedelta(minutes=2)
MAX_KEPT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to a request. A body that is None is not stored."""

    status: int
    media_type: str
    body: bytes | None


def claim_key(session: Session, api_key_id: int, name: str, request: bytes) -> Claim | KeptAnswer:
    """Give the claim to carry `request` out, or the answer it got before.

    The caller commits it before carrying it out.

    Raises `RequestDiffers` where the name came with another request, `RequestUnderWay` where another run is carrying
    it out, and `AnswerGone` where it was carried out and its answer is not stored.
    """
    session.execute(delete(IdempotencyRow).where(IdempotencyRow.claimed_at < func.now() - KEPT))
    digest, token = _digest(session, request), secrets.token_hex(16)
    values = {"api_key_id": api_key_id, "key": name, "request_sha256": digest, "claim": token}
    values["claimed_seq"] = audit.head_seq(session)
    fresh = insert(IdempotencyRow).values(values).on_conflict_do_nothing().returning(IdempotencyRow.id)
    if (row_id := session.scalar(fresh)) is not None:
        return Claim(row_id, token)
    named = select(IdempotencyRow).where(IdempotencyRow.api_key_id == api_key_id, IdempotencyRow.key == name)
    found = session.scalar(named.with_for_update())
    if found is None:  # its row was released or expired between the two statements
        raise refusals.request_under_way()
    if not hmac.compare_digest(found.request_sha256, digest):
        raise refusals.request_differs()
    return _again(session, found, token)


def _again(session: Session, found: IdempotencyRow, token: str) -> Claim | KeptAnswer:
    if found.status is not None and found.body is not None:
        return KeptAnswer(found.status, found.media_type or "", found.body)
    left = found.claimed_at <= session.scalars(select(func.now())).one() - LEASE
    if found.status is not None or (found.seq is not None and left):
        raise refusals.answer_gone(found.seq)
    if not left:
        raise refusals.request_under_way()
    found.claim, found.claimed_at, found.claimed_seq = token, func.now(), audit.head_seq(session)
    session.flush()
    return Claim(found.id, token)


def settle_key(session: Session, held: Claim, answer: KeptAnswer) -> None:
    """Store the answer, or releases the name where the request was refused and so changed nothing.

    Does nothing where the claim was lost: then another run gives the answer.
    """
    mine = (IdempotencyRow.id == held.row_id) & (IdempotencyRow.claim == held.claim)
    if answer.status >= 400:
        freed = delete(IdempotencyRow).where(mine, IdempotencyRow.seq.is_(None)).returning(IdempotencyRow.id)
        if session.scalar(freed) is not None:
            return
    hold_off_erasure(session)
    body = answer.body if len(answer.body or b"") <= MAX_KEPT_BYTES else None
    if session.scalar(select(IdempotencyRow.id).where(mine, _ERASED_SINCE)) is not None:
        body = None
    kept = {"status": answer.status, "media_type": answer.media_type, "body": body}
    session.execute(update(IdempotencyRow).where(mine).values(kept))


# Where another request erased facts meanwhile, this answer may say them. Claims of earlier releases don't record this.
_ERASED_SINCE = (
    select(ChangeRow.seq)
    .where(ChangeRow.kind == "erase", ChangeRow.seq > func.coalesce(IdempotencyRow.claimed_seq, 0))
    .where(ChangeRow.seq.is_distinct_from(IdempotencyRow.seq))
    .correlate(IdempotencyRow)
    .exists()
)


def forget_answers(session: Session) -> None:
    """Delete every stored answer, since any may say what is being erased. Their requests stay carried out."""
    session.execute(update(IdempotencyRow).where(IdempotencyRow.body.is_not(None)).values(body=None))


def _digest(session: Session, request: bytes) -> bytes:
    """Digest a request under this database's secret, so that nobody with a copy of the table can try out its text."""
    secret = session.scalars(select(SecretRow.value).where(SecretRow.name == "change_log")).one()
    return hmac.new(secret, request, hashlib.sha256).digest()
