"""Storing: keeps outputs with their splices, in as few statements as it can, since every output waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Insert, insert, select
from sqlalchemy.orm import Session

from colmlm.kb.evidence import verbatim
from colmlm.kb.evidence.quoting import without_erased
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts import suppression
from colmlm.kb.log import audit
from colmlm.kb.misses import noting
from colmlm.kb.tables import AttributionRow, GenerationRow, KeysetRow


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """The rows of an output, with those of its lookups in their order."""

    output: GenerationRow
    lookups: Sequence[AttributionRow]


def record(session: Session, generation: NewOutput) -> StoredOutput:
    """Stores an output with its splices. Raises `InvalidSplice` where a span is not its fact's value.

    Raises `InvalidValue` where the words between the splices are not those of the document that the output quotes.
    Splices of facts that were erased meanwhile are stored redacted: the output stays as evidence without what it said.
    For these the span is not compared with the value, since the answer would confirm a guess.
    """
    for name in ("prompt", "output"):
        audit.check_text(name, getattr(generation, name), limit=10_000_000)
    suppression.hold_off_erasure(session)
    erased = verbatim.check_splices(session, generation)
    verbatim.check_quotation(session, generation)
    generation, redacted_seq = without_erased(session, generation, erased)
    output = session.scalars(_output(generation, redacted_seq).returning(GenerationRow)).one()
    rows = [_lookup(output.id, ordinal, splice) for ordinal, splice in enumerate(generation.splices)]
    lookups = session.scalars(_LOOKUPS, rows).all() if rows else ()
    missed = [n for n, splice in enumerate(generation.splices) if splice.outcome == "no_match"]
    noting.note(session, output.id, missed)
    return StoredOutput(output, sorted(lookups, key=lambda lookup: lookup.ordinal))


# Rows with and without a fact go in by one statement.
_LOOKUPS = insert(AttributionRow).returning(AttributionRow).execution_options(render_nulls=True)


def _output(made: NewOutput, redacted_seq: int | None) -> Insert:
    keyset = select(KeysetRow.id).where(
        KeysetRow.checkpoint_id == made.checkpoint_id, KeysetRow.state != "retired"
    )
    return insert(GenerationRow).values(
        prompt=made.prompt,
        output=made.output,
        checkpoint_id=made.checkpoint_id,
        keyset_id=keyset.limit(1).scalar_subquery(),
        seq=made.seq,
        mode=made.mode,
        redacted_seq=redacted_seq,
        document_id=made.quotes.document_id if made.quotes else None,
        quoted_start=made.quotes.start if made.quotes else None,
        quoted_end=made.quotes.end if made.quotes else None,
        ranking=made.ranking,
        accepted_only=made.accepted_only,
    )


def _lookup(generation_id: int, ordinal: int, splice: Splice) -> dict[str, object]:
    return {
        "generation_id": generation_id,
        "ordinal": ordinal,
        "output_start": splice.output_start,
        "output_end": splice.output_end,
        "outcome": splice.outcome,
        "fact_id": splice.fact_id,
        "fact_version": splice.version,
        "score": splice.score,
        "query": splice.query,
        "part_start": splice.part_start,
        "part_end": splice.part_end,
        "quoted_start": splice.quoted_start,
        "quoted_end": splice.quoted_end,
    }
