"""Keysets of a remote knowledge base. Rekeys and gates run there as jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.jobs import RemoteJobs
from colmlm.api.client.only_there import options, refuse
from colmlm.api.nouns.running import GateOptions
from colmlm.api.wire.answers import KeysetView
from colmlm.kb.errors import KeysetActive, KeysetNotReady
from colmlm.kb.jobs.kinds import Gate, Rekey, work_of
from colmlm.kb.keys.records import Activating, Adapting, KeysetRecord

if TYPE_CHECKING:
    from colmlm.kb.keys.records import GateStanding
    from colmlm.kb.switching.limits import GateLimits


@dataclass(frozen=True, slots=True)
class RemoteKeysets:
    """The verbs of `api.nouns.running.KeysetVerbs` over the API."""

    api: Api

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]:
        return [(view.keyset, view.gate) for view in self.api.listed("/keysets", KeysetView, "keysets")]

    def show(self, keyset_id: int) -> KeysetRecord:
        return self.api.get(f"/keysets/{keyset_id}", KeysetView).keyset

    def check(self, keyset_id: int, limits: GateLimits, **using: Unpack[GateOptions]) -> dict[str, Any]:
        refuse(**options(GateOptions, using))
        self.show(keyset_id)  # an unknown id is refused before a job is queued
        report = RemoteJobs(self.api).done(Gate(keyset_id=keyset_id, **asdict(limits)))
        return {name: value for name, value in report.items() if name != "activated"}

    def activate(self, keyset_id: int, **how: Unpack[Activating]) -> KeysetRecord:
        return self._switch(f"/keysets/{keyset_id}/activate", **options(Activating, how))

    def rollback(self, *, actor: str, reason: str) -> KeysetRecord:
        return self._switch("/keysets/rollback", actor, reason)

    def retirable(self, keyset_id: int) -> KeysetRecord:
        keyset = self.show(keyset_id)
        if keyset.state == "active":
            raise KeysetActive(keyset_id)
        return keyset

    def retire(self, keyset_id: int, *, actor: str, reason: str) -> KeysetRecord:
        return self._switch(f"/keysets/{keyset_id}/retire", actor, reason)

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord:
        body = {"threshold": threshold, "reason": "set by hand"}
        return self.api.edit(f"/keysets/{keyset_id}/threshold", KeysetRecord, body, method="PUT")

    def rekey(
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        refuse(checkpoint=checkpoint)
        if (found := self.show(keyset_id)).state == "retired":  # a rekey would make another keyset
            raise KeysetNotReady(keyset_id, found.state)
        work = work_of(Rekey.kind, {"keyset_id": keyset_id, "corpus": corpus, "kinds": str(kinds)})
        return msgspec.convert(RemoteJobs(self.api).done(work), KeysetRecord)

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        refuse(checkpoint=checkpoint)
        if (found := self.show(keyset_id)).state == "retired":
            raise KeysetNotReady(keyset_id, found.state)
        given = options(Adapting, how)
        given["from_keyset"] = given.pop("from_keyset_id", None)
        work = work_of(Rekey.kind, {"keyset_id": keyset_id, "corpus": corpus, "adapt": True, **given})
        return dict(RemoteJobs(self.api).done(work))

    def _switch(self, path: str, actor: str, reason: str, **body: object) -> KeysetRecord:
        return self.api.edit(path, KeysetRecord, {**body, "reason": reason, "on_behalf_of": actor or None})
