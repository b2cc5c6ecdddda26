"""Facts and stored outputs of a knowledge base elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colmlm.api.routes.attributions import FactImpact
from colmlm.api.schema.schemas import EditResult
from colmlm.cli.remote.api import Api
from colmlm.kb.evidence.impact import Impact, ImpactedOutput
from colmlm.kb.records import Edit, FactRecord, FactTrace, GenerationRecord, OutputTrace

_STATES = {False: "live", True: "deleted", None: "all"}


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """See `cli.nouns.facts.FactVerbs`."""

    api: Api

    def find(
        self,
        *,
        corpus: str | None = None,
        document_id: int | None = None,
        text: str | None = None,
        deleted: bool | None = False,
        after: int = 0,
        limit: int = 50,
    ) -> list[FactRecord]:
        return self.api.listed(
            "/facts",
            FactRecord,
            "facts",
            after=after,
            limit=limit,
            corpus=corpus,
            document_id=document_id,
            text=text,
            state=_STATES[deleted],
        )

    def show(self, fact_id: int) -> FactRecord:
        return self.api.get(f"/facts/{fact_id}", FactRecord)

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]:
        return [self.show(fact_id) for fact_id in fact_ids]

    def edit(self, fact_id: int, value: str, *, actor: str, reason: str) -> Edit:
        body = {"value": value, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit(f"/facts/{fact_id}", EditResult, body, method="PATCH"))

    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason, "abstain": abstain}
        return edit_of(self.api.edit("/facts", EditResult, body, method="DELETE"))

    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit("/facts/restore", EditResult, body))


@dataclass(frozen=True, slots=True)
class RemoteOutputs:
    """See `cli.nouns.facts.OutputVerbs`."""

    api: Api

    def find(self, after: int = 0, limit: int = 50) -> list[GenerationRecord]:
        return self.api.listed("/generations", GenerationRecord, "generations", after=after, limit=limit)

    def trace(self, generation_id: int) -> OutputTrace:
        return self.api.get(f"/generations/{generation_id}", OutputTrace)

    def trace_fact(self, fact_id: int) -> FactTrace:
        return self.api.get(f"/facts/{fact_id}/trace", FactTrace)

    def impact(self, fact_id: int) -> Impact:
        path = f"/facts/{fact_id}/impact"
        about = self.api.get(path, FactImpact, limit=1)
        uses = self.api.listed(path, ImpactedOutput, "uses")
        return Impact(fact_id, about.is_live, about.erased_seq, tuple(uses))


def edit_of(done: EditResult) -> Edit:
    return Edit(done.seq, done.kind, tuple(done.fact_ids))
