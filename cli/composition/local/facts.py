"""Facts of this machine's knowledge base, which get their keys as they are added."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import Edit

MOST_TO_KEY_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class LocalFacts(Facts):
    """See `kb.nouns.contents.FactVerbs`."""

    runtime: Runtime

    def add(
        self,
        question: str,
        value: str,
        *,
        answer: str | None = None,
        actor: str,
        reason: str,
        allow_erased: bool = False,
        keyed: bool = True,
    ) -> Edit:
        edit = self.runtime.kb.facts.add(
            question, value, answer=answer, actor=actor, reason=reason, allow_erased=allow_erased
        )
        try:
            return replace(edit, keyed=keyed and self._key_at_once())
        except Exception:
            self.runtime.telling.note(
                f"Fact {edit.fact_ids[0]} was added as change {edit.seq}, but could not be keyed."
            )
            raise

    def _key_at_once(self) -> bool:
        """Keys what is unkeyed, unless that is a whole corpus somebody has yet to rekey."""
        kb, encoder, telling = self.runtime.kb, self.runtime.encoder, self.runtime.telling
        keyset = kb.keysets.create(encoder.checkpoint)
        if keyset.num_unkeyed > MOST_TO_KEY_AT_ONCE:
            telling.note(f"{keyset.num_unkeyed} facts wait for keys; this is not done at once.")
            return False
        with telling.progress("Keying") as advance:
            kb.keysets.rekey(encoder, on_facts=advance)
        return True
