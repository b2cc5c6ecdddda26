"""Facts of this machine's knowledge base; a fact that is added gets its key at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import Addition, Edit

MOST_TO_KEY_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class LocalFacts(Facts):
    """Implements `api.nouns.contents.FactVerbs` on this machine's knowledge base."""

    runtime: Runtime

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Addition]) -> Edit:
        edit = self.runtime.kb.facts.add(question, value, **how)
        try:
            return replace(edit, keyed=keyed and self._key_at_once())
        except Exception:
            self.runtime.telling.note(
                f"Fact {edit.fact_ids[0]} was added as change {edit.seq}, but could not be keyed."
            )
            raise

    def _key_at_once(self) -> bool:
        """Keys the facts without a key, unless they are so many that a whole corpus waits for a rekey."""
        kb, encoder, telling = self.runtime.kb, self.runtime.encoder, self.runtime.telling
        keyset = kb.keysets.create(encoder.checkpoint)
        if keyset.num_unkeyed > MOST_TO_KEY_AT_ONCE:
            telling.note(f"{keyset.num_unkeyed} facts wait for keys; this is not done at once.")
            return False
        with telling.progress("Keying") as advance:
            kb.keysets.rekey(encoder, on_facts=advance)
        return True
