"""Stakes: which proposed facts outputs cite and which contradict others, and the places that this gives them.

What is cited is read from the newest lookups of outputs, and what contradicts from the newest contradictions, so that a
page costs the same however many there are. Session first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.review.records import Kind
from colmlm.kb.tables import AttributionRow, FactRow

NEWEST = 5_000  # lookups of outputs that are looked at for what is cited
NEWEST_PAIRS = 2_000  # contradictions that are looked at for what contradicts
PLACE = 1 << 56  # a place in the inbox is group * PLACE + id, so that it is one number as every `after` is
_MOST = 100  # uses from which on facts are at stake alike
DOUBTED, CONTRADICTING, OTHERS = range(_MOST, _MOST + 3)  # groups behind those of cited facts

_OPEN = text("""
SELECT fact_id, other_id FROM standing_pair WHERE NOT same_value AND held_seq IS NULL ORDER BY id DESC LIMIT :newest
""")


@dataclass(frozen=True, slots=True)
class Stakes:
    """How many of the newest outputs cite each fact (`uses`), and of those that contradict others, which are doubted.

    `reach` is false where there are more contradictions than were looked at.
    """

    uses: Mapping[int, int]
    against: Mapping[int, bool]
    reach: bool

    @classmethod
    def read(cls, session: Session, which: list[ColumnElement[bool]]) -> Stakes:
        """Reads what is at stake with the facts that fit these conditions."""
        pairs = session.execute(_OPEN, {"newest": NEWEST_PAIRS}).all()
        asked = select(FactRow.id, FactRow.doubt.is_not(None).label("doubted")).where(
            FactRow.id == func.any(sorted({fact_id for pair in pairs for fact_id in pair})), *which
        )
        against = {row.id: row.doubted for row in session.execute(asked)}
        return cls(_cited(session, which), against, len(pairs) < NEWEST_PAIRS)

    def places(self, kind: Kind = "any") -> list[int]:
        """Gives the places, in order, of all facts of a kind that is known one by one; of any, those of cited facts."""
        return sorted(map(self._place, self.against if kind == "contradicting" else self.uses))

    def contradicting(self) -> list[int]:
        """Gives the places, in order, of facts that contradict, and are neither cited nor doubted."""
        places = sorted(map(self._place, self.against))
        return [place for place in places if place > CONTRADICTING * PLACE]

    def _place(self, fact_id: int) -> int:
        if uses := self.uses.get(fact_id):
            group = _MOST - min(uses, _MOST)
        else:
            group = DOUBTED if self.against[fact_id] else CONTRADICTING
        return group * PLACE + fact_id


def past(places: Iterable[int], after: int, limit: int) -> list[int]:
    return [place for place in places if place > after][:limit]


def _cited(session: Session, which: list[ColumnElement[bool]]) -> dict[int, int]:
    """Gives how many of the newest outputs cite each fact that fits; facts that none cites are left out."""
    newest = (
        select(AttributionRow.generation_id, AttributionRow.fact_id)
        .order_by(AttributionRow.generation_id.desc(), AttributionRow.ordinal.desc())
        .limit(NEWEST)
    )
    citing: dict[int, set[int]] = {}
    for generation_id, fact_id in session.execute(newest):
        citing.setdefault(fact_id or 0, set()).add(generation_id)
    # Their ids are given one by one, since joined with them the server would read all that is proposed.
    fitting = session.scalars(select(FactRow.id).where(FactRow.id == func.any(list(citing)), *which))
    return {fact_id: len(citing[fact_id]) for fact_id in fitting}
