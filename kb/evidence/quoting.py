"""Redacts new outputs of what was erased while they were decoded."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.quotations import without
from colmlm.kb.tables import FactRow


def without_erased(session: Session, made: NewOutput) -> tuple[NewOutput, int | None]:
    """Redacts an output before it is stored; gives it with the last erasure that redacted it (None: none did).

    Erasures must be held off. Splices of facts that are erased by now are redacted, and in the rest of the output
    every text that was erased since the change that the decoder's lookups had seen.
    """
    hits = [splice.fact_id for splice in made.splices if splice.fact_id is not None]
    statement = select(FactRow.id, FactRow.erased_seq).where(
        FactRow.id == func.any(hits), FactRow.erased_seq.is_not(None)
    )
    erased = {row.id: row.erased_seq for row in session.execute(statement)}
    texts = ErasedTexts.counting(session, said := TextOrigin(frozenset(erased), seq=made.seq))
    if not (erased or texts):
        return made, None
    prompt, output = without(made.prompt, made.output, made.splices, erased.keys(), texts.within(said))
    if not erased and (prompt, output) == (made.prompt, made.output):
        return made, None
    splices = tuple(replace(s, query=None) if s.fact_id in erased else s for s in made.splices)
    return replace(made, prompt=prompt, output=output, splices=splices), max(texts.last, *erased.values(), 0)
