"""Requests that may be sent twice: each is carried out once, and asking again gives the first answer.

A caller names a request. The name is claimed in the database before the request is carried out, and the answer is
kept with it for a day. Each change made on the way marks the claim in its own transaction (`kb.log.origin.mark`), so
a process that dies leaves no doubt: a claim without a mark changed nothing, and is free to take after `LEASE`.
Whoever lost a claim that way can't edit under it any more.
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

from colmlm.kb.errors import AnswerGone, RequestDiffers, RequestUnderWay
from colmlm.kb.facts.suppression import hold_off_erasure
from colmlm.kb.log import audit
from colmlm.kb.log.origin import Claim
from colmlm.kb.tables import Change, Idempotency, Secret

KEPT = timedelta(days=1)
LEASE = timedelta(minutes=2)
MAX_KEPT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered. A body that is None is not kept."""

    status: int
    media_type: str
    body: bytes | None


def claim(session: Session, api_key_id: int, name: str, request: bytes) -> Claim | Answer:
    """The claim to carry `request` out, or the answer it got before. To be committed before it is carried out.

    Raises `RequestDiffers` where the name came with another request, `RequestUnderWay` where somebody else carries
    it out, and `AnswerGone` where it was carried out and the answer is not there.
    """
    session.execute(delete(Idempotency).where(Idempotency.claimed_at < func.now() - KEPT))
    digest, token = _digest(session, request), secrets.token_hex(16)
    values = {"api_key_id": api_key_id, "key": name, "request_sha256": digest, "claim": token}
    values["claimed_seq"] = audit.head_seq(session)
    fresh = insert(Idempotency).values(values).on_conflict_do_nothing().returning(Idempotency.id)
    if (row_id := session.scalar(fresh)) is not None:
        return Claim(row_id, token)
    named = select(Idempotency).where(Idempotency.api_key_id == api_key_id, Idempotency.key == name)
    found = session.scalar(named.with_for_update())
    if found is None:  # refused and released, or a day old, between the two statements
        raise RequestUnderWay
    if not hmac.compare_digest(found.request_sha256, digest):
        raise RequestDiffers
    return _again(session, found, token)


def _again(session: Session, found: Idempotency, token: str) -> Claim | Answer:
    if found.status is not None and found.body is not None:
        return Answer(found.status, found.media_type or "", found.body)
    left = found.claimed_at <= session.scalars(select(func.now())).one() - LEASE
    if found.status is not None or (found.seq is not None and left):
        raise AnswerGone(found.seq)
    if not left:
        raise RequestUnderWay
    found.claim, found.claimed_at, found.claimed_seq = token, func.now(), audit.head_seq(session)
    session.flush()
    return Claim(found.id, token)


def settle(session: Session, held: Claim, answer: Answer) -> None:
    """Keep the answer, or free the name where the request was refused and so changed nothing.

    Does nothing where the claim was lost: the answer is then somebody else's to give.
    """
    mine = (Idempotency.id == held.row_id) & (Idempotency.claim == held.claim)
    if answer.status >= 400:
        freed = delete(Idempotency).where(mine, Idempotency.seq.is_(None)).returning(Idempotency.id)
        if session.scalar(freed) is not None:
            return
    hold_off_erasure(session)
    body = answer.body if len(answer.body or b"") <= MAX_KEPT_BYTES else None
    if session.scalar(select(Idempotency.id).where(mine, _ERASED_SINCE)) is not None:
        body = None
    kept = {"status": answer.status, "media_type": answer.media_type, "body": body}
    session.execute(update(Idempotency).where(mine).values(kept))


# Another's erasure since the request was begun: its answer may say what is gone. Claims of releases before don't tell.
_ERASED_SINCE = (
    select(Change.seq)
    .where(Change.kind == "erase", Change.seq > func.coalesce(Idempotency.claimed_seq, 0))
    .where(Change.seq.is_distinct_from(Idempotency.seq))
    .correlate(Idempotency)
    .exists()
)


def forget_answers(session: Session) -> None:
    """Drop every kept answer: any of them may say what is being erased. Their requests stay done."""
    session.execute(update(Idempotency).where(Idempotency.body.is_not(None)).values(body=None))


def _digest(session: Session, request: bytes) -> bytes:
    """Keyed with this database's secret: whoever has a copy of the table can't try out what a request said."""
    secret = session.scalars(select(Secret.value).where(Secret.name == "change_log")).one()
    return hmac.new(secret, request, hashlib.sha256).digest()
