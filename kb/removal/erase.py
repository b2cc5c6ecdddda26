"""Erasure: removes facts for good. What remains is a record that there were facts, and who erased them, when and why.

One transaction redacts every text that says the facts, drops their keys, and appends one change of kind "erase" that
holds counts and ids only. `kb.removal.purge` then removes what files still hold, level by level.

An erasure is refused as a whole where a hold keeps one of its facts or documents. Another document that mentions an
erased fact stays whole while it is held; the report, the log and the certificate name it.

Erasing an erased fact again redacts the texts stored before its erasure that still say it. If there are none, nothing
is changed and no change is appended. Documents, and texts stored since, are not searched again: their words may come
from elsewhere.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Select, case, delete, func, select, text, update
from sqlalchemy.orm import Session, aliased

from colmlm.kb.access import access
from colmlm.kb.access.records import Right, TokenRecord
from colmlm.kb.access.tokens import verify_token
from colmlm.kb.errors import FactNotFound, refusals
from colmlm.kb.facts import pairs, suppression
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import (
    MARK,
    ErasureTarget,
    FormerText,
    as_mentioned,
    blank_out,
    check_mentioned,
    describe_held,
    erase_documents,
    held_facts,
    redact_documents,
    require_unheld,
    strings_of,
)
from colmlm.kb.facts.suppression import OthersSaying, TextOrigin
from colmlm.kb.log import audit
from colmlm.kb.log.audit import signature_of
from colmlm.kb.log.chain import seal_breaks
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import Principal, acting_as, current_origin
from colmlm.kb.removal import lineage, persons, quotations
from colmlm.kb.removal.persons import PersonPlan
from colmlm.kb.removal.purge import last_level_reached, purge_erased
from colmlm.kb.removal.quotations import ErasedFacts
from colmlm.kb.removal.records import Erased, ErasureReport, ErasureRequest
from colmlm.kb.removal.scan import OnFile, ResidueReport, scan_residue
from colmlm.kb.removal.traces import Trace, find_mentions, make_traces, mark_shared
from colmlm.kb.store.waits import lift_statement_limit, retry_on_contention
from colmlm.kb.tables import (
    ApiKeyRow,
    DocumentRow,
    ErasureRequestRow,
    FactKeyRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    TombstoneRow,
    copy_columns,
)
from colmlm.kb.texts.characters import visible_text
from colmlm.kb.texts.wording import Phrases, forms_of_text

Heard = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Erasure:
    """Erases facts of a knowledge base for good."""

    kb: SearchableStore

    def erase(
        self,
        fact_ids: Sequence[int],
        *,
        actor: str,
        reason: str,
        mentions: Mentioned = "same-document",
        plan: PersonPlan | None = None,
        now: bool = False,
        on_step: Heard | None = None,
    ) -> ErasureReport:
        """Erase facts, all or none, from tables and indexes (level 2).

        With `now` true, PostgreSQL's files are then rewritten as well, as far as that server permits (up to level 4).
        With the `plan` for a person, which names exact places, `fact_ids` are the plan's facts and mentions are "none".

        The facts may be live or deleted. For facts that are erased already, texts from before which still say them are
        redacted. `mentions` says where else values are redacted: in their own documents, in "all" documents, or in
        "none". Outputs, plans and jobs that say them are redacted too, with "none" only those that used the facts. The
        report names what is `left`. Raises `SecondPersonNeeded` where the settings require two people: see
        `ErasureRequests`.
        """
        if self.kb.settings.erase_needs_two:
            setting = "COLMLM_ERASE_NEEDS_TWO"
            raise refusals.second_person_needed("An erasure", setting, "colmlm erase facts")
        return self.report(self._erase(fact_ids, actor, reason, mentions, plan), now=now, on_step=on_step)

    @retry_on_contention
    def _erase(
        self,
        fact_ids: Sequence[int],
        actor: str,
        reason: str,
        mentions: Mentioned,
        plan: PersonPlan | None = None,
    ) -> Erased:
        with self.kb.sessions.begin() as session:
            targets, _ = load_targets(session, fact_ids)
            home = self.kb.settings.home
            erased = erase_facts(session, fact_ids, actor, reason, mentions=mentions, plan=plan, home=home)
        return self.with_left_mentions(erased, targets)

    def with_left_mentions(self, erased: Erased, targets: Sequence[ErasureTarget]) -> Erased:
        """Give an erasure's outcome with `left`: what else still says the values that its `targets` had before."""
        with self.kb.sessions() as session:
            lift_statement_limit(session)
            return replace(erased, left=find_mentions(session, targets))

    def preview(
        self,
        fact_ids: Sequence[int],
        *,
        mentions: Mentioned = "same-document",
        plan: PersonPlan | None = None,
    ) -> Erased:
        """Give what `erase` would do in the database and leave there: do it, count, and roll back."""
        with self.kb.sessions() as session:
            targets, _ = load_targets(session, fact_ids)
            actor, home = self.kb.settings.actor, self.kb.settings.home
            erased = erase_facts(session, fact_ids, actor, "preview", mentions=mentions, plan=plan, home=home)
            return replace(erased, left=find_mentions(session, targets))

    def finish(self, *, now: bool = True, on_step: Heard | None = None) -> ErasureReport:
        """Take all erasures so far to level 2 (out of indexes), with `now` up to 4 (out of the WAL) if permitted."""
        return self.report(None, now=now, on_step=on_step)

    @retry_on_contention
    def complete(self, *, actor: str, reason: str) -> Erased | None:
        """Redact, as one erasure, rows that still say an erased fact. Facts on hold are left. None if no row does."""
        with self.kb.sessions.begin() as session:
            lift_statement_limit(session)
            suppression.begin_erasure(session)
            said = quotations.facts_still_said(session)
            said -= held_facts(session, said).keys()
            home = self.kb.settings.home
            return erase_facts(session, sorted(said), actor, reason, home=home) if said else None

    def report(self, erased: Erased | None, *, now: bool, on_step: Heard | None) -> ErasureReport:
        """Purge erased texts from indexes, with `now` from files. Report on `erased` (None: on all erasures so far)."""
        levels = purge_erased(self.kb, now=now, on_step=on_step or (lambda _: None))
        return ErasureReport(erased, last_level_reached(levels), levels, 4 if now else 2)

    def traces(
        self,
        fact_ids: Sequence[int],
        *,
        mentions: Mentioned = "same-document",
        plan: PersonPlan | None = None,
    ) -> tuple[Trace, ...]:
        """Make the byte strings that no file should hold once these facts are erased and these mentions redacted.

        They are made before the erasure, and contain the texts.
        """
        with self.kb.sessions() as session:
            lift_statement_limit(session)
            targets, _ = load_targets(session, fact_ids)
            made = make_traces(session, targets, mentions)
            if plan is None:
                return made
            made = (*made, *persons.make_place_traces(session, plan))
            return _compare_with_what_stays(session, fact_ids, plan, made)

    def residue(self, traces: Sequence[Trace], on_file: OnFile | None = None) -> ResidueReport:
        """Search the files for these traces, without the shared ones, which prove nothing."""
        telling = [trace for trace in traces if not trace.shared]
        return scan_residue(
            [trace.needle for trace in telling],
            engine=self.kb.engine,
            settings=self.kb.settings,
            keys=[n for n, trace in enumerate(telling) if trace.kind == "key"],
            on_file=on_file,
        )


def _compare_with_what_stays(
    session: Session, fact_ids: Sequence[int], plan: PersonPlan, made: Sequence[Trace]
) -> tuple[Trace, ...]:
    """Erase by the plan, which the caller rolls back, and mark as `shared` the traces that texts then still hold."""
    erase_facts(session, fact_ids, "preview", "preview", plan=plan)
    return tuple(mark_shared(session, made))


def erase_facts(
    session: Session,
    fact_ids: Sequence[int],
    actor: str,
    reason: str,
    *,
    mentions: Mentioned = "same-document",
    asked_by: Principal | None = None,
    others: OthersSaying | None = None,
    document_ids: Sequence[int] = (),
    payload: Mapping[str, Any] | None = None,
    plan: PersonPlan | None = None,
    home: Path | None = None,
) -> Erased:
    """Redact and end these facts, drop their keys, and append the change. Does not commit.

    The places of a person's `plan` are blanked, too. Raises `PlanStale` if one was edited since, and `HoldStands` if a
    fact or document is held. `others` are facts that say the same; without it they are searched for, before anything is
    locked. `asked_by` made the request that another token approved, and the change names both. For facts that were
    erased before, the rows that still say them are redacted. The documents `document_ids`, which have no other facts,
    are redacted whole. The training records of weights in the `home` and of registered checkpoints are compared with
    the redacted texts.
    """
    mentions = mentions if plan is None else "none"
    check_mentioned(mentions)
    lift_statement_limit(session)
    seen = others or OthersSaying.of(session, load_targets(session, fact_ids)[0])
    suppression.begin_erasure(session)
    pending = audit.begin_change(session, actor, reason)
    targets, again = load_targets(session, fact_ids)
    ids = [target.fact_id for target in targets]
    planned = [] if plan is None else [one.row_id for one in plan.places if one.table == "document"]
    require_unheld(session, [*ids, *again], {*document_ids, *planned})
    named = set[str]() if plan is None else persons.words_at_places(session, plan)
    saying = seen.by_now(session, targets)
    num_digests, also_said_by = suppression.remember_suppressed(session, targets, pending.seq, saying)
    # The forms of texts that are redacted only in what names one of these facts.
    standing = set(chain(*saying.values()))
    if mentions == "none":
        standing = {form for string in strings_of(targets) for form in forms_of_text(string)}
    suppression.keep_erased(session, targets, pending.seq, standing)
    about = set(quotations.redact_erased_again(session, again))
    former: dict[int, FormerText] = {}
    redacted, held = redact_documents(session, targets, mentions, former)
    erase_documents(session, document_ids, pending.seq, former)
    quoting = quotations.redact_quotations(
        session, ErasedFacts.of_erasure(session, targets, again, standing), pending.seq
    )
    blanked = (
        []
        if plan is None
        else quotations.blank_places(session, plan.places, plan.fact_ids, pending.seq, former)
    )
    documents = sorted(about.union(redacted, document_ids, blanked))
    if not (targets or quoting or documents or named):
        return Erased(seq=None, fact_ids=tuple(again), again=tuple(again))
    end_erased(session, targets, pending.seq)
    pairs.compare_redacted(session, documents)
    access.forget_answers(session)
    dropping = delete(FactKeyRow).where(FactKeyRow.fact_id == func.any(ids)).returning(FactKeyRow.id)
    dropped = sorted(session.scalars(dropping))
    said: dict[str, Any] = {
        **(payload or {}),
        "documents": documents,
        **{name: list(found) for name, found in asdict(quoting).items()},
        "digests": num_digests,
        "dropped_keys": dropped,
        "mentions": mentions,  # so that a repetition of this erasure, as after a restore, reaches as far
    }
    if document_ids:
        said["whole_documents"] = sorted(document_ids)
    if held:
        said["held"] = describe_held(held)
    names = Phrases(strings_of(targets) | named)
    found = tuple(
        replace(one, name=blank_out(one.name, names.spans(one.name)))
        for one in lineage.find_lineage(session, home, former)
    )
    if found:
        said[lineage.PART] = lineage.findings_to_json(found)
    if asked_by is not None:
        said["asked_by"] = asked_by.to_json()
    if plan is not None:
        said["places"] = [place.to_json() for place in plan.places]
    touched = sorted((*ids, *again))
    discreet = _append(session, pending, strings_of(targets) | named, touched, said)
    if plan is not None and (entries := persons.blanked_changes(plan)):
        seal_breaks(session, entries, actor, discreet, erasure=pending.seq)
    return Erased(
        seq=pending.seq,
        fact_ids=tuple(touched),
        again=tuple(again),
        documents=tuple(documents),
        **asdict(quoting),
        num_keys=len(dropped),
        num_digests=num_digests,
        also_said_by=tuple(also_said_by),
        held_documents=tuple(held),
        lineage=found,
        places={} if plan is None else persons.count_places(plan),
    )


def _append(
    session: Session,
    pending: audit.Pending,
    strings: Collection[str],
    fact_ids: Sequence[int],
    payload: dict[str, Any],
) -> str:
    """Append the change with these strings redacted in its reason and `on_behalf_of`. Give the redacted reason."""
    said, asked = Phrases(strings), current_origin()
    behalf = asked.on_behalf_of and blank_out(asked.on_behalf_of, said.spans(asked.on_behalf_of))
    discreet = replace(pending, reason=blank_out(pending.reason, said.spans(pending.reason)))
    with acting_as(asked.principal, behalf):
        audit.append_change(session, discreet, "erase", fact_ids, payload=payload)
    return discreet.reason


_REDACT_VALUES = text("""
UPDATE fact_version v
SET value = coalesce(m.markers ->> n.at::int, m.marker), to_seq = coalesce(v.to_seq, :seq)
FROM unnest(CAST(:ids AS bigint[]), CAST(:markers AS jsonb[]), CAST(:spans AS text[])) AS m (fact_id, markers, marker)
JOIN (SELECT fact_id, version, row_number() OVER (PARTITION BY fact_id ORDER BY version) - 1 AS at
      FROM fact_version WHERE fact_id = ANY(:ids)) AS n USING (fact_id)
WHERE v.fact_id = n.fact_id AND v.version = n.version
""")


# Once all facts of a forget run are erased, the run cannot be restored any more.
_END_FORGET_RUNS = text("""
UPDATE forget_run r SET state = 'erased'
WHERE r.state = 'applied' AND r.fact_ids && CAST(:ids AS bigint[])
  AND NOT EXISTS (SELECT FROM fact f WHERE f.id = ANY(r.fact_ids) AND f.erased_seq IS NULL)
""")


def end_erased(session: Session, targets: Sequence[ErasureTarget], seq: int) -> None:
    """Replace the texts of these facts by U+2588, and end the facts as part of change `seq`."""
    ids = [target.fact_id for target in targets]
    markers, spans = [json.dumps(one.markers) for one in targets], [one.marker for one in targets]
    session.execute(_REDACT_VALUES, {"seq": seq, "ids": ids, "markers": markers, "spans": spans})
    session.execute(
        update(FactRow)
        .where(FactRow.id == func.any(ids))
        .values(
            # A fact without a document must have a question: a constraint of the table.
            question=case((FactRow.document_id.is_(None), MARK)),
            answer=None,
            erased_seq=func.coalesce(FactRow.erased_seq, seq),
            deleted_seq=func.coalesce(FactRow.deleted_seq, seq),
        )
    )
    session.execute(delete(FactPastRow).where(FactPastRow.fact_id == func.any(ids)))
    session.execute(_END_FORGET_RUNS, {"ids": ids})
    session.execute(delete(TombstoneRow).where(TombstoneRow.fact_id == func.any(ids)))


def load_targets(session: Session, fact_ids: Sequence[int]) -> tuple[list[ErasureTarget], list[int]]:
    """Read these facts by id, each once: those to erase with their texts, and the ids of those erased before.

    Raises `FactNotFound` if one does not exist.
    """
    wanted = sorted(set(fact_ids))
    storable = [fact_id for fact_id in wanted if 0 < fact_id <= MAX_ID]
    found = session.execute(
        select(FactRow, DocumentRow.corpus, DocumentRow.external_id)
        .outerjoin(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any(storable))
        .order_by(FactRow.id)
        .execution_options(populate_existing=True)
    ).all()
    if missing := sorted(set(wanted) - {row.FactRow.id for row in found}):
        raise FactNotFound(missing)
    erased = [row.FactRow.id for row in found if row.FactRow.erased_seq is not None]
    rows = [row for row in found if row.FactRow.erased_seq is None]
    versions = select(FactVersionRow.fact_id, FactVersionRow.value).order_by(FactVersionRow.version)
    values = _group_by_first(session, versions.where(FactVersionRow.fact_id == func.any(storable)))
    pasts = select(FactPastRow.fact_id, FactPastRow).order_by(FactPastRow.version)
    past = _group_by_first(session, pasts.where(FactPastRow.fact_id == func.any(storable)))
    states = [state for row in rows for state in (row.FactRow, *past[row.FactRow.id])]
    ids = sorted({state.document_id for state in states if state.document_id is not None})
    texts = _group_by_first(
        session, select(DocumentRow.id, DocumentRow.text).where(DocumentRow.id == func.any(ids))
    )
    inside = FactRow.document_id == func.any(ids), FactRow.span_start.is_not(None)  # also of erased ones
    spans = _group_by_first(
        session, select(FactRow.document_id, FactRow.span_start, FactRow.span_end).where(*inside)
    )

    def target_of(
        row: Any, state: FactRow | FactPastRow, former: Iterable[FactPastRow] = ()
    ) -> ErasureTarget:
        target = ErasureTarget(
            row.FactRow.id,
            state.question,
            state.answer,
            tuple(values[row.FactRow.id]),
            former=tuple(target_of(row, one) for one in former),
        )
        if state.document_id is None:
            return target
        if state.span_start is None or state.span_end is None:
            return replace(target, external_id=row.external_id, start=row.FactRow.ordinal)
        return replace(
            target,
            document_id=state.document_id,
            corpus=row.corpus,
            external_id=row.external_id,
            start=state.span_start,
            end=state.span_end,
            text=texts[state.document_id][0],
            spans=tuple(spans[state.document_id]),
        )

    return [target_of(row, row.FactRow, past[row.FactRow.id]) for row in rows], erased


def _group_by_first(session: Session, statement: Select[*tuple[Any, ...]]) -> defaultdict[int, list[Any]]:
    """Group the other columns of rows by the first one: as a value where there is one, else as a tuple."""
    found = defaultdict[int, list[Any]](list)
    for first, *others in session.execute(statement):
        found[first].append(others[0] if len(others) == 1 else tuple(others))
    return found


# Erasure by two people: one admin token asks, and another approves before anything is erased.
#
# The base enforces that the two tokens differ; that they belong to two people is up to whoever hands them out.


@dataclass(frozen=True, slots=True)
class ErasureRequests:
    """The requests to erase facts of a knowledge base: those that wait for a second token, and those decided."""

    kb: SearchableStore

    def token_of(self, secret: str | None, right: Right = Right.admin) -> TokenRecord:
        """Give the token that a secret belongs to. Raises `AdminKeyNeeded` unless it has this right."""
        with self.kb.sessions() as session:
            token = verify_token(session, secret) if secret else None
        if token is None or not token.may(right):
            raise refusals.admin_key_needed()
        return token

    @retry_on_contention
    def ask(
        self,
        fact_ids: Sequence[int],
        *,
        token: TokenRecord,
        actor: str,
        reason: str,
        mentions: Mentioned = "same-document",
        plan: PersonPlan | None = None,
    ) -> ErasureRequest:
        """Store a request to erase these facts, all or none; they may be live, deleted or erased. Erases nothing."""
        audit.check_who(actor, reason)
        check_mentioned(mentions)
        with self.kb.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            targets, again = load_targets(session, fact_ids)
            ids = sorted((*(target.fact_id for target in targets), *again))
            require_unheld(session, ids)  # and again when it is approved
            named = set[str]() if plan is None else persons.words_at_places(session, plan)
            reason = blank_out(reason, Phrases(named).spans(reason))
            behalf = signature_of(actor).on_behalf_of
            row = ErasureRequestRow(
                state="waiting",
                fact_ids=ids,
                actor=token.name,
                on_behalf_of=behalf if behalf != token.name else None,
                reason=quotations.redact_for_origin(session, reason, TextOrigin(frozenset(ids))),
                asked_by=token.key_id,
                mentions=mentions if plan is None else "none",
                plan=None if plan is None else plan.to_json(),
            )
            session.add(row)
            session.flush()
            return _read(session, row.id)[1]

    def requests(self, *, waiting: bool = False) -> list[ErasureRequest]:
        """Give every request, oldest first, or only those that wait."""
        statement = _SELECT.order_by(ErasureRequestRow.id)
        if waiting:
            statement = statement.where(ErasureRequestRow.state == "waiting")
        with self.kb.sessions() as session:
            return [_record(*row) for row in session.execute(statement)]

    def read(self, request_id: int) -> ErasureRequest:
        """Give one request. Raises `ErasureRequestNotFound`."""
        with self.kb.sessions() as session:
            return _read(session, request_id)[1]

    def approve(
        self, request_id: int, *, token: TokenRecord, now: bool = False, on_step: Heard | None = None
    ) -> tuple[ErasureRequest, ErasureReport]:
        """Erase the facts of a request, as `Erasure.erase` does. The change is logged for `token` and names both.

        Raises `SamePerson` where `token` made the request, `ErasureRequestState` where it was decided before.
        """
        done, erased = self._approve(request_id, token)
        return done, Erasure(self.kb).report(erased, now=now, on_step=on_step)

    @retry_on_contention
    def _approve(self, request_id: int, token: TokenRecord) -> tuple[ErasureRequest, Erased]:
        with self.kb.sessions.begin() as session:
            lift_statement_limit(session)
            row, asked = _read(session, request_id)
            if row.asked_by == token.key_id:
                command = f"colmlm erase settle approve {request_id}"
                raise refusals.same_person(f"Erasure request {request_id}", token.name, command)
            _require_waiting(row)  # before every fact is read for it
            others = OthersSaying.of(session, load_targets(session, asked.fact_ids)[0])
            # Before any row is locked, as an erasure redacts what requests say.
            suppression.begin_erasure(session)
            row, asked = _read(session, request_id, lock=True)
            said = visible_text(asked.reason, "")  # requests of older versions may hold invisible characters
            targets, _ = load_targets(session, asked.fact_ids)
            with acting_as(token.principal, asked.on_behalf_of):
                erased = erase_facts(
                    session,
                    asked.fact_ids,
                    token.name,
                    f"{said} (asked with the token {asked.asked_by}, approved with the token {token.name})",
                    mentions=asked.mentions or "none",  # older versions did not store it, and redacted none
                    asked_by=Principal("key", asked.asked_by, row.asked_by),
                    others=others,
                    plan=None if row.plan is None else PersonPlan.from_json(row.plan),
                    home=self.kb.settings.home,
                )
            done = _decide(session, row, "approved", token, erased.seq)
        return done, Erasure(self.kb).with_left_mentions(erased, targets)

    @retry_on_contention
    def withdraw(self, request_id: int, *, token: TokenRecord) -> ErasureRequest:
        """End a request without erasing anything. The token that made the request may do that, too."""
        with self.kb.sessions.begin() as session:
            row, _ = _read(session, request_id, lock=True)
            return _decide(session, row, "withdrawn", token, None)


_Asker, _Decider = aliased(ApiKeyRow), aliased(ApiKeyRow)
_SELECT = (
    select(ErasureRequestRow, _Asker.name, _Decider.name)
    .join(_Asker, _Asker.id == ErasureRequestRow.asked_by)
    .outerjoin(_Decider, _Decider.id == ErasureRequestRow.decided_by)
)


def _read(
    session: Session, request_id: int, *, lock: bool = False
) -> tuple[ErasureRequestRow, ErasureRequest]:
    """Read a request and its record. With `lock` its row is locked, and it must wait for a decision."""
    statement = _SELECT.where(ErasureRequestRow.id == request_id)
    if lock:
        statement = statement.with_for_update(of=ErasureRequestRow)
    found = session.execute(statement.execution_options(populate_existing=True)).one_or_none()
    if found is None:
        raise refusals.erasure_request_not_found(request_id)
    if lock:
        _require_waiting(found[0])
    return found[0], _record(*found)


def _require_waiting(row: ErasureRequestRow) -> None:
    if row.state != "waiting":
        raise refusals.erasure_request_state(row.id, row.state)


def _decide(
    session: Session, row: ErasureRequestRow, state: str, token: TokenRecord, seq: int | None
) -> ErasureRequest:
    row.state, row.decided_by, row.decided_at, row.seq = state, token.key_id, func.now(), seq
    session.flush()
    return _read(session, row.id)[1]


def _record(row: ErasureRequestRow, asked_by: str, decided_by: str | None) -> ErasureRequest:
    return copy_columns(
        ErasureRequest,
        row,
        erasure_request_id=row.id,
        fact_ids=tuple(row.fact_ids),
        asked_by=asked_by,
        decided_by=decided_by,
        mentions=as_mentioned(row.mentions),
        num_places=len(row.plan["places"]) if row.plan else 0,
    )
