"""Erasures in a remote knowledge base. They reach its indexes, not its files, and may need a second admin's token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import options, refuse
from colmlm.api.nouns.removal import EraseOptions, Erasing
from colmlm.api.wire.answers import ErasureAnswer
from colmlm.kb.errors import ErasureRequestNotFound
from colmlm.kb.removal.records import Erased, ErasureReport, ErasureRequest

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Mentioned


@dataclass(frozen=True, slots=True)
class RemoteErasures:
    """The verbs of `api.nouns.removal.ErasureVerbs` over the API."""

    api: Api

    def preview(self, fact_ids: Sequence[int], *, mentions: Mentioned) -> Erased:
        return self.api.ask("/erasures/preview", Erased, {"fact_ids": fact_ids, "mentions": mentions})

    def erase(self, fact_ids: Sequence[int], **how: Unpack[EraseOptions]) -> Erasing:
        body = {"fact_ids": fact_ids, **options(EraseOptions, how)}
        refuse(**{name: body.pop(name, None) for name in ("now", "scan", "traces_out")})
        body["on_behalf_of"] = body.pop("actor") or None
        told = self.api.edit("/erasures", ErasureAnswer, body)
        return Erasing(told.report, told.request)

    def requests(self, *, waiting: bool) -> list[ErasureRequest]:
        found = self.api.listed("/erasures", ErasureRequest, "erasures")
        return [asked for asked in found if not waiting or asked.state == "waiting"]

    def read(self, request_id: int) -> ErasureRequest:
        for asked in self.requests(waiting=False):
            if asked.erasure_request_id == request_id:
                return asked
        raise ErasureRequestNotFound(request_id)

    def approve(self, request_id: int, *, now: bool) -> tuple[ErasureRequest, ErasureReport]:
        refuse(now=now)
        told = self.api.edit(f"/erasures/{request_id}/approve", ErasureAnswer)
        assert told.request is not None and told.report is not None, "an approved erasure has both"
        return told.request, told.report

    def withdraw(self, request_id: int) -> ErasureRequest:
        return self.api.edit(f"/erasures/{request_id}/withdraw", ErasureRequest)

    def certificate(self, seq: int) -> str:
        return self.api.text(f"/changes/{seq}/certificate")
