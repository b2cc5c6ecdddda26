"""Jobs, keysets, tokens, webhooks, the change log and figures of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from colmlm.api.client.api import Resource, edit_verb, get_verb, list_verb, on_behalf, options, refuse
from colmlm.api.client.connection import error_of, job_not_done
from colmlm.api.wire import (
    NEWEST_CHANGES,
    Differences,
    KeysetView,
    Problem,
    SigningKey,
    Token,
    TokenWithSecret,
    WebhookWithSecret,
)
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.errors import refusals
from colmlm.kb.jobs.kinds import Gate, Rekey, work_of
from colmlm.kb.jobs.records import JobRecord, wait_for_job
from colmlm.kb.keys.records import Activating, Adapting, GateOptions, KeysetRecord
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import Diff, DiffOptions
    from colmlm.kb.jobs.records import Work
    from colmlm.kb.keys.records import GateLimits, GateStanding
    from colmlm.kb.log.audit import LogFilters
    from colmlm.kb.log.chain import DenialRecord
    from colmlm.kb.log.witness import AuditReport, Head
    from colmlm.kb.upkeep.upkeep import Statistics


class RemoteJobs(Resource):
    """The verbs of `kb.jobs.queue.Jobs`, and work that is run there as a job."""

    get = get_verb("/jobs/{job_id}", JobRecord)

    def submit(self, work: Work, *, actor: str) -> JobRecord:
        """Queue the work. The job's actor is the token's name, whatever `actor` says."""
        return self.api.edit(f"/jobs/{work.kind}", JobRecord, work)

    def cancel(self, job_id: int, *, actor: str) -> JobRecord:
        return self.api.edit(f"/jobs/{job_id}/cancel", JobRecord)

    def num_workers(self) -> int | None:
        return None

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]:
        """List the jobs of kinds that the token may start. The API cannot filter by kind: its pages are filtered."""
        found: list[JobRecord] = []
        at = before or 0
        while len(found) < limit:
            page = self.api.read_list("/jobs", JobRecord, "jobs", after=at, limit=limit, state=states)
            found += [job for job in page if kinds is None or job.kind in kinds]
            if len(page) < limit:
                break
            at = page[-1].job_id
        return found[:limit]

    def run_to_end(self, work: Work) -> dict[str, Any]:
        """Queue the work, wait for a remote worker to do it, and give the result.

        Raises its error, or `JobNotDone`.
        """
        job_id = self.submit(work, actor="").job_id
        self.api.telling.note(
            f"Job {job_id} does it there, also if this command ends. See: colmlm jobs list {job_id} --wait"
        )
        job = wait_for_job(self.get, job_id, None, self.api.telling.progress)
        if job.state == "succeeded":
            return job.result or {}
        if job.error is None:
            raise job_not_done(job_id, job.state)
        raise error_of(msgspec.convert({"status": 500, **job.error}, Problem))


class RemoteKeysets(Resource):
    """The verbs of `cli.bases.local_lookups.LocalKeysets`. Rekeys and gates run there as jobs."""

    rollback = edit_verb("/keysets/rollback", KeysetRecord, "*", "actor", "reason")
    retire = edit_verb("/keysets/{keyset_id}/retire", KeysetRecord, "*", "actor", "reason")
    activate = edit_verb("/keysets/{keyset_id}/activate", KeysetRecord, shape=Activating)

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]:
        return [(view.keyset, view.gate) for view in self.api.read_list("/keysets", KeysetView, "keysets")]

    def show(self, keyset_id: int) -> KeysetRecord:
        return self.api.get(f"/keysets/{keyset_id}", KeysetView).keyset

    def check(self, keyset_id: int, limits: GateLimits, **using: Unpack[GateOptions]) -> dict[str, Any]:
        refuse(**options(GateOptions, using))
        self.show(keyset_id)  # an unknown id is refused before a job is queued
        report = RemoteJobs(self.api).run_to_end(Gate(keyset_id=keyset_id, **asdict(limits)))
        return {name: value for name, value in report.items() if name != "activated"}

    def retirable(self, keyset_id: int) -> KeysetRecord:
        keyset = self.show(keyset_id)
        if keyset.state == "active":
            raise refusals.keyset_active(keyset_id)
        return keyset

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord:
        body = {"threshold": threshold, "reason": "set by hand"}
        return self.api.edit(f"/keysets/{keyset_id}/threshold", KeysetRecord, body, method="PUT")

    def rekey(
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        refuse(checkpoint=checkpoint)
        return msgspec.convert(self._rekey(keyset_id, {"corpus": corpus, "kinds": str(kinds)}), KeysetRecord)

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        refuse(checkpoint=checkpoint)
        given = options(Adapting, how)
        given["from_keyset"] = given.pop("from_keyset_id", None)
        return self._rekey(keyset_id, {"corpus": corpus, "adapt": True, **given})

    def _rekey(self, keyset_id: int, how: dict[str, Any]) -> dict[str, Any]:
        if (found := self.show(keyset_id)).state == "retired":  # a rekey would make another keyset
            raise refusals.keyset_not_ready(keyset_id, found.state)
        return dict(RemoteJobs(self.api).run_to_end(work_of(Rekey.kind, {"keyset_id": keyset_id, **how})))


class RemoteTokens(Resource):
    """The verbs of `kb.access.access.Access` that are not a server's own. The API has no dry run for them."""

    def all(self, *, after: int = 0, limit: int | None = None) -> list[TokenRecord]:
        found = self.api.read_list("/tokens", Token, "tokens", after=after, limit=limit)
        return [_token_record(token) for token in found]

    def own(self) -> TokenRecord:
        return _token_record(self.api.get("/tokens/own", Token))

    def of_secret(self, secret: str) -> TokenRecord | None:
        return self.own() if self.api.connection.is_of(secret) else None

    def show(self, name: str) -> TokenRecord:
        for token in self.all():
            if token.name == name:
                return token
        raise refusals.api_key_not_found(name)

    def create(
        self,
        name: str,
        role: str,
        *,
        actor: str | None = None,
        expires_in: timedelta | None = None,
        rate_limit: int | None = None,
        corpora: Sequence[str] = (),
        dry_run: bool = False,
    ) -> tuple[str, TokenRecord]:
        refuse(actor=actor, dry_run=dry_run)
        asked: dict[str, Any] = {"name": name, "role": str(role), "rate_limit": rate_limit}
        if corpora:  # a server of the release before knows no such field
            asked["corpora"] = list(corpora)
        return self._create_secret("/tokens", asked | {"expires_in_seconds": _whole_seconds(expires_in)})

    def rotate(
        self,
        name: str,
        *,
        actor: str | None = None,
        grace: timedelta = timedelta(0),
        expires_in: timedelta | None = None,
        dry_run: bool = False,
    ) -> tuple[str, TokenRecord]:
        refuse(actor=actor, dry_run=dry_run)
        asked = {"grace_seconds": _whole_seconds(grace), "expires_in_seconds": _whole_seconds(expires_in)}
        return self._create_secret(f"/tokens/{self.show(name).key_id}/rotate", asked)

    def revoke(self, name: str, *, actor: str | None = None, dry_run: bool = False) -> TokenRecord:
        refuse(actor=actor, dry_run=dry_run)
        return _token_record(self.api.edit(f"/tokens/{self.show(name).key_id}", Token, method="DELETE"))

    def _create_secret(self, path: str, asked: dict[str, Any]) -> tuple[str, TokenRecord]:
        made = self.api.edit(path, TokenWithSecret, asked)
        return made.secret, _token_record(made.token)


def _token_record(token: Token) -> TokenRecord:
    told = msgspec.structs.asdict(token)
    del told["state"]
    return TokenRecord(**told)


def _whole_seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())


def _secret_and_webhook(made: WebhookWithSecret) -> tuple[str, Webhook]:
    return made.secret, made.webhook


class RemoteWebhooks(Resource):
    """The verbs of `kb.webhooks.webhooks.Webhooks`. The API has no dry run for them."""

    all = list_verb("/webhooks", Webhook, "webhooks", "*", "after?", "limit?")
    show = get_verb("/webhooks/{webhook_id}", Webhook)
    add = edit_verb(
        "/webhooks", WebhookWithSecret, "url", "*", "kinds?", "form?", "since?", "corpora?", "actor?", "dry_run?",
        here_only=("actor", "dry_run"), to=_secret_and_webhook, form="format",
    )  # fmt: skip
    pause = edit_verb("/webhooks/{webhook_id}/pause", Webhook, "*", "actor?", here_only=("actor",))
    resume = edit_verb("/webhooks/{webhook_id}/resume", Webhook, "*", "actor?", here_only=("actor",))
    replay = edit_verb(
        "/webhooks/{webhook_id}/replay",
        Webhook,
        "first",
        "*",
        "actor?",
        here_only=("actor",),
        first="from_seq",
    )
    remove = edit_verb(
        "/webhooks/{webhook_id}", Webhook, "*", "actor?", "dry_run?",
        here_only=("actor", "dry_run"), method="DELETE",
    )  # fmt: skip

    def test(self, webhook_id: int) -> WebhookDelivery:
        return self.api.post_once(f"/webhooks/{webhook_id}/test", WebhookDelivery, None)


class RemoteUpkeep(Resource):
    """The verb of `kb.upkeep.upkeep.Upkeep` that counts what a base holds."""

    def statistics(self) -> Statistics:
        from colmlm.kb.upkeep.upkeep import Statistics

        return self.api.get("/stats", Statistics)


class RemoteLog(Resource):
    """The verbs of `kb.evidence.log.Log`."""

    head = get_verb("/changes/head", dict[str, Any])

    def proof(self, *, seq: int | None = None, since: int | None = None) -> dict[str, Any]:
        if seq is not None:
            return self.api.get(f"/changes/{seq}/proof", dict[str, Any])
        return self.api.get("/changes/proof", dict[str, Any], size=since or 0)

    def changes(self, after: int = 0, limit: int = 100, **only: Unpack[LogFilters]) -> list[ChangeRecord]:
        said = _times_as_text(only)
        return self.api.read_list("/changes", ChangeRecord, "changes", after=after, limit=limit, **said)

    def changes_before(self, before: int, limit: int = 100, **only: Unpack[LogFilters]) -> list[ChangeRecord]:
        said = _times_as_text(only) | {"order": "newest"}
        return self.api.read_list("/changes", ChangeRecord, NEWEST_CHANGES, after=before, limit=limit, **said)

    def diff(self, first: int, last: int, **which: Unpack[DiffOptions]) -> Diff:
        from colmlm.kb.evidence.records import DIFFERENCES_LISTED, Diff, DiffOptions, FactDifference

        listed = {"limit": DIFFERENCES_LISTED, **options(DiffOptions, which)}
        between = {"first": first, "last": last, "corpus": listed.pop("corpus", None)}
        counts = self.api.get("/changes/diff", Differences, **between, limit=1).counts
        found = self.api.read_list("/changes/diff", FactDifference, "differences", **listed, **between)
        return Diff(first, last, counts, tuple(found))

    def denials(self, *, after: int = 0, limit: int = 100) -> list[DenialRecord]:
        from colmlm.kb.log.chain import DenialRecord

        return self.api.read_list("/denials", DenialRecord, "denials", after=after, limit=limit)

    def verify(self, witnessed: Head | None = None) -> AuditReport:
        """Fetch the whole log and verify it locally; only the public key is taken from the server."""
        from colmlm.kb.log.witness import check_log

        return check_log(self.export(), self.api.connection.url, witnessed)

    def seal(self, seqs: Collection[int], *, actor: str, reason: str, dry_run: bool = False) -> Any:
        from colmlm.kb.log.chain import Sealed

        body = on_behalf({"seqs": list(seqs), "actor": actor, "reason": reason, "dry_run": dry_run})
        return self.api.edit("/changes/seal", Sealed, body)

    def public_key(self) -> str:
        return self.api.get("/signing-key", SigningKey).pem

    def export(self) -> Iterator[str]:
        return self.api.lines("/changes/export")


def _times_as_text(only: LogFilters) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in only.items()}
