"""Contested answers: which of two facts that contradict each other is the answer, where the reader likes both.

Places compete where a fact in one yields to a fact in the other (the view `fact_yield`), and none is more than
1.0 below the best place of all, by the reader's margin and the search's score with its weight: at least e times
less likely.
"""

from __future__ import annotations

from itertools import takewhile

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.answers.places import ReadPlace, merit

CLOSE = 1.0

_YIELDS = text("""
SELECT said.fact_id, ARRAY(
    SELECT y.to_id FROM fact_yield y WHERE y.fact_id = said.fact_id AND y.version = said.version
) AS yields_to
FROM unnest(CAST(:ids AS bigint[]), CAST(:versions AS integer[])) AS said (fact_id, version)
""")


def settled(session: Session, places: list[ReadPlace], search: float) -> list[ReadPlace]:
    """Gives places, which come best first, with that one first whose fact the facts of the others yield to.

    `search` is the weight of the search's score. A deleted fact that is the best stays the best.
    """
    if not places or places[0].is_dead:
        return places
    least = merit(places[0], search) - CLOSE
    near = list(takewhile(lambda one: merit(one, search) >= least, places))
    said = {fact.fact_id: fact.version for one in near for fact in one.facts if fact.version is not None}
    if len(said) < 2:
        return places
    rows = session.execute(_YIELDS, {"ids": list(said), "versions": list(said.values())})
    yields = {row.fact_id: set(row.yields_to) for row in rows}
    best = places[0]
    for one in near:
        answering = {fact.fact_id for fact in one.facts}
        if not one.is_dead and any(yields[fact.fact_id] & answering for fact in best.facts):
            best = one
    return [best, *(one for one in places if one is not best)]
