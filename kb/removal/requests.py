"""Erasure by two people: one admin token asks, and another approves before anything is erased.

The base enforces that the two tokens differ; that they belong to two people is up to whoever hands them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from colmlm.kb.access.records import Right, TokenRecord
from colmlm.kb.access.tokens import verify_token
from colmlm.kb.errors import AdminKeyNeeded, ErasureRequestNotFound, ErasureRequestState, SamePerson
from colmlm.kb.facts import quotations, suppression
from colmlm.kb.facts.erased_texts import TextOrigin
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import as_mentioned, check_mentioned
from colmlm.kb.facts.suppression import OthersSaying
from colmlm.kb.log import audit
from colmlm.kb.log.audit import acting_as, signed
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import Principal
from colmlm.kb.removal.erase import Erasure, Heard, erase_facts, load_targets
from colmlm.kb.removal.records import Erased, ErasureReport, ErasureRequest
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.waits import unhurried
from colmlm.kb.tables import ApiKeyRow, ErasureRequestRow
from colmlm.kb.texts.characters import visible_text


def admin_token(session: Session, secret: str | None) -> TokenRecord:
    """Gives the admin's token that a secret belongs to. Raises `AdminKeyNeeded`."""
    token = verify_token(session, secret) if secret else None
    if token is None or not token.may(Right.admin):
        raise AdminKeyNeeded
    return token


@dataclass(frozen=True, slots=True)
class ErasureRequests:
    """The requests to erase facts of a knowledge base: those that wait for a second token, and those decided."""

    kb: SearchableStore

    def token_of(self, secret: str | None) -> TokenRecord:
        """Gives the admin's token that a secret belongs to. Raises `AdminKeyNeeded`."""
        with self.kb.sessions() as session:
            return admin_token(session, secret)

    @tried_again
    def ask(
        self,
        fact_ids: Sequence[int],
        *,
        token: TokenRecord,
        actor: str,
        reason: str,
        mentions: Mentioned = "same-document",
    ) -> ErasureRequest:
        """Stores a request to erase these facts, all or none; they may be live, deleted or erased. Erases nothing."""
        audit.check_who(actor, reason)
        check_mentioned(mentions)
        with self.kb.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            targets, again = load_targets(session, fact_ids)
            ids = sorted((*(target.fact_id for target in targets), *again))
            behalf = signed(actor).on_behalf_of
            row = ErasureRequestRow(
                state="waiting",
                fact_ids=ids,
                actor=token.name,
                on_behalf_of=behalf if behalf != token.name else None,
                reason=quotations.redacted_since(session, reason, TextOrigin(frozenset(ids))),
                asked_by=token.key_id,
                mentions=mentions,
            )
            session.add(row)
            session.flush()
            return _read(session, row.id)

    def requests(self, *, waiting: bool = False) -> list[ErasureRequest]:
        """Gives every request, oldest first, or only those that wait."""
        with self.kb.sessions() as session:
            statement = _SELECT.order_by(ErasureRequestRow.id)
            if waiting:
                statement = statement.where(ErasureRequestRow.state == "waiting")
            return [_record(*row) for row in session.execute(statement)]

    def read(self, request_id: int) -> ErasureRequest:
        """Gives one request. Raises `ErasureRequestNotFound`."""
        with self.kb.sessions() as session:
            return _read(session, request_id)

    def approve(
        self, request_id: int, *, token: TokenRecord, now: bool = False, on_step: Heard | None = None
    ) -> tuple[ErasureRequest, ErasureReport]:
        """Erases the facts of a request, as `Erasure.erase` does. The change is logged for `token` and names both.

        Raises `SamePerson` where `token` made the request, `ErasureRequestState` where it was decided before.
        """
        done, erased = self._approve(request_id, token)
        return done, Erasure(self.kb).report(erased, now=now, on_step=on_step)

    @tried_again
    def _approve(self, request_id: int, token: TokenRecord) -> tuple[ErasureRequest, Erased]:
        with self.kb.sessions.begin() as session:
            unhurried(session)
            asked = _read(session, request_id)
            _require_another(session, asked, token)
            _require_waiting(request_id, asked.state)  # before every fact is read for it
            others = OthersSaying.look(session, load_targets(session, asked.fact_ids)[0])
            suppression.begin_erasure(
                session
            )  # before any row is locked: an erasure redacts what requests say
            row = _waiting(session, request_id)
            asker = Principal("key", asked.asked_by, row.asked_by)
            targets, _ = load_targets(session, asked.fact_ids)
            with acting_as(token.principal, asked.on_behalf_of):
                erased = _erase(session, asked, asker, token, others)
            _decide(session, row, "approved", token, erased.seq)
            done = _read(session, request_id)
        return done, Erasure(self.kb).with_left(erased, targets)

    @tried_again
    def withdraw(self, request_id: int, *, token: TokenRecord) -> ErasureRequest:
        """Ends a request without erasing anything. The token that made the request may do that too."""
        with self.kb.sessions.begin() as session:
            _decide(session, _waiting(session, request_id), "withdrawn", token, None)
            return _read(session, request_id)


_Asker, _Decider = aliased(ApiKeyRow), aliased(ApiKeyRow)
_SELECT = (
    select(ErasureRequestRow, _Asker.name, _Decider.name)
    .join(_Asker, _Asker.id == ErasureRequestRow.asked_by)
    .outerjoin(_Decider, _Decider.id == ErasureRequestRow.decided_by)
)


def _require_another(session: Session, asked: ErasureRequest, token: TokenRecord) -> None:
    asked_by = select(ErasureRequestRow.asked_by).where(ErasureRequestRow.id == asked.erasure_request_id)
    if session.scalars(asked_by).one() == token.key_id:
        raise SamePerson(asked.erasure_request_id, token.name)


def _erase(
    session: Session, asked: ErasureRequest, asker: Principal, token: TokenRecord, others: OthersSaying
) -> Erased:
    said = visible_text(asked.reason, "")  # requests of older releases may hold invisible characters
    reason = f"{said} (asked with the token {asker.name}, approved with the token {token.name})"
    mentions = asked.mentions or "none"  # older releases did not store it, and redacted no mentions
    return erase_facts(
        session, asked.fact_ids, token.name, reason, mentions=mentions, asked_by=asker, others=others
    )


def _waiting(session: Session, request_id: int) -> ErasureRequestRow:
    """Gives the row, locked, so that of two decisions at the same time the second finds the request decided."""
    row = session.scalar(
        select(ErasureRequestRow).where(ErasureRequestRow.id == request_id).with_for_update()
    )
    if row is None:
        raise ErasureRequestNotFound(request_id)
    _require_waiting(request_id, row.state)
    return row


def _require_waiting(request_id: int, state: str) -> None:
    if state != "waiting":
        raise ErasureRequestState(request_id, state)


def _decide(
    session: Session, row: ErasureRequestRow, state: str, token: TokenRecord, seq: int | None
) -> None:
    row.state, row.decided_by, row.decided_at, row.seq = state, token.key_id, func.now(), seq
    session.flush()


def _read(session: Session, request_id: int) -> ErasureRequest:
    found = session.execute(_SELECT.where(ErasureRequestRow.id == request_id)).one_or_none()
    if found is None:
        raise ErasureRequestNotFound(request_id)
    return _record(*found)


def _record(row: ErasureRequestRow, asked_by: str, decided_by: str | None) -> ErasureRequest:
    return ErasureRequest(
        erasure_request_id=row.id,
        state=row.state,
        fact_ids=tuple(row.fact_ids),
        actor=row.actor,
        reason=row.reason,
        asked_by=asked_by,
        at=row.at,
        decided_by=decided_by,
        decided_at=row.decided_at,
        seq=row.seq,
        on_behalf_of=row.on_behalf_of,
        mentions=as_mentioned(row.mentions),
    )
