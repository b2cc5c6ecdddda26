"""Other facts that say what facts that are about to be erased say.

To find them every fact is read, which takes minutes among ten million. So they are looked for before the change log is
locked, and once it is only among what was written meanwhile: edits do not wait for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from sqlalchemy import ColumnElement, func, or_, select, true
from sqlalchemy.orm import Session

from colmlm.kb.facts.redaction import ErasureTarget
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow, FactRow, FactVersionRow
from colmlm.kb.texts.wording import forms, may_say

READ_AT_ONCE = 2_000  # rows that may say it; with a common word, nearly all of a base may
_TEXTS = (FactVersionRow.value, FactRow.question, FactRow.answer)


@dataclass(frozen=True, slots=True)
class OthersSaying:
    """The facts, not erased, that said one of these `texts` as of change `seq` of the log, or later."""

    texts: Collection[str]
    fact_ids: frozenset[int]
    seq: int

    @classmethod
    def look(cls, session: Session, targets: Sequence[ErasureTarget]) -> Self:
        """Reads every fact but the targets."""
        seq, texts = audit.head_seq(session), _texts(targets)  # the facts are read later than the seq
        return cls(texts, frozenset(_saying(session, targets, texts, true())), seq)

    def by_now(self, session: Session, targets: Sequence[ErasureTarget]) -> list[int]:
        """Gives the facts that say a text of these targets, once the log is locked.

        Reads what was written since, which the log names where it is no new version: a document that comes again gives
        facts that it keeps another answer. Only where the targets themselves were edited is every fact read again.
        """
        if not _texts(targets) <= set(self.texts):
            return sorted(_saying(session, targets, _texts(targets), true()))
        # In a statement of its own: within the other one, PostgreSQL plans for its first rows, and reads every text.
        opened = select(FactVersionRow.fact_id).where(FactVersionRow.from_seq > self.seq)
        edited = select(func.unnest(ChangeRow.fact_ids)).where(
            ChangeRow.seq > self.seq, ChangeRow.kind.not_in(audit.MAINTENANCE)
        )
        written = FactRow.id == func.any(session.scalars(opened.union(edited)).all())
        return sorted(self.fact_ids | _saying(session, targets, self.texts, written))


def _texts(targets: Sequence[ErasureTarget]) -> set[str]:
    return {string for target in targets for string in target.strings}


def _saying(
    session: Session, targets: Sequence[ErasureTarget], texts: Collection[str], which: ColumnElement[bool]
) -> set[int]:
    """Gives those of these facts that have a value, a question or an answer which is one of the texts."""
    if not targets:
        return set()
    wanted = {form for text in texts for form in forms(text)}
    statement = (
        select(FactRow.id, *_TEXTS)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.erased_seq.is_(None), FactRow.id != func.all([target.fact_id for target in targets]))
        .where(which, or_(*(may_say(column, texts) for column in _TEXTS)))
    )
    rows = session.execute(statement.execution_options(yield_per=READ_AT_ONCE))
    return {row.id for row in rows if any(form in wanted for one in row[1:] if one for form in forms(one))}
