"""Mentions: other texts in the base that say what a fact said. Session first; nothing here changes anything.

They are looked for while the texts of the fact are still in memory: before it is erased, or right after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.erasure.records import Mention, Mentions, Stretch
from colmlm.kb.facts.redaction import ErasureTarget
from colmlm.kb.tables import ChangeRow, DocumentRow, FactPastRow, FactRow, FactVersionRow, GenerationRow
from colmlm.kb.texts.wording import Phrases, may_say

MOST = 500  # mentions of each kind that are listed


def look(session: Session, targets: Sequence[ErasureTarget]) -> Mentions:
    """Finds what else says the values of these facts; among reasons also what says their questions and answers."""
    values = sorted({value for target in targets for value in target.values})
    if not values:
        return Mentions()
    said, strings = Phrases(values), sorted({string for target in targets for string in target.strings})
    ids = [target.fact_id for target in targets]
    of_facts = (FactVersionRow.value, FactRow.question, FactRow.answer)
    facts = (
        select(FactRow.id, *of_facts)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.erased_seq.is_(None), FactRow.id != func.all(ids))
    )
    past = select(FactPastRow.fact_id, *_ASKED).where(FactPastRow.fact_id != func.all(ids))
    past = select(FactPastRow.fact_id, *_ASKED).where(FactPastRow.fact_id != func.all(ids))
    return Mentions(
        documents=tuple(_documents(session, targets, values, said)),
        titles=_ids(session, select(DocumentRow.id, *_ABOUT), _ABOUT, values, said),
        facts=tuple(
            sorted(
                {*_ids(session, facts, of_facts, values, said), *_ids(session, past, _ASKED, values, said)}
            )
        ),
        generations=_ids(session, select(GenerationRow.id, *_SAID), _SAID, values, said),
        reasons=_ids(session, select(ChangeRow.seq, *_WHY), _WHY, strings, Phrases(strings)),
    )


_ASKED = (FactPastRow.question, FactPastRow.answer)
_ABOUT = (DocumentRow.title, DocumentRow.uri, DocumentRow.external_id)
_SAID = (GenerationRow.prompt, GenerationRow.output)
_WHY = (ChangeRow.reason, ChangeRow.actor, ChangeRow.payload["on_behalf_of"].astext)


def _documents(
    session: Session, targets: Sequence[ErasureTarget], values: Sequence[str], said: Phrases
) -> Iterator[Mention]:
    sources = {(target.corpus, target.external_id) for target in targets}
    own = {target.document_id: (target.start, target.end) for target in targets}
    statement = select(
        DocumentRow.id, DocumentRow.corpus, DocumentRow.external_id, DocumentRow.text
    ).order_by(DocumentRow.id)
    found = 0
    for row in session.execute(
        statement.where(may_say(DocumentRow.text, values)).execution_options(yield_per=200)
    ):
        spans = [span for span in said.spans(row.text) if span != own.get(row.id)]
        if spans and found < MOST:
            found += 1
            yield Mention(
                row.id, (row.corpus, row.external_id) in sources, tuple(Stretch(*span) for span in spans)
            )


def _ids(
    session: Session, statement: Any, columns: Sequence[Any], texts: Sequence[str], said: Phrases
) -> tuple[int, ...]:
    may = or_(*(may_say(column, texts) for column in columns))
    rows = session.execute(statement.where(may).execution_options(yield_per=1000))
    return tuple(sorted({row[0] for row in rows if any(said.spans(one) for one in row[1:] if one)})[:MOST])
