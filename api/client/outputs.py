"""Stored outputs of a remote knowledge base."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.wire.answers import FactImpact
from colmlm.kb.evidence.provenance import MEDIA_TYPES, ProvForm
from colmlm.kb.evidence.records import (
    FactTrace,
    Feedback,
    GenerationRecord,
    Impact,
    ImpactedOutput,
    NewFeedback,
    NewOutput,
    OutputTrace,
    Thumb,
)

_OF_QUOTATIONS = ("part_start", "part_end", "quoted_start", "quoted_end")


@dataclass(frozen=True, slots=True)
class RemoteOutputs:
    """The verbs of `api.nouns.contents.OutputVerbs` over the API."""

    api: Api

    def find(self, after: int = 0, limit: int = 50, thumb: Thumb | None = None) -> list[GenerationRecord]:
        return self.api.listed(
            "/generations", GenerationRecord, "generations", after=after, limit=limit, feedback=thumb
        )

    def give_feedback(self, generation_id: int, made: NewFeedback, *, actor: str) -> Feedback:
        body = {**asdict(made), "on_behalf_of": actor or None}
        # It may be repeated, since the last thumb of each counts.
        return self.api.ask(f"/generations/{generation_id}/feedback", Feedback, body)

    def trace(self, generation_id: int) -> OutputTrace:
        return self.api.get(f"/generations/{generation_id}", OutputTrace)

    def trace_fact(self, fact_id: int) -> FactTrace:
        return self.api.get(f"/facts/{fact_id}/trace", FactTrace)

    def provenance(self, generation_id: int, form: ProvForm) -> dict[str, Any]:
        return self.api.form(f"/generations/{generation_id}", MEDIA_TYPES[form])

    def provenance_of_fact(self, fact_id: int, form: ProvForm) -> dict[str, Any]:
        return self.api.form(f"/facts/{fact_id}/trace", MEDIA_TYPES[form])

    def impact(self, fact_id: int) -> Impact:
        path = f"/facts/{fact_id}/impact"
        about = self.api.get(path, FactImpact, limit=1)
        uses = self.api.listed(path, ImpactedOutput, "uses")
        return Impact(fact_id, about.is_live, about.erased_seq, tuple(uses))

    def record_from_elsewhere(self, generation: NewOutput) -> OutputTrace:
        """Stores an output on the server and gives its trace, without the present state of its facts.

        The record itself is the body: `api.routes.generations` reads its fields, without those of quotations, which no
        decoder makes. It is sent again only where the server was not reached, since a second request would store a
        second output.
        """
        return self.api.once("/generations/records", OutputTrace, _decoded(generation))


def _decoded(generation: NewOutput) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(generation)
    del made["quotes"]
    for splice in made["splices"]:
        for name in _OF_QUOTATIONS:
            del splice[name]
    return made
