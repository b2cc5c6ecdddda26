"""Holds, which keep facts, documents and corpora from being destroyed, and rules by which documents go after a time.

What a hold keeps is decided by the database (`holds_on_document`, `holds_on_fact`): a document with all its editions
and facts, where the document, a fact in it or its corpus is held. An erasure or a rule asks under the lock of the
change log, and placing or releasing a hold takes that lock, too. So each comes wholly before or after the other.

A rule is carried out by a worker, as ordinary changes of the log with the rule as reason. Days are counted by the clock
of the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Unpack, cast

from sqlalchemy import Select, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from colmlm.kb.access.records import Right, TokenRecord
from colmlm.kb.errors import (
    FactNotFound,
    InvalidValue,
    hold_not_found,
    hold_state,
    refusals,
    retention_rule_not_found,
)
from colmlm.kb.facts import edits, reading, suppression
from colmlm.kb.facts.facts import remove_documents
from colmlm.kb.facts.records import Edit
from colmlm.kb.facts.redaction import describe_held
from colmlm.kb.facts.suppression import OthersSaying
from colmlm.kb.log import audit
from colmlm.kb.log.audit import signature_of
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import Principal, acting_as, current_origin
from colmlm.kb.removal.erase import Erasure, ErasureRequests, erase_facts, load_targets
from colmlm.kb.removal.records import (
    DueDocument,
    HeldSelection,
    Hold,
    RetentionPlan,
    RetentionRule,
    RetentionTerms,
)
from colmlm.kb.store.waits import lift_statement_limit, retry_on_contention
from colmlm.kb.tables import (
    ApiKeyRow,
    DocumentRow,
    FactPastRow,
    FactRow,
    HoldRow,
    RetentionRuleRow,
    copy_columns,
    retention_actions,
    retention_starts,
)

PLACED, RELEASED, RULED = "place-hold", "release-hold", "retain"  # kinds of changes
STANDING = ("standing", "release-asked")


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a knowledge base.

    Where the settings want a second person, a hold is placed or released by two tokens: one asks, and another approves.
    The base enforces that the tokens differ; that they belong to two people is up to whoever hands them out.
    """

    kb: SearchableStore

    @retry_on_contention
    def place(self, *, token: TokenRecord | None = None, **chosen: Unpack[HeldSelection]) -> Hold:
        """Place a hold, or ask for it where two people are needed. Raises if a fact, document or corpus does not exist.

        Raises `FactErased` for a fact that is erased already, and `SecondPersonNeeded` without a token.
        """
        fact_ids = sorted(set(chosen.get("fact_ids", ())))
        document_ids = sorted(set(chosen.get("document_ids", ())))
        corpora = sorted(set(chosen.get("corpora", ())))
        if not (fact_ids or document_ids or corpora):
            raise InvalidValue("hold", "it names no fact, document or corpus. Name one")
        by_two = self.kb.settings.hold_needs_two == "both"
        if by_two and token is None:
            raise refusals.second_person_needed("A hold", "COLMLM_HOLD_NEEDS_TWO", "colmlm hold place")
        with _acting_with(token if by_two else None), self.kb.sessions.begin() as session:
            pending = audit.begin_change(session, chosen["actor"], chosen["reason"])
            _require_known(session, fact_ids, document_ids, corpora)
            row = HoldRow(
                state="asked",
                fact_ids=fact_ids,
                document_ids=document_ids,
                corpora=corpora,
                actor=signature_of(chosen["actor"]).actor,
                reason=chosen["reason"],
                asked_by=token.key_id if by_two and token else None,
            )
            session.add(row)
            session.flush()
            if not by_two:
                _place_hold(session, pending, row, None)
            return _read_hold(session, row.id)[1]

    @retry_on_contention
    def approve(self, hold_id: int, *, token: TokenRecord | None = None) -> Hold:
        """Place a hold that another token asked for. Raises `SamePerson`, `HoldState` or `SecondPersonNeeded`."""
        by = self._require_second(hold_id, token)
        with _acting_with(by), self.kb.sessions.begin() as session:
            audit.lock_log(session)  # before any row, as an erasure does
            row, known = _read_hold(session, hold_id, lock=True)
            if row.state != "asked":
                raise hold_state(hold_id, row.state)
            _require_other(f"Hold {hold_id}", known.asked_by, by, f"colmlm hold place --approve {hold_id}")
            pending = audit.begin_change(session, by.name, _joint_reason(row.reason, known.asked_by, by))
            row.approved_by = by.key_id
            _place_hold(session, pending, row, Principal("key", known.asked_by or "", row.asked_by))
            return _read_hold(session, hold_id)[1]

    @retry_on_contention
    def release(self, hold_id: int, *, actor: str, reason: str, token: TokenRecord | None = None) -> Hold:
        """Release a hold. Where two people are needed, the first call asks for it, and another token's call releases.

        Raises `HoldNotFound`, `HoldState`, `SamePerson` or `SecondPersonNeeded`.
        """
        by_two = self.kb.settings.hold_needs_two != "no"
        if by_two and token is None:
            raise refusals.second_person_needed("A release", "COLMLM_HOLD_NEEDS_TWO", "colmlm hold release")
        with _acting_with(token if by_two else None), self.kb.sessions.begin() as session:
            pending = audit.begin_change(session, actor, reason)
            row, known = _read_hold(session, hold_id, lock=True)
            if row.state not in STANDING:
                raise hold_state(hold_id, row.state)
            asked: Principal | None = None
            if by_two and token is not None:
                if row.state == "standing":
                    row.state, row.release_asked_by = "release-asked", token.key_id
                    row.release_actor, row.release_reason = signature_of(actor).actor, reason
                    session.flush()
                    return _read_hold(session, hold_id)[1]
                command = f"colmlm hold release {hold_id}"
                _require_other(f"The release of hold {hold_id}", known.release_asked_by, token, command)
                row.release_approved_by = token.key_id
                joint = _joint_reason(reason, known.release_asked_by, token)
                pending = audit.begin_change(session, actor, joint)
                asked = Principal("key", known.release_asked_by or "", row.release_asked_by)
            row.state, row.released_seq, row.release_at = "released", pending.seq, func.now()
            if asked is None:
                row.release_actor, row.release_reason = signature_of(actor).actor, reason
            session.flush()
            _log_hold(session, pending, RELEASED, row, asked)
            return _read_hold(session, hold_id)[1]

    @retry_on_contention
    def withdraw(self, hold_id: int, *, token: TokenRecord | None = None) -> Hold:
        """Take back a hold or a release that waits for a second person. Raises `HoldState` if none waits."""
        if self.kb.settings.hold_needs_two != "no":
            token = self._require_second(hold_id, token)
        with _acting_with(token), self.kb.sessions.begin() as session:
            audit.lock_log(session)
            row, _ = _read_hold(session, hold_id, lock=True)
            if row.state == "asked":
                row.state = "withdrawn"
            elif row.state == "release-asked":
                row.state = "standing"
                row.release_asked_by = row.release_actor = row.release_reason = None
            else:
                raise hold_state(hold_id, row.state)
            session.flush()
            return _read_hold(session, hold_id)[1]

    def _require_second(self, hold_id: int, token: TokenRecord | None) -> TokenRecord:
        if token is None and self.kb.settings.hold_needs_two == "no":
            raise hold_state(hold_id, self.read(hold_id).state)
        if token is None:
            what = "A decision on a hold"
            raise refusals.second_person_needed(what, "COLMLM_HOLD_NEEDS_TWO", "colmlm hold list")
        return token

    def all(
        self,
        *,
        standing: bool = False,
        fact_id: int | None = None,
        document_id: int | None = None,
        after: int = 0,
        limit: int = 50,
    ) -> list[Hold]:
        """List holds past id `after`, oldest first: all, those that stand, or those that keep a fact or a document."""
        statement = _HOLDS.where(HoldRow.id > after).order_by(HoldRow.id).limit(limit)
        if standing:
            statement = statement.where(HoldRow.state.in_(STANDING))
        if fact_id is not None:
            statement = statement.where(HoldRow.id.in_(select(func.holds_on_fact(fact_id))))
        if document_id is not None:
            statement = statement.where(HoldRow.id.in_(select(func.holds_on_document(document_id))))
        with self.kb.sessions() as session:
            return [_hold(*row) for row in session.execute(statement)]

    def read(self, hold_id: int) -> Hold:
        """Give one hold. Raises `HoldNotFound`."""
        with self.kb.sessions() as session:
            return _read_hold(session, hold_id)[1]

    def token_of(self, secret: str | None) -> TokenRecord | None:
        """Give the token of a secret; None where one person is enough. Raises `AdminKeyNeeded` if there is none."""
        if self.kb.settings.hold_needs_two == "no":
            return None
        return ErasureRequests(self.kb).token_of(secret, Right.edit)


_Asker, _Approver, _Releaser, _ReleaseApprover = (aliased(ApiKeyRow) for _ in range(4))
_HOLDS = (
    select(HoldRow, _Asker.name, _Approver.name, _Releaser.name, _ReleaseApprover.name)
    .outerjoin(_Asker, _Asker.id == HoldRow.asked_by)
    .outerjoin(_Approver, _Approver.id == HoldRow.approved_by)
    .outerjoin(_Releaser, _Releaser.id == HoldRow.release_asked_by)
    .outerjoin(_ReleaseApprover, _ReleaseApprover.id == HoldRow.release_approved_by)
)


def _read_hold(session: Session, hold_id: int, *, lock: bool = False) -> tuple[HoldRow, Hold]:
    statement = _HOLDS.where(HoldRow.id == hold_id).execution_options(populate_existing=True)
    storable = 0 < hold_id <= edits.MAX_ID
    found = (
        session.execute(statement.with_for_update(of=HoldRow) if lock else statement).one_or_none()
        if storable
        else None
    )
    if found is None:
        raise hold_not_found(hold_id)
    return found[0], _hold(*found)


def _hold(row: HoldRow, *tokens: str | None) -> Hold:
    names = ("asked_by", "approved_by", "release_asked_by", "release_approved_by")
    return copy_columns(
        Hold,
        row,
        hold_id=row.id,
        fact_ids=tuple(row.fact_ids),
        document_ids=tuple(row.document_ids),
        corpora=tuple(row.corpora),
        **dict(zip(names, tokens, strict=True)),
    )


def _require_known(
    session: Session, fact_ids: Sequence[int], document_ids: Sequence[int], corpora: Sequence[str]
) -> None:
    known = set(
        session.scalars(select(FactRow.id).where(FactRow.id == func.any(edits.storable_ids(fact_ids))))
    )
    if missing := sorted(set(fact_ids) - known):
        raise FactNotFound(missing)
    edits.refuse_erased(session, fact_ids)
    found = select(DocumentRow.id).where(DocumentRow.id == func.any(edits.storable_ids(document_ids)))
    if lost := sorted(set(document_ids) - set(session.scalars(found))):
        raise refusals.document_not_found(lost[0])
    for corpus in corpora:
        reading.require_corpus(session, corpus)


def _acting_with(token: TokenRecord | None) -> AbstractContextManager[None]:
    """Let the log name this token in the block, where two people are needed; None changes nothing."""
    if token is None:
        return nullcontext()
    return acting_as(token.principal, current_origin().on_behalf_of)


def _require_other(what: str, asked_by: str | None, token: TokenRecord, command: str) -> None:
    if asked_by == token.name:
        raise refusals.same_person(what, token.name, command)


def _joint_reason(reason: str, asked_by: str | None, token: TokenRecord) -> str:
    return f"{reason} (asked with the token {asked_by}, approved with the token {token.name})"


def _place_hold(session: Session, pending: audit.Pending, row: HoldRow, asked: Principal | None) -> None:
    row.state, row.seq = "standing", pending.seq
    session.flush()
    _log_hold(session, pending, PLACED, row, asked)


def _log_hold(
    session: Session, pending: audit.Pending, kind: str, row: HoldRow, asked: Principal | None
) -> None:
    kept = {"documents": list(row.document_ids), "corpora": list(row.corpora)}
    payload = {"hold": row.id, **kept, **({} if asked is None else {"asked_by": asked.to_json()})}
    audit.append_change(session, pending, kind, list(row.fact_ids), payload=payload)


_COUNT_ON = text("SELECT setval('hold_id_seq', greatest(:id, (SELECT last_value FROM hold_id_seq)))")


def repeat_hold(session: Session, said: Mapping[str, Any], actor: str, reason: str) -> None:
    """Place in a restored base the hold that `said`, an entry of a newer log, placed, with its id. Does not commit."""
    payload = said["payload"]
    pending = audit.begin_change(session, actor, reason)
    values = {
        "state": "standing",
        "fact_ids": list(said["fact_ids"]),
        "document_ids": payload["documents"],
        "corpora": payload["corpora"],
        "actor": said["actor"],
        "reason": said["reason"],
        "seq": pending.seq,
    }
    placing = insert(HoldRow).values(id=payload["hold"], **values)
    session.execute(placing.on_conflict_do_update(index_elements=["id"], set_=values))
    session.execute(_COUNT_ON, {"id": payload["hold"]})
    _log_hold(session, pending, PLACED, _read_hold(session, payload["hold"])[0], None)


def repeat_release(session: Session, said: Mapping[str, Any], actor: str, reason: str) -> None:
    """Release in a restored base, if it stands, the hold of `said`, a release in a newer log. Does not commit."""
    pending = audit.begin_change(session, actor, reason)
    row = session.get(HoldRow, said["payload"]["hold"])
    if row is None or row.state not in STANDING:
        return
    row.state, row.released_seq, row.release_at = "released", pending.seq, func.now()
    row.release_actor, row.release_reason = said["actor"], said["reason"]
    session.flush()
    _log_hold(session, pending, RELEASED, row, None)


# Retention rules: which documents of a corpus go, and when.

AT_ONCE = 200  # documents of one change
SHOWN = 50

# The newest edition of each document, where its text is there: of those to erase also documents out of use. Each part
# about other editions has the condition of an index.
_DUE = """(
SELECT d.id, d.external_id, d.title,
       coalesce(CASE WHEN :counts_from = 'date' THEN document_date(d.revision) END, greatest(d.ingested_at, s.at))
           + make_interval(days => :days) AS due_at
FROM document d LEFT JOIN document_seen s ON s.document_id = d.id
WHERE d.corpus = :corpus AND d.erased_seq IS NULL AND (d.replaced_seq IS NULL OR :action = 'erase' AND NOT EXISTS (
    SELECT FROM document n WHERE n.corpus = d.corpus AND n.external_id = d.external_id AND n.replaced_seq IS NULL)
  AND NOT EXISTS (
    SELECT FROM document n WHERE n.corpus = d.corpus AND n.external_id = d.external_id
       AND n.replaced_seq IS NOT NULL AND n.id > d.id))
  AND (CAST(:ids AS bigint[]) IS NULL OR d.id = ANY(CAST(:ids AS bigint[])))
) AS due"""
_HELD = "ARRAY(SELECT holds_on_document(due.id)) AS hold_ids"
_PLAN = text(
    "WITH dated AS MATERIALIZED (SELECT * FROM DUE), "
    "reached AS MATERIALIZED (SELECT HELD FROM dated AS due WHERE due_at <= :now) "
    "SELECT (SELECT count(*) FROM reached WHERE hold_ids = '{}') AS num_due, "
    "(SELECT count(*) FROM reached WHERE hold_ids <> '{}') AS num_held, "
    "(SELECT min(due_at) FROM dated WHERE due_at > :now) AS next_at".replace("DUE", _DUE).replace(
        "HELD", _HELD
    )
)
_LISTED = text(
    "SELECT due.*, HELD FROM DUE WHERE due_at <= :now ORDER BY due_at, id LIMIT :limit".replace(
        "DUE", _DUE
    ).replace("HELD", _HELD)
)
_DUE_IDS = text("SELECT id FROM DUE WHERE due_at <= :now ORDER BY due_at, id".replace("DUE", _DUE))
_DUE_ONE = text("SELECT due.*, '{}'::bigint[] AS hold_ids FROM DUE".replace("DUE", _DUE))
_EDITIONS = text("""
SELECT e.id FROM document d CROSS JOIN LATERAL (
    SELECT id, erased_seq FROM document n
    WHERE n.corpus = d.corpus AND n.external_id = d.external_id AND n.replaced_seq IS NULL
    UNION ALL
    SELECT id, erased_seq FROM document n
    WHERE n.corpus = d.corpus AND n.external_id = d.external_id AND n.replaced_seq IS NOT NULL
) AS e WHERE d.id = ANY(:ids) AND e.erased_seq IS NULL ORDER BY e.id
""")
_NOW = text("SELECT coalesce(CAST(:now AS timestamptz), now())")


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention rules of a knowledge base, at most one of each corpus."""

    kb: SearchableStore

    def rules(self) -> list[RetentionRule]:
        """List the rules by corpus."""
        with self.kb.sessions() as session:
            return [
                _rule(row)
                for row in session.scalars(select(RetentionRuleRow).order_by(RetentionRuleRow.corpus))
            ]

    @retry_on_contention
    def set_rule(
        self, corpus: str, *, actor: str, reason: str, **terms: Unpack[RetentionTerms]
    ) -> RetentionRule:
        """Give a corpus this rule, in place of the one that it has. No document goes before a worker carries it out.

        Raises `CorpusNotFound`, `InvalidValue`, and `SecondPersonNeeded` for one that erases where the settings want
        two people for an erasure.
        """
        self._check(terms)
        with self.kb.sessions.begin() as session:
            pending = audit.begin_change(session, actor, reason)
            reading.require_corpus(session, corpus)
            apply_rule(session, corpus, terms, pending.seq)
            audit.append_change(session, pending, RULED, payload={"corpus": corpus, **terms})
            return _rule(session.get_one(RetentionRuleRow, corpus, populate_existing=True))

    @retry_on_contention
    def end_rule(self, corpus: str, *, actor: str, reason: str) -> RetentionRule:
        """End the rule of a corpus and give it as it was. Raises `RetentionRuleNotFound`."""
        with self.kb.sessions.begin() as session:
            pending = audit.begin_change(session, actor, reason)
            if (row := session.get(RetentionRuleRow, corpus)) is None:
                raise retention_rule_not_found(corpus)
            former = _rule(row)
            apply_rule(session, corpus, None, pending.seq)
            audit.append_change(session, pending, RULED, payload={"corpus": corpus, "days": None})
            return former

    def plan(
        self,
        corpus: str,
        *,
        now: datetime | None = None,
        terms: RetentionTerms | None = None,
        limit: int = SHOWN,
    ) -> RetentionPlan:
        """Tell what the rule of a corpus, or one of these `terms`, would do now, and when the next document goes.

        `now` replaces the database's time. Changes nothing. Raises `CorpusNotFound`.
        """
        if terms is not None:
            self._check(terms)
        with self.kb.sessions() as session:
            reading.require_corpus(session, corpus)
            row = session.get(RetentionRuleRow, corpus)
            rule = _rule(row) if row is not None else None
            if terms is not None:
                rule = RetentionRule(corpus, **terms, seq=0)
            if rule is None:
                return RetentionPlan(corpus, None, _as_utc(session.scalar(_NOW, {"now": now})))
            time = session.scalar(_NOW, {"now": now})
            given = {**_parameters(rule), "now": time}
            found = session.execute(_PLAN, given).one()
            listed = session.execute(_LISTED, {**given, "limit": limit})
            return RetentionPlan(
                corpus,
                rule,
                _as_utc(time),
                found.num_due,
                found.num_held,
                None if found.next_at is None else _as_utc(found.next_at),
                tuple(_due(one, rule) for one in listed),
            )

    def due(self, document_id: int) -> DueDocument | None:
        """Give when and how the rule of its corpus removes a document; None if no rule applies to the document."""
        with self.kb.sessions() as session:
            corpus = session.scalar(select(DocumentRow.corpus).where(DocumentRow.id == document_id))
            row = session.get(RetentionRuleRow, corpus) if corpus is not None else None
            if row is None:
                return None
            rule = _rule(row)
            found = session.execute(_DUE_ONE, _parameters(rule) | {"ids": [document_id]}).one_or_none()
            return None if found is None else _due(found, rule)

    def carry_out(self, *, now: datetime | None = None) -> list[Edit]:
        """Delete or erase the documents that are due by their rules, and give the changes, one for each 200 documents.

        Held documents stay, and the changes name them. `now` replaces the database's time. After a rule that erases,
        the indexes are purged, as after an erasure. Such rules are skipped where an erasure needs two people.
        """
        done: list[Edit] = []
        for rule in self.rules():
            if rule.action == "erase" and self.kb.settings.erase_needs_two:
                continue
            with self.kb.sessions() as session:
                lift_statement_limit(session)
                time = session.scalar(_NOW, {"now": now})
                ids = session.scalars(_DUE_IDS, {**_parameters(rule), "now": time}).all()
            pieces = (
                self._carry_out(rule, time, ids[at : at + AT_ONCE]) for at in range(0, len(ids), AT_ONCE)
            )
            made = [edit for edit in pieces if edit is not None]
            if made and rule.action == "erase":
                Erasure(self.kb).finish(now=False)
            done += made
        return done

    @retry_on_contention
    def _carry_out(self, rule: RetentionRule, now: Any, document_ids: Sequence[int]) -> Edit | None:
        """Delete or erase, in one change, those of these documents that are still due and not held; None if none is."""
        actor, reason = self.kb.settings.actor, f"retention rule of change {rule.seq}: {_describe_rule(rule)}"
        with self.kb.sessions.begin() as session:
            lift_statement_limit(session)
            others: OthersSaying | None = None
            if rule.action == "erase":  # what takes long is done before the log is locked
                editions = session.scalars(_EDITIONS, {"ids": list(document_ids)}).all()
                others = OthersSaying.of(session, load_targets(session, _facts_of(session, editions))[0])
                suppression.begin_erasure(session)
            audit.lock_log(session)
            row = session.get(RetentionRuleRow, rule.corpus, populate_existing=True)
            if row is None or row.seq != rule.seq:
                return None  # somebody has set another meanwhile
            given = _parameters(rule) | {"now": now, "ids": list(document_ids), "limit": None}
            found = [_due(one, rule) for one in session.execute(_LISTED, given)]
            going = [one for one in found if not one.hold_ids]
            payload: dict[str, Any] = {"rule": rule.seq, "corpus": rule.corpus}
            if held := {one.document_id: one.hold_ids for one in found if one.hold_ids}:
                payload["held"] = describe_held(held)
            if not going:
                return None
            if rule.action == "delete":
                names = [one.external_id for one in going]
                return remove_documents(session, rule.corpus, names, actor, reason, payload)
            editions = session.scalars(_EDITIONS, {"ids": [one.document_id for one in going]}).all()
            erased = erase_facts(
                session,
                _facts_of(session, editions),
                actor,
                reason,
                others=others,
                document_ids=editions,
                payload=payload,
                home=self.kb.settings.home,
            )
            assert erased.seq is not None, "a document that is erased is a change"
            return Edit(erased.seq, "erase", erased.fact_ids)

    def _check(self, terms: RetentionTerms) -> None:
        if not 0 < terms["days"] <= 36_500:
            raise InvalidValue("days", f"{terms['days']} is not from 1 to 36500")
        if terms["action"] not in retention_actions:
            raise InvalidValue("action", f"it is not one of {', '.join(retention_actions)}")
        if terms["counts_from"] not in retention_starts:
            raise InvalidValue("counts_from", f"it is not one of {', '.join(retention_starts)}")
        if terms["action"] == "erase" and self.kb.settings.erase_needs_two:
            setting = "COLMLM_ERASE_NEEDS_TWO"
            raise refusals.second_person_needed("An erasure, also by a rule,", setting, "colmlm erase facts")


def apply_rule(session: Session, corpus: str, terms: RetentionTerms | None, seq: int) -> None:
    """Store these terms as the rule of a corpus, as of change `seq`; with None, delete its rule."""
    if terms is None:
        if (row := session.get(RetentionRuleRow, corpus)) is not None:
            session.delete(row)
            session.flush()
        return
    values = {**terms, "seq": seq}
    storing = insert(RetentionRuleRow).values(corpus=corpus, **values)
    session.execute(storing.on_conflict_do_update(index_elements=["corpus"], set_=values))


def repeat_rule(session: Session, said: Mapping[str, Any], actor: str, reason: str) -> None:
    """Set or end the rule of a corpus in a restored base as `said`, an entry of a newer log, did. Does not commit."""
    payload = said["payload"]
    pending = audit.begin_change(session, actor, reason)
    terms: RetentionTerms | None = None
    if payload["days"] is not None:
        terms = {"days": payload["days"], "action": payload["action"], "counts_from": payload["counts_from"]}
    apply_rule(session, payload["corpus"], terms, pending.seq)
    kept = {"corpus": payload["corpus"], **(terms or {"days": None})}
    audit.append_change(session, pending, RULED, payload=kept)


def _rule(row: RetentionRuleRow) -> RetentionRule:
    return copy_columns(RetentionRule, row)


def _parameters(rule: RetentionRule) -> dict[str, Any]:
    terms = {"days": rule.days, "action": rule.action, "counts_from": rule.counts_from}
    return {"corpus": rule.corpus, **terms, "ids": None}


def _describe_rule(rule: RetentionRule) -> str:
    """Write a rule in a few words, such as "delete 90 days after a document was last seen"."""
    since = "a document was last seen" if rule.counts_from == "seen" else "the date of a document"
    return f"{rule.action} {rule.days} days after {since}"


def _due(row: Any, rule: RetentionRule) -> DueDocument:
    return DueDocument(
        row.id, row.external_id, row.title, _as_utc(row.due_at), rule.action, tuple(row.hold_ids)
    )


def _as_utc(time: Any) -> datetime:
    return cast("datetime", time).astimezone(UTC)


def _facts_of(session: Session, document_ids: Sequence[int]) -> list[int]:
    """Give the facts, not yet erased, that have or had their span in one of these documents."""
    ids = list(document_ids)
    stood = select(FactPastRow.fact_id).where(FactPastRow.document_id == func.any(ids))
    here = (FactRow.document_id == func.any(ids)) | FactRow.id.in_(stood)
    statement: Select[Any] = select(FactRow.id).where(here, FactRow.erased_seq.is_(None)).order_by(FactRow.id)
    return list(session.scalars(statement))
