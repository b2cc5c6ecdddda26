"""Storing: keeps outputs with their splices, in as few statements as it can, since every output waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Insert, case, func, insert, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidSplice, InvalidValue
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import quoted, suppression
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.quoting_outputs import without
from colmlm.kb.log import audit
from colmlm.kb.misses import noting
from colmlm.kb.tables import AttributionRow, FactRow, FactVersionRow, GenerationRow, KeysetRow, answer_modes
from colmlm.kb.texts.wording import Span


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
    erased = check_splices(session, generation)
    check_quotation(session, generation)
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


# Redacts new outputs of what was erased while they were decoded.


def without_erased(
    session: Session, made: NewOutput, erased: Mapping[int, int]
) -> tuple[NewOutput, int | None]:
    """Redacts an output before it is stored; gives it with the last erasure that redacted it (None: none did).

    Erasures must be held off. Splices of facts that are `erased` by now, each by that change, are redacted, and in the
    rest of the output every text that was erased since the change that the decoder's lookups had seen, and what is
    redacted in the document that it quotes.
    """
    texts = ErasedTexts.counting(session, said := TextOrigin(frozenset(erased), seq=made.seq))
    marks = _marks(session, made)
    if not (erased or texts or marks):
        return made, None
    prompt, output = without(made.prompt, made.output, made.splices, erased.keys(), texts.within(said), marks)
    if not erased and (prompt, output) == (made.prompt, made.output):
        return made, None
    # A query is made from what stands before it, and all lookups of an answer have the one of its question.
    all_go = prompt != made.prompt or (made.mode in answer_modes and bool(erased))
    splices = tuple(
        replace(s, query=None) if all_go or s.outcome != "hit" or s.fact_id in erased else s
        for s in made.splices
    )
    last = max(texts.last, *erased.values(), 0) or _last_erasure(session)
    return replace(made, prompt=prompt, output=output, splices=splices), last


def _marks(session: Session, made: NewOutput) -> list[Span]:
    """Gives the spans of the output that are redacted by now in the document that it quotes."""
    if (quotes := made.quotes) is None:
        return []
    text = quoted.stretch(session, quotes.document_id, quotes.start, quotes.end)
    return quoted.marked(len(made.output), (quotes.start, quotes.end), made.splices, text or "")


def _last_erasure(session: Session) -> int | None:
    return session.scalar(select(func.max(FactRow.erased_seq)))


# Verbatim: checks that an output that is to be stored says, at each place, what it claims to have from there.

OUTCOMES = ("hit", "no_match", "abstained")


def check_splices(session: Session, generation: NewOutput) -> dict[int, int]:
    """Gives the changes that erased facts which the output names, by fact.

    Raises `InvalidSplice` where a span of the output is not the value that its splice names, or the part of it.
    """
    values, erased = _values(session, [s.fact_id for s in generation.splices if s.fact_id is not None])
    for ordinal, splice in enumerate(generation.splices):
        start, end = splice.output_start, splice.output_end
        if splice.outcome not in OUTCOMES:
            raise InvalidSplice(
                ordinal, f"its outcome is {splice.outcome!r}, not one of {', '.join(OUTCOMES)}"
            )
        if not 0 <= start <= end <= len(generation.output):
            raise InvalidSplice(ordinal, f"[{start}, {end}) is outside the output")
        if splice.outcome != "hit":
            if splice.fact_id is not None or splice.version is not None or start != end:
                raise InvalidSplice(ordinal, "no hit, and yet a fact, a version or a span")
        elif splice.fact_id is None or splice.version is None:
            raise InvalidSplice(ordinal, "a hit without a fact or a version")
        elif (splice.fact_id, splice.version) not in values:
            raise InvalidSplice(ordinal, f"version {splice.version} of fact {splice.fact_id} does not exist")
        elif (value := values[splice.fact_id, splice.version]) is None:
            continue
        elif not _is_part(splice, value) or splice.of(value) != generation.output[start:end]:
            said = "has another value than the output's span"
            raise InvalidSplice(ordinal, f"version {splice.version} of fact {splice.fact_id} {said}")
    return erased


def _is_part(splice: Splice, value: str) -> bool:
    """Says whether a splice is of the whole value, or names a part that the value has."""
    first, last = splice.part_start, splice.part_end
    if first is None or last is None:
        return first is last
    return 0 <= first < last <= len(value)


def check_quotation(session: Session, generation: NewOutput) -> None:
    """Raises `InvalidValue` where the words between the splices are not those of the stretch that the output quotes."""
    if (quotes := generation.quotes) is None:
        return
    place = (quotes.start, quotes.end)
    if not 0 <= quotes.start < quotes.end:
        raise InvalidValue("quotes", f"{place} is no stretch of a document")
    text = quoted.stretch(session, quotes.document_id, *place)
    if text is None or len(text) != quotes.end - quotes.start:
        raise InvalidValue("quotes", f"document {quotes.document_id} has no stretch {place}")
    if not quoted.is_quoted(generation.output, place, generation.splices, text):
        raise InvalidValue("quotes", f"document {quotes.document_id} does not say the output at {place}")


def _values(
    session: Session, fact_ids: Sequence[int]
) -> tuple[dict[tuple[int, int], str | None], dict[int, int]]:
    """Gives the values of these facts by fact and version, None where the fact is erased, and what erased facts."""
    storable = [fact_id for fact_id in fact_ids if 0 < fact_id <= facts.MAX_ID]
    if not storable:
        return {}, {}
    value = case((FactRow.erased_seq.is_(None), FactVersionRow.value)).label("value")
    statement = select(FactVersionRow.fact_id, FactVersionRow.version, value, FactRow.erased_seq).join(
        FactRow, FactRow.id == FactVersionRow.fact_id
    )
    versions = session.execute(statement.where(FactVersionRow.fact_id == func.any(storable))).all()
    values = {(row.fact_id, row.version): row.value for row in versions}
    return values, {row.fact_id: row.erased_seq for row in versions if row.erased_seq is not None}
