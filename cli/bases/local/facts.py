"""Facts of this machine's knowledge base; facts that an edit leaves without a key get it at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import (
    Correcting,
    CorrectingOne,
    Correction,
    Edit,
    FactPage,
    FactSearch,
    MarkedAddition,
    Marking,
    Moving,
    Proposing,
)
from colmlm.kb.lookup.options import NEAREST

if TYPE_CHECKING:
    from colmlm.kb.keys.rekey import Encoder

MOST_TO_KEY_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class LocalFacts(Facts):
    """Implements `api.nouns.contents.FactVerbs` on this machine's knowledge base."""

    runtime: Runtime
    alone: bool

    def search(
        self,
        *,
        near: str | None = None,
        nearest: Sequence[int] | None = None,
        past: bool = True,
        **sought: Unpack[FactSearch],
    ) -> FactPage:
        if near is not None:
            kb = self.runtime.kb
            kb.keysets.active()  # fails for a base without keys, before a model is loaded for seconds
            with self._encoder() as encoder:
                queries_BD = encoder.encode_questions([near])
            (ranking,) = kb.lookups.nearest(
                queries_BD,
                checkpoint_id=encoder.checkpoint.checkpoint_id,
                k=NEAREST,
                accepted_only=None,
            )
            nearest = [hit.fact_id for hit in ranking.hits]
        return self.runtime.kb.facts.search(nearest=nearest, past=past, **sought)

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Proposing]) -> Edit:
        edit = self.runtime.kb.facts.add(question, value, **how)
        return self._keyed(replace(edit, keyed=False), keyed)

    def add_to(
        self, document_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[MarkedAddition]
    ) -> Edit:
        return self._keyed(self.runtime.kb.facts.add_to(document_id, span, **how), keyed)

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        keyed: bool = True,
        **how: Unpack[CorrectingOne],
    ) -> Edit:
        return self._keyed(self.runtime.kb.facts.edit(fact_id, value, **how), keyed)

    def edit_many(
        self, corrections: Sequence[Correction], *, keyed: bool = True, **how: Unpack[Correcting]
    ) -> Edit:
        return self._keyed(self.runtime.kb.facts.edit_many(corrections, **how), keyed)

    def move(self, fact_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[Moving]) -> Edit:
        return self._keyed(self.runtime.kb.facts.move(fact_id, span, **how), keyed)

    def undo(self, seq: int, *, keyed: bool = True, actor: str, reason: str) -> Edit:
        return self._keyed(self.runtime.kb.facts.undo(seq, actor=actor, reason=reason), keyed)

    def _keyed(self, edit: Edit, wanted: bool) -> Edit:
        """Gives the edit as it is after its facts got the keys that they lack, where that is wanted."""
        if edit.keyed or not wanted:
            return edit
        try:
            return replace(edit, keyed=self._key_at_once(edit.fact_ids))
        except Exception:
            self.runtime.telling.note(f"Change {edit.seq} was made, but its facts could not be keyed.")
            raise

    def _encoder(self) -> AbstractContextManager[Encoder]:
        """Give the encoder of a server that runs here and has the model loaded, else that of this process."""
        if self.alone:
            return nullcontext(self.runtime.encoder)
        from colmlm.cli.bases.nearby import near_encoder

        return near_encoder(self.runtime)

    def _key_at_once(self, fact_ids: Sequence[int]) -> bool:
        """Keys these facts where they lack a key, unless they are so many that they wait for a rekey."""
        kb, telling = self.runtime.kb, self.runtime.telling
        with self._encoder() as encoder, telling.progress("Keying") as advance:
            keyed = kb.keysets.key_facts(encoder, fact_ids, most=MOST_TO_KEY_AT_ONCE, on_facts=advance)
        if not keyed:
            telling.note(f"More than {MOST_TO_KEY_AT_ONCE} facts wait for keys; this is not done at once.")
        return keyed
