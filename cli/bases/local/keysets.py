"""The keysets of this machine's knowledge base, with the models that make and measure their keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.errors import KeysetNotReady

if TYPE_CHECKING:
    from colmlm.kb.keys.records import Activating, Adapting, GateStanding, KeysetRecord
    from colmlm.kb.switching.keysets import Keysets
    from colmlm.kb.switching.limits import GateLimits


@dataclass(frozen=True, slots=True)
class LocalKeysets:
    """Implements `api.nouns.running.KeysetVerbs` on this machine's knowledge base."""

    runtime: Runtime

    @property
    def _keysets(self) -> Keysets:
        return self.runtime.kb.keysets

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]:
        return [
            (keyset, self._keysets.standing(keyset.keyset_id)) for keyset in self.runtime.kb.keysets.all()
        ]

    def show(self, keyset_id: int) -> KeysetRecord:
        return self._keysets.show(keyset_id)

    def check(
        self,
        keyset_id: int,
        limits: GateLimits,
        *,
        plot: Path | None = None,
        checkpoint: Path | None = None,
        active_checkpoint: Path | None = None,
    ) -> dict[str, Any]:
        from colmlm.cli.composition.keying import active_encoder_of, encoder_of

        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        active_encoder = active_encoder_of(self.runtime, keyset_id, active_checkpoint)
        with self.runtime.telling.progress("Asking") as advance:
            report = self.runtime.kb.keysets.check(
                keyset_id,
                encoder,
                limits,
                active_encoder=active_encoder,
                on_texts=advance,
                reader=lambda: self.runtime.reader,
            )
        if plot is not None:
            from colmlm.cli.keysets.plots import score_histograms

            score_histograms(report.drift, plot)
        return report.stored()

    def activate(self, keyset_id: int, **how: Unpack[Activating]) -> KeysetRecord:
        return self._keysets.activate(keyset_id, **how)

    def rollback(self, *, actor: str, reason: str) -> KeysetRecord:
        return self._keysets.rollback(actor=actor, reason=reason)

    def retirable(self, keyset_id: int) -> KeysetRecord:
        return self._keysets.retirable(keyset_id)

    def retire(self, keyset_id: int, *, actor: str, reason: str) -> KeysetRecord:
        return self._keysets.retire(keyset_id, actor=actor, reason=reason)

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord:
        return self._keysets.set_threshold(keyset_id, threshold)

    def rekey(
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        from colmlm.cli.composition.keying import encoder_of, key_everything

        if (
            found := self.show(keyset_id)
        ).state == "retired":  # a rekey would give its checkpoint a new keyset
            raise KeysetNotReady(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return key_everything(
            self.runtime, corpus=corpus, encoder=encoder, kinds=kinds, replace=True, named=checkpoint
        )

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        from colmlm.cli.composition.adapting import adapt
        from colmlm.cli.composition.keying import encoder_of

        if (found := self.show(keyset_id)).state == "retired":
            raise KeysetNotReady(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return adapt(self.runtime.kb, encoder, self.runtime.telling, corpus, how)
