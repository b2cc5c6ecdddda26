"""Facts, corpora and traces of a knowledge base elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colmlm.api.schema.schemas import EditResult
from colmlm.cli.remote.api import Api
from colmlm.kb.records import CorpusStats, Edit, FactRecord, FactTrace, GenerationRecord, OutputTrace

_STATES = {False: "live", True: "deleted", None: "all"}


@dataclass(frozen=True, slots=True)
class RemoteVerbs:
    """See `cli.nouns.facts.Verbs`."""

    api: Api

    def facts(
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

    def fact(self, fact_id: int) -> FactRecord:
        return self.api.get(f"/facts/{fact_id}", FactRecord)

    def update(self, fact_id: int, value: str, *, actor: str, reason: str) -> Edit:
        body = {"value": value, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit(f"/facts/{fact_id}", EditResult, body, method="PATCH"))

    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit("/facts", EditResult, body, method="DELETE"))

    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit("/facts/restore", EditResult, body))

    def corpora(self) -> list[CorpusStats]:
        return self.api.listed("/corpora", CorpusStats, "corpora")

    def generations(self, after: int = 0, limit: int = 50) -> list[GenerationRecord]:
        return self.api.listed("/generations", GenerationRecord, "generations", after=after, limit=limit)

    def trace_output(self, generation_id: int) -> OutputTrace:
        return self.api.get(f"/generations/{generation_id}", OutputTrace)

    def trace_fact(self, fact_id: int) -> FactTrace:
        return self.api.get(f"/facts/{fact_id}/trace", FactTrace)


def edit_of(done: EditResult) -> Edit:
    return Edit(done.seq, done.kind, tuple(done.fact_ids))
