"""Outputs: stores what decoders say with the facts spliced into it, and traces it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, InvalidValue, refusals
from colmlm.kb.evidence import attribution, storing
from colmlm.kb.evidence.provenance import ProvForm, fact_account, output_account, write_prov
from colmlm.kb.evidence.records import (
    FactTrace,
    Feedback,
    GenerationRecord,
    Impact,
    ImpactedOutput,
    NewFeedback,
    NewOutput,
    OutputTrace,
    SelectedImpact,
    Thumb,
)
from colmlm.kb.evidence.storing import give_feedback
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import reading
from colmlm.kb.facts.reading import VersionOrigin
from colmlm.kb.facts.redaction import FormerText
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import as_service, scope_of_caller
from colmlm.kb.removal.lineage import find_lineage
from colmlm.kb.removal.selector import Selector, select_facts
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import AttributionRow, CheckpointRow, FactRow, GenerationRow, copy_columns


@dataclass(frozen=True, slots=True)
class Outputs:
    """The verbs of a store's outputs: store, trace, judge and list them."""

    store: SearchableStore

    @retry_on_contention
    def record(self, generation: NewOutput) -> int:
        """Store an output that was decoded here, with its splices, and give its id."""
        with self.store.sessions.begin() as session:
            return storing.record_output(session, generation).output.id

    @retry_on_contention
    def record_traced(self, generation: NewOutput) -> OutputTrace:
        """Store an output that was decoded here, and give its trace."""
        with self.store.sessions.begin() as session:
            return attribution.trace_stored(session, storing.record_output(session, generation))

    @retry_on_contention
    def record_from_elsewhere(self, generation: NewOutput) -> OutputTrace:
        """Store an output of another process's decoder, and give its trace without the edits of its facts since.

        Raises `InvalidValue` for a checkpoint without a keyset here or a change that the log does not have, and
        `InvalidSplice` for a query of another dimension or a span that is not the value of its fact's version.
        """
        with self.store.sessions.begin() as session:
            _check_output(session, generation)
            trace = attribution.trace_stored(session, storing.record_output(session, generation))
            untold: dict[str, Any] = {
                "history": (),
                "given_by": None,
                "document_says": None,
                "sentence": None,
            }
            return replace(trace, splices=tuple(replace(splice, **untold) for splice in trace.splices))

    def trace(self, generation_id: int) -> OutputTrace:
        """Trace each splice of an output to its fact. Raises `GenerationNotFound`."""
        with self.store.sessions() as session:
            return attribution.trace_output(session, generation_id)

    def trace_fact(self, fact_id: int) -> FactTrace:
        """Trace a fact to its source, its edits, the outputs that used it, and the weights trained on its document.

        Raises `FactNotFound`.
        """
        with self.store.sessions() as session:
            traced = attribution.trace_fact(session, fact_id)
            # Which weights there are, and what they were trained on, is of the whole base.
            if (source := traced.fact.source) is None or scope_of_caller() is not None:
                return traced
            text = FormerText.of_text(reading.document_text(session, source.document_id))
            found = find_lineage(session, self.store.settings.home, {source.document_id: text})
            return replace(traced, lineage=found)

    def provenance(self, generation_id: int, form: ProvForm) -> dict[str, Any]:
        """Give an output's trace as W3C PROV. Raises `GenerationNotFound`."""
        with self.store.sessions() as session:
            trace = attribution.trace_output(session, generation_id)
            return write_prov(output_account(trace, audit.database_id(session)), form)

    def provenance_of_fact(self, fact_id: int, form: ProvForm) -> dict[str, Any]:
        """Give a fact's trace as W3C PROV. Raises `FactNotFound`."""
        with self.store.sessions() as session:
            trace = attribution.trace_fact(session, fact_id)
            return write_prov(fact_account(trace, audit.database_id(session)), form)

    @retry_on_contention
    def give_feedback(
        self, generation_id: int, made: NewFeedback, *, actor: str, on_behalf_of: str = ""
    ) -> Feedback:
        """Store somebody's feedback on an output, in place of their earlier one.

        Raises `GenerationNotFound` or `InvalidValue`.
        """
        with self.store.sessions.begin() as session:
            return give_feedback(session, generation_id, made, actor, on_behalf_of)

    def find(
        self, after: int = 0, limit: int = 50, thumb: Thumb | None = None, principal: str | None = None
    ) -> list[GenerationRecord]:
        """List stored outputs older than output `after` (0: all), newest first.

        With `thumb` only outputs with such feedback, with `principal` only those that this token, or user of the
        machine, asked for.
        """
        with self.store.sessions() as session:
            return attribution.list_generations(session, after, limit, thumb, principal)

    def attributions(
        self,
        *,
        fact_id: int | None = None,
        generation_id: int | None = None,
        document_id: int | None = None,
        after: LookupPlace = (0, 0),
        limit: int = 50,
    ) -> list[AttributionRecord]:
        """List the stored lookups that match every filter, by output id and ordinal, past the pair `after` of these."""
        with self.store.sessions() as session:
            return list_attributions(
                session,
                fact_id=fact_id,
                generation_id=generation_id,
                document_id=document_id,
                after=after,
                limit=limit,
            )

    def impact(self, fact_id: int, *, after: LookupPlace = (0, 0), limit: int | None = None) -> Impact:
        """List the splices of a fact in stored outputs, past `after` (output id, ordinal). Raises `FactNotFound`."""
        with self.store.reports() as session:
            fact = session.get(FactRow, fact_id) if 0 < fact_id <= facts.MAX_ID else None
            if fact is None:
                raise FactNotFound([fact_id])
            return Impact(
                fact_id=fact_id,
                is_live=fact.deleted_seq is None,
                erased_seq=fact.erased_seq,
                outputs=_impacted_outputs(session, [fact_id], after, limit),
            )

    def impact_of_selection(
        self, selector: Selector, *, after: LookupPlace = (0, 0), limit: int | None = None
    ) -> SelectedImpact:
        """List the splices of the live facts that a selector chooses. Choosing none is no error."""
        with self.store.reports() as session:
            return impact_of_selection(session, selector, after=after, limit=limit)

    def neighbours(self, generation_id: int, ordinal: int, k: int = 5) -> list[Hit] | None:
        """Find the k live facts that are nearest now to the query of lookup `ordinal` of an output, at any score.

        Gives None where no query was stored. Raises `KeysetMismatch` where the keyset of the output's checkpoint is
        not active.
        """
        return neighbours_of(self.store, generation_id, ordinal, k)


# Neighbours: finds the facts that are nearest now to the query of a stored lookup.


def neighbours_of(store: SearchableStore, generation_id: int, ordinal: int, k: int) -> list[Hit] | None:
    """Find the k live facts nearest to the stored query of a lookup by key; None if no query was stored."""
    with store.sessions() as session:
        asked = session.execute(
            select(AttributionRow.query, GenerationRow.checkpoint_id)
            .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
            .where(AttributionRow.generation_id == generation_id, AttributionRow.ordinal == ordinal)
        ).one_or_none()
    if asked is None or asked.query is None:
        return None
    query_1D = keysets.decode_keys([asked.query], len(asked.query) // keysets.STORED.itemsize)
    with as_service():  # an index is of all corpora, its filter of those of the caller
        (found,) = store.lookups.find(query_1D, checkpoint_id=asked.checkpoint_id, k=k, threshold=-1.0)
    return list(found.hits)


# Impact: lists the stored outputs that facts were spliced into, and whether the spliced values are still
# current.

LookupPlace = tuple[int, int]  # the place of a lookup: the output's id, and the lookup's ordinal in it


def impact_of_selection(
    session: Session, selector: Selector, *, after: LookupPlace = (0, 0), limit: int | None = None
) -> SelectedImpact:
    """List the splices of the live facts that a selector chooses, past `after`. Choosing none is no error."""
    fact_ids = select_facts(session, selector, allow_empty=True)
    used = select(func.count(AttributionRow.generation_id.distinct()))
    return SelectedImpact(
        num_facts=len(fact_ids),
        num_outputs=session.scalar(used.where(AttributionRow.fact_id == func.any(fact_ids))) or 0,
        outputs=_impacted_outputs(session, fact_ids, after, limit),
    )


def _impacted_outputs(
    session: Session, fact_ids: Sequence[int], after: LookupPlace, limit: int | None
) -> tuple[ImpactedOutput, ...]:
    statement = (
        select(AttributionRow, GenerationRow, FactRow)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .join(FactRow, FactRow.id == AttributionRow.fact_id)
        .where(AttributionRow.fact_id == func.any(list(fact_ids)))
        .where(tuple_(AttributionRow.generation_id, AttributionRow.ordinal) > after)
        .order_by(AttributionRow.generation_id, AttributionRow.ordinal)
        .limit(limit)
    )
    uses = session.execute(statement).all()
    records = reading.fact_records(session, sorted({fact.id for _, _, fact in uses}))
    live = {fact_id: record.value for fact_id, record in records.items() if record.deleted_seq is None}
    then = reading.version_origins(session, [(fact.id, used.fact_version) for used, _, fact in uses])
    return tuple(
        _impacted_output(used, stored, fact, live.get(fact.id), then[fact.id, used.fact_version or 0])
        for used, stored, fact in uses
    )


def _impacted_output(
    used: AttributionRow, stored: GenerationRow, fact: FactRow, live_value: str | None, then: VersionOrigin
) -> ImpactedOutput:
    assert used.fact_version is not None, "a hit without a version cannot be stored"
    said = stored.output[used.output_start : used.output_end]
    if fact.erased_seq is not None:
        since = "erased"
    elif fact.deleted_seq is not None:
        since = "deleted"
    else:
        now = None if live_value is None else live_value[used.part_start : used.part_end]
        since = "current" if said == now else "corrected"
    return ImpactedOutput(
        fact_id=fact.id,
        generation_id=stored.id,
        ordinal=used.ordinal,
        prompt=stored.prompt,
        output=stored.output,
        output_start=used.output_start,
        output_end=used.output_end,
        version=used.fact_version,
        seq=stored.seq,
        at=stored.at.astimezone(UTC),
        since=since,
        entered=then.document_says is not None,
    )


# Lists the attributions of single lookups of stored outputs, by fact, by output or by document.


@dataclass(frozen=True, slots=True)
class AttributionRecord:
    """Lookup `ordinal` of an output. `value` is what it spliced, ``output[output_start:output_end]``.

    The value is empty where there was no hit. `document_id` is the document of the fact, if that has one. It stands in
    a list over many outputs, so it names its output, and has no history, which would be read for each.
    """

    generation_id: int
    ordinal: int
    output_start: int
    output_end: int
    outcome: str
    value: str
    fact_id: int | None
    version: int | None
    document_id: int | None
    score: float | None
    seq: int
    at: datetime


def list_attributions(
    session: Session,
    *,
    fact_id: int | None = None,
    generation_id: int | None = None,
    document_id: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = 50,
) -> list[AttributionRecord]:
    """List the stored lookups that match every filter, ordered by output and ordinal, after the place `after`."""
    length = AttributionRow.output_end - AttributionRow.output_start
    value = func.substr(GenerationRow.output, AttributionRow.output_start + 1, length).label("value")
    statement = (
        select(AttributionRow, value, GenerationRow.seq, GenerationRow.at, FactRow.document_id)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .outerjoin(FactRow, FactRow.id == AttributionRow.fact_id)
        .where(tuple_(AttributionRow.generation_id, AttributionRow.ordinal) > after)
        .order_by(AttributionRow.generation_id, AttributionRow.ordinal)
        .limit(limit)
    )
    for column, wanted in (
        (AttributionRow.fact_id, fact_id),
        (AttributionRow.generation_id, generation_id),
        (FactRow.document_id, document_id),
    ):
        if wanted is not None:
            statement = statement.where(column == wanted)
    return [
        copy_columns(
            AttributionRecord,
            looked_up,
            value=said,
            version=looked_up.fact_version,
            document_id=read_from,
            seq=seq,
            at=at.astimezone(UTC),
        )
        for looked_up, said, seq, at, read_from in session.execute(statement)
    ]


# Stores outputs of decoders elsewhere. The knowledge base checks what it can of them, and takes the rest on
# trust.


def _check_output(session: Session, generation: NewOutput) -> None:
    if generation.seq > (head := audit.head_seq(session)):
        raise InvalidValue("seq", f"change {generation.seq} does not exist yet. Give at most {head}")
    if (checkpoint := session.get(CheckpointRow, generation.checkpoint_id)) is None:
        raise InvalidValue("checkpoint_id", f"no keyset comes from {generation.checkpoint_id!r}")
    for ordinal, splice in enumerate(generation.splices):
        if splice.query is not None and not _is_query(splice.query, checkpoint.dim):
            raise refusals.invalid_splice(
                ordinal, f"its query is not {checkpoint.dim} finite numbers in fp16"
            )


def _is_query(query: bytes, dim: int) -> bool:
    return len(query) == dim * STORED.itemsize and bool(np.isfinite(np.frombuffer(query, STORED)).all())
