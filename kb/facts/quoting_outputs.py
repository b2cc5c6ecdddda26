"""Redacts stored outputs that say an erased fact: where it was spliced, said otherwise, or quoted with its document.

The functions take the session first and never commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.facts import quoted
from colmlm.kb.facts.erased_texts import TextOrigin
from colmlm.kb.facts.gone import Sought
from colmlm.kb.facts.kept_questions import RedactedRows
from colmlm.kb.facts.redaction import MARK, apart, blank
from colmlm.kb.tables import AttributionRow, GenerationRow, answer_modes
from colmlm.kb.texts.wording import Finder, Phrases, Span

AT_ONCE = 500


class SplicedLookup(Protocol):
    """A splice of an output: one that is stored (a row) or about to be (a record of a higher floor)."""

    @property
    def output_start(self) -> int: ...
    @property
    def output_end(self) -> int: ...
    @property
    def fact_id(self) -> int | None: ...


def without(
    prompt: str,
    output: str,
    splices: Sequence[SplicedLookup],
    erased: Collection[int],
    finder: Finder,
    marks: Sequence[Span] = (),
) -> tuple[str, str]:
    """Gives prompt and output with the splices of erased facts, repetitions of these and the finder's spans redacted.

    A splice of another fact stays, even where it says the same. `marks` are spans of the output that its document,
    which it quotes, says no more.
    """
    own = [(s.output_start, s.output_end) for s in splices if s.fact_id in erased]
    others = [(s.output_start, s.output_end) for s in splices if s.fact_id not in erased]
    spliced = Phrases(output[start:end].replace(MARK, " ") for start, end in own)
    in_prompt, in_output = ((*finder.spans(text), *spliced.spans(text)) for text in (prompt, output))
    return blank(prompt, in_prompt), blank(output, (*own, *apart((*in_output, *marks), others)))


def redact(session: Session, sought: Sought, seq: int) -> Iterator[int]:
    """Redacts the outputs that say one of these texts, as part of change `seq`, and yields their ids."""
    asked: list[int] = []
    said: list[int] = []
    for row, values in quoting(session, sought):
        (said if row.prompt == values["prompt"] else asked).append(row.id)
        row.prompt, row.output, row.redacted_seq = values["prompt"], values["output"], seq
        yield row.id
    session.flush()
    _drop_queries(session, sought.fact_ids, asked, said)


def _drop_queries(session: Session, fact_ids: Collection[int], asked: list[int], said: list[int]) -> None:
    """Removes the queries by which these facts were spliced. All lookups of an answer have the one of its question.

    A query was made from what stood before it: so all go of outputs whose prompt was redacted (`asked`), and where only
    what they `said` was, those that found nothing.
    """
    used = AttributionRow.fact_id == func.any(list(fact_ids))
    answers = select(GenerationRow.id).join(
        AttributionRow, (AttributionRow.generation_id == GenerationRow.id) & used
    )
    answers = answers.where(GenerationRow.mode.in_(answer_modes))
    of_output = AttributionRow.generation_id
    gone = or_(
        used,
        of_output.in_(answers),
        of_output == func.any(asked),
        and_(of_output == func.any(said), AttributionRow.outcome != "hit"),
    )
    session.execute(update(AttributionRow).where(gone, AttributionRow.query.is_not(None)).values(query=None))


def quoting(session: Session, sought: Sought) -> RedactedRows:
    """Yields the outputs that say one of these texts, with prompt and output redacted. Changes nothing."""
    spliced = select(AttributionRow.generation_id).where(
        AttributionRow.fact_id == func.any(list(sought.fact_ids))
    )
    statement = (
        select(GenerationRow)
        .where(or_(GenerationRow.id.in_(spliced), sought.outputs(), quoted.with_marks()))
        .order_by(GenerationRow.id)
    )
    last, found = 0, True
    while found:
        page = list(
            session.scalars(
                statement.where(GenerationRow.id > last)
                .limit(AT_ONCE)
                .execution_options(populate_existing=True)
            )
        )
        splices = splices_of(session, [row.id for row in page])
        stretches = quoted.stretches(session, [row.id for row in page])
        for row in page:
            hits = splices.get(row.id, [])
            said = TextOrigin(frozenset(s.fact_id for s in hits), seq=row.seq)
            marks = _marks(row, hits, stretches.get(row.id))
            prompt, output = without(
                row.prompt, row.output, hits, sought.fact_ids, sought.finder(said), marks
            )
            if (prompt, output) != (row.prompt, row.output):
                sought.met.update(said.fact_ids.intersection(sought.fact_ids))
                yield row, {"prompt": prompt, "output": output}
        last, found = (page[-1].id, True) if page else (last, False)


def _marks(row: GenerationRow, hits: Sequence[Any], stretch: str | None) -> list[Span]:
    """Gives the spans of an output that are redacted in the document that it quotes (None: it quotes none)."""
    if stretch is None or row.quoted_start is None or row.quoted_end is None:
        return []
    return quoted.marked(len(row.output), (row.quoted_start, row.quoted_end), hits, stretch)


def splices_of(session: Session, generation_ids: list[int]) -> dict[int, list[Any]]:
    """Gives by output the splices that said a fact, with where they stand in the output and in what it quotes."""
    statement = select(
        AttributionRow.generation_id,
        AttributionRow.fact_id,
        AttributionRow.output_start,
        AttributionRow.output_end,
        AttributionRow.quoted_start,
        AttributionRow.quoted_end,
    ).where(AttributionRow.generation_id == func.any(generation_ids), AttributionRow.outcome == "hit")
    found: dict[int, list[Any]] = {}
    for row in session.execute(statement):
        found.setdefault(row.generation_id, []).append(row)
    return found
