"""Batches: many facts added or corrected in one change, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts import edits as facts
from colmlm.kb.records import Edit, FactDraft
from colmlm.kb.store.contention import tried_again

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Batches:
    """Edits of many facts on a knowledge base."""

    kb: Store

    @tried_again
    def insert(
        self, drafts: Sequence[FactDraft], *, actor: str, reason: str, allow_erased: bool = False
    ) -> Edit:
        """Add these facts. Raises `FactSuppressed` where one of them was erased, unless `allow_erased`."""
        _require_some(len(drafts))
        with self.kb.sessions.begin() as session:
            return facts.insert_facts(session, drafts, actor, reason, allow_erased=allow_erased)

    @tried_again
    def update(self, values: Mapping[int, str], *, actor: str, reason: str) -> Edit:
        """Give each of these facts its new value. Raises `FactNotFound`, `FactDeleted` or `FactErased`."""
        _require_some(len(values))
        with self.kb.sessions.begin() as session:
            return facts.update_facts(session, values, actor, reason)


def _require_some(count: int) -> None:
    if not count:
        raise InvalidValue("batch", "it holds no fact")
