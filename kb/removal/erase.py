"""Erasure: removes facts for good. What remains is a record that there were facts, and who erased them, when and why.

One transaction redacts every text that says the facts, drops their keys, and appends one change of kind
"erase" that holds counts and ids only. `kb.removal.purge` then removes what files still hold, level by level.

Erasing an erased fact again redacts whatever still says it; where nothing does, nothing is changed and no change is
appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import case, delete, func, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.access import idempotency
from colmlm.kb.errors import FactNotFound, SecondPersonNeeded
from colmlm.kb.facts import erased_texts, pairs, quotations, suppression
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.facts import Gone, StandingTexts
from colmlm.kb.facts.quotations import Quoting
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import (
    MARK,
    ErasureTarget,
    blank_out,
    check_mentioned,
    redact_about,
    redact_documents,
)
from colmlm.kb.facts.suppression import OthersSaying
from colmlm.kb.log import audit
from colmlm.kb.log.audit import acting_as, current_entry
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import Principal
from colmlm.kb.removal.purge import purge_erased, reached
from colmlm.kb.removal.records import Erased, ErasureReport
from colmlm.kb.removal.scan import OnFile, ResidueReport, scan_residue
from colmlm.kb.removal.traces import Trace, look_for_traces, make_traces
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.waits import unhurried
from colmlm.kb.tables import (
    ChangeRow,
    DocumentRow,
    FactKeyRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    TombstoneRow,
)
from colmlm.kb.texts.wording import Phrases, forms

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
        now: bool = False,
        on_step: Heard | None = None,
    ) -> ErasureReport:
        """Erases facts, all or none, then goes on to level 2, or with `now` as far as the server permits.

        The facts may be live or deleted; of facts that are erased already it redacts what still says them. `mentions`
        says where else the values are redacted: in their own documents, in "all" documents, or in "none". Outputs,
        plans and jobs that say them are redacted too, with "none" only those that used the facts. The report names
        what is `left`. Raises `SecondPersonNeeded` where the settings require two people: see `kb.removal.requests`.
        """
        if self.kb.settings.erase_needs_two:
            raise SecondPersonNeeded
        return self.report(self._erase(fact_ids, actor, reason, mentions), now=now, on_step=on_step)

    @tried_again
    def _erase(self, fact_ids: Sequence[int], actor: str, reason: str, mentions: Mentioned) -> Erased:
        with self.kb.sessions.begin() as session:
            targets, _ = load_targets(session, fact_ids)
            erased = erase_facts(session, fact_ids, actor, reason, mentions=mentions)
        return self.with_left(erased, targets)

    def with_left(self, erased: Erased, targets: Sequence[ErasureTarget]) -> Erased:
        """Adds to an erasure what still says its facts, by their texts as `targets` holds them from before."""
        with self.kb.sessions() as session:
            unhurried(session)
            return replace(erased, left=look_for_traces(session, targets))

    def preview(self, fact_ids: Sequence[int], *, mentions: Mentioned = "same-document") -> Erased:
        """Tells what `erase` would do in the database and leave: does it, counts, and rolls back."""
        with self.kb.sessions() as session:
            targets, _ = load_targets(session, fact_ids)
            erased = erase_facts(session, fact_ids, self.kb.settings.actor, "preview", mentions=mentions)
            return replace(erased, left=look_for_traces(session, targets))

    def finish(self, *, now: bool = True, on_step: Heard | None = None) -> ErasureReport:
        """Takes every erasure so far to level 2, or with `now` as far as the server permits."""
        return self.report(None, now=now, on_step=on_step)

    @tried_again
    def complete(self, *, actor: str, reason: str) -> Erased | None:
        """Redacts what still says an erased fact, as one erasure. Gives None where nothing does."""
        with self.kb.sessions.begin() as session:
            unhurried(session)
            suppression.begin_erasure(session)
            said = quotations.still_said(session)
            return erase_facts(session, sorted(said), actor, reason) if said else None

    def report(self, erased: Erased | None, *, now: bool, on_step: Heard | None) -> ErasureReport:
        """Takes this erasure (None: all earlier ones) as far as it goes, and reports the level that it reached."""
        levels = purge_erased(self.kb, now=now, on_step=on_step or (lambda _: None))
        return ErasureReport(erased, reached(levels), levels, 4 if now else 2)

    def traces(self, fact_ids: Sequence[int], *, mentions: Mentioned = "same-document") -> tuple[Trace, ...]:
        """Makes byte strings that no file should hold once these facts are erased, with these mentions.

        They are made before the erasure, and contain the texts.
        """
        with self.kb.sessions() as session:
            unhurried(session)
            targets, _ = load_targets(session, fact_ids)
            return make_traces(session, targets, mentions)

    def residue(self, traces: Sequence[Trace], on_file: OnFile | None = None) -> ResidueReport:
        """Searches the files for these traces, without the shared ones, which prove nothing."""
        telling = [trace for trace in traces if not trace.shared]
        return scan_residue(
            [trace.needle for trace in telling],
            engine=self.kb.engine,
            settings=self.kb.settings,
            keys=[n for n, trace in enumerate(telling) if trace.kind == "key"],
            on_file=on_file,
        )


def erase_facts(
    session: Session,
    fact_ids: Sequence[int],
    actor: str,
    reason: str,
    *,
    mentions: Mentioned = "same-document",
    asked_by: Principal | None = None,
    others: OthersSaying | None = None,
) -> Erased:
    """Redacts and ends these facts, drops their keys, and appends the change. Does not commit.

    `others` say the same; they are looked for, before anything is locked, where the caller has not.
    `asked_by` made the request where somebody else had to approve it; the change names both.
    Of facts that were erased before, it redacts what still says them.
    """
    check_mentioned(mentions)
    unhurried(session)
    seen = others or OthersSaying.look(session, load_targets(session, fact_ids)[0])
    suppression.begin_erasure(session)
    pending = audit.begin_change(session, actor, reason)
    targets, again = load_targets(session, fact_ids)
    ids = [target.fact_id for target in targets]
    quoting = (
        quotations.redact_quotations(session, Gone.read(session, again), pending.seq) if again else Quoting()
    )
    about = set(_redact_about(session, again))
    if not (targets or quoting or about):
        return Erased(seq=None, fact_ids=tuple(again), again=tuple(again))
    saying = seen.by_now(session, targets)
    num_digests, also_said_by = suppression.remember_suppressed(session, targets, pending.seq, saying)
    standing = _standing(session, targets, mentions, saying)
    erased_texts.keep_erased(session, targets, pending.seq, standing)
    documents = sorted(about.union(redact_documents(session, targets, mentions)))
    quoting |= quotations.redact_quotations(session, StandingTexts.of(targets, standing), pending.seq)
    _end(session, targets, pending.seq)
    _compare_again(session, documents)
    idempotency.forget_answers(session)
    dropping = delete(FactKeyRow).where(FactKeyRow.fact_id == func.any(ids)).returning(FactKeyRow.id)
    dropped = sorted(session.scalars(dropping))
    payload: dict[str, Any] = {
        "documents": documents,
        **{name: list(found) for name, found in asdict(quoting).items()},
        "digests": num_digests,
        "dropped_keys": dropped,
        "mentions": mentions,  # so that a repetition of this erasure, as after a restore, reaches as far
    }
    if asked_by is not None:
        payload["asked_by"] = asked_by.to_json()
    touched = sorted((*ids, *again))
    _append(session, pending, targets, touched, payload)
    return Erased(
        seq=pending.seq,
        fact_ids=tuple(touched),
        again=tuple(again),
        documents=tuple(documents),
        **asdict(quoting),
        num_keys=len(dropped),
        num_digests=num_digests,
        also_said_by=tuple(also_said_by),
    )


def _redact_about(session: Session, again: Sequence[int]) -> Iterator[int]:
    """Redact what is stored about the documents of facts that were erased with their mentions before."""
    reach = select(FactRow.id).join(ChangeRow, ChangeRow.seq == FactRow.erased_seq)
    reaching = reach.where(ChangeRow.payload["mentions"].astext.is_distinct_from("none"))
    for fact_id in session.scalars(reaching.where(FactRow.id == func.any(list(again)))).all():
        said = ErasedTexts.read(session, [fact_id]).within(TextOrigin(frozenset({fact_id})))
        yield from redact_about(session, fact_id, said)


def _standing(
    session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned, others: Sequence[int]
) -> set[str]:
    """Gives the forms of those texts of the facts that are redacted only in what names one of these facts."""
    if mentions == "none":
        return {form for target in targets for string in target.strings for form in forms(string)}
    return suppression.said_by_others(session, targets, others)


def _append(
    session: Session,
    pending: audit.Pending,
    targets: Sequence[ErasureTarget],
    fact_ids: Sequence[int],
    payload: dict[str, Any],
) -> None:
    """Appends the change, its reason and `on_behalf_of` redacted of what the facts said, since the log stays."""
    said = Phrases(string for target in targets for string in target.strings)
    asked = current_entry()
    behalf = asked.on_behalf_of and blank_out(asked.on_behalf_of, said.spans(asked.on_behalf_of))
    discreet = replace(pending, reason=blank_out(pending.reason, said.spans(pending.reason)))
    with acting_as(asked.principal, behalf):
        audit.append_change(session, discreet, "erase", fact_ids, payload=payload)


_REDACT_VALUES = text("""
UPDATE fact_version v
SET value = m.marker, to_seq = coalesce(v.to_seq, :seq)
FROM unnest(CAST(:ids AS bigint[]), CAST(:markers AS text[])) AS m (fact_id, marker) WHERE v.fact_id = m.fact_id
""")


# Once all facts of a forget run are erased, the run cannot be restored any more.
_END_FORGET_RUNS = text("""
UPDATE forget_run r SET state = 'erased'
WHERE r.state = 'applied' AND r.fact_ids && CAST(:ids AS bigint[])
  AND NOT EXISTS (SELECT FROM fact f WHERE f.id = ANY(r.fact_ids) AND f.erased_seq IS NULL)
""")


def _end(session: Session, targets: Sequence[ErasureTarget], seq: int) -> None:
    ids = [target.fact_id for target in targets]
    markers = [target.marker for target in targets]
    session.execute(_REDACT_VALUES, {"seq": seq, "ids": ids, "markers": markers})
    session.execute(
        update(FactRow)
        .where(FactRow.id == func.any(ids))
        .values(
            # A fact without a document must have a question: a constraint of the table.
            question=case((FactRow.document_id.is_(None), MARK)),
            answer=None,
            erased_seq=seq,
            deleted_seq=func.coalesce(FactRow.deleted_seq, seq),
        )
    )
    session.execute(delete(FactPastRow).where(FactPastRow.fact_id == func.any(ids)))
    session.execute(_END_FORGET_RUNS, {"ids": ids})
    session.execute(delete(TombstoneRow).where(TombstoneRow.fact_id == func.any(ids)))


def _compare_again(session: Session, document_ids: Sequence[int]) -> None:
    """Drop the pairs of facts whose sentences were redacted in these documents."""
    of_these = (FactRow.document_id == func.any(document_ids), FactRow.deleted_seq.is_(None))
    reset = select(FactRow.id).where(*of_these, FactRow.frame.is_(None))
    if fact_ids := session.scalars(reset.order_by(FactRow.id)).all():
        pairs.keep_pairs(session, fact_ids, anyway=True)


def load_targets(session: Session, fact_ids: Sequence[int]) -> tuple[list[ErasureTarget], list[int]]:
    """Reads these facts by id, each once, with their texts, and gives the ids of erased ones apart.

    Raises `FactNotFound`.
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
    values, past = _values(session, storable), _past(session, storable)
    states = [state for row in rows for state in (row.FactRow, *past.get(row.FactRow.id, ()))]
    documents = sorted({state.document_id for state in states if state.document_id is not None})
    texts, spans = _texts(session, documents)
    return [
        replace(
            _target(row, row.FactRow, values[row.FactRow.id], texts, spans),
            former=tuple(
                _target(row, state, values[row.FactRow.id], texts, spans)
                for state in past.get(row.FactRow.id, ())
            ),
        )
        for row in rows
    ], erased


def _past(session: Session, fact_ids: list[int]) -> dict[int, list[FactPastRow]]:
    found: dict[int, list[FactPastRow]] = {}
    statement = select(FactPastRow).where(FactPastRow.fact_id == func.any(fact_ids))
    for state in session.scalars(statement.order_by(FactPastRow.fact_id, FactPastRow.version)):
        found.setdefault(state.fact_id, []).append(state)
    return found


def _values(session: Session, fact_ids: list[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    statement = select(FactVersionRow.fact_id, FactVersionRow.value).where(
        FactVersionRow.fact_id == func.any(fact_ids)
    )
    for fact_id, value in session.execute(statement.order_by(FactVersionRow.fact_id, FactVersionRow.version)):
        found.setdefault(fact_id, []).append(value)
    return found


def _texts(session: Session, documents: list[int]) -> tuple[dict[int, str], dict[int, list[tuple[int, int]]]]:
    """Gives the text of each document, and all spans of facts in it, also of erased ones."""
    of_documents = select(DocumentRow.id, DocumentRow.text).where(DocumentRow.id == func.any(documents))
    texts = {row.id: row.text for row in session.execute(of_documents)}
    spans: dict[int, list[tuple[int, int]]] = {}
    statement = select(FactRow.document_id, FactRow.span_start, FactRow.span_end)
    in_documents = FactRow.document_id == func.any(documents), FactRow.span_start.is_not(None)
    for row in session.execute(statement.where(*in_documents)):
        spans.setdefault(row.document_id, []).append((row.span_start, row.span_end))
    return texts, spans


def _target(
    row: Any,
    state: FactRow | FactPastRow,
    values: list[str],
    texts: dict[int, str],
    spans: dict[int, list[tuple[int, int]]],
) -> ErasureTarget:
    said = (row.FactRow.id, state.question, state.answer, tuple(values))
    if state.document_id is None:
        return ErasureTarget(*said)
    if state.span_start is None or state.span_end is None:
        return ErasureTarget(*said, external_id=row.external_id, start=row.FactRow.ordinal)
    return ErasureTarget(
        *said,
        document_id=state.document_id,
        corpus=row.corpus,
        external_id=row.external_id,
        start=state.span_start,
        end=state.span_end,
        text=texts[state.document_id],
        spans=tuple(spans.get(state.document_id, ())),
    )
