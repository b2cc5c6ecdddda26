"""Verifies that facts are forgotten: looks up every check of them, and searches the index for their keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import func, select

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.forgetting.checks import CheckTarget, Questioner, ask, build
from colmlm.kb.forgetting.records import READ, ForgetPlan, Survivor, Verification
from colmlm.kb.forgetting.survivors import SurvivorSearch
from colmlm.kb.keys import keysets
from colmlm.kb.tables import FactKeyRow, FactVersionRow, TombstoneRow

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


def verify(
    kb: SearchableStore,
    plan: ForgetPlan,
    questioner: Questioner,
    given: Sequence[str],
    most: int,
    reading: SurvivorSearch | None = None,
) -> Verification:
    """Asks for the facts of an applied plan, with checks made from them and with the `given` questions.

    With `reading` their questions are read in the whole base, too.
    """
    seq = kb.lookups.catch_up()
    indexed = kb.searcher.current().candidates.ids
    ids = list(plan.fact_ids)
    with kb.sessions() as session:
        keyset = keysets.active_head(session)
        questioner.require(keyset)
        target = CheckTarget.read(session, keyset, plan.fact_ids, plan.equivalents, most)
        key_ids = session.scalars(
            select(FactKeyRow.id).where(
                FactKeyRow.keyset_id == keyset.keyset_id, FactKeyRow.fact_id == func.any(ids)
            )
        ).all()
        still_live = session.scalar(
            select(func.count())
            .select_from(FactVersionRow)
            .where(FactVersionRow.fact_id == func.any(ids), IS_LIVE)
        )
        tombstones = session.scalar(
            select(func.count()).select_from(TombstoneRow).where(TombstoneRow.fact_id == func.any(ids))
        )
    rates, leaked = ask(kb, keyset.checkpoint_id, build(target, keyset, questioner, given), target.fact_ids)
    read, survivors = 0, tuple[Survivor, ...]()
    if reading is not None:
        through = reading.read(keyset, target)
        read, rates[READ], found = len(through.read), *through.rates(target.fact_ids)
        leaked = tuple(sorted({*leaked, *found}))
        survivors = through.survivors(target.fact_ids)
    in_index = int(np.isin(np.array(key_ids, dtype=np.int64), indexed).sum())
    return Verification(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seq=seq,
        keyset_id=keyset.keyset_id,
        checkpoint_id=keyset.checkpoint_id,
        threshold=keyset.threshold,
        probes=rates,
        still_live=still_live or 0,
        tombstones=tombstones or 0,
        keys_in_index=in_index,
        leaked=leaked,
        level=level(bool(leaked or still_live), in_index),
        read=read,
        survivors=survivors,
    )


def level(found: bool, keys_in_index: int) -> int:
    """Gives 0 where a forgotten fact was found, 1 where none was, 2 where the index holds none of their keys either."""
    if found:
        return 0
    return 1 if keys_in_index else 2
