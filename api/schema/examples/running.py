"""Examples of what a running base consists of: keysets, jobs, tokens, denials, and its health."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from colmlm.api.routes import keysets, tokens, webhooks
from colmlm.api.schema.examples.small_base import AT, HASH, JOB
from colmlm.api.schema.schemas import Health, OwnWorkerHealth
from colmlm.api.wire import answers
from colmlm.kb.jobs import kinds
from colmlm.kb.jobs.kinds import Documents, Sync
from colmlm.kb.jobs.uploads import Upload
from colmlm.kb.keys.records import GateStanding, KeysetHead, KeysetRecord
from colmlm.kb.log.denials import DenialRecord
from colmlm.kb.upkeep.upkeep import Statistics
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery

_HEAD = KeysetHead(
    keyset_id=2,
    checkpoint_id="c0ffee",
    checkpoint_name="co-lmlm-135m",
    dim=576,
    index_spec="IDMap2,Flat",
    threshold=0.71,
    calibrated=True,
    state="ready",
    applied_seq=40,
)
_KEYSET = KeysetRecord(**asdict(_HEAD), num_keys=1048, num_unkeyed=0)
_GATE = GateStanding(True, True, 40, 1)
_UPLOAD = Upload("0f" * 16, "atlas.jsonl", 1048, HASH)
_TOKEN = answers.Token(
    key_id=7,
    name="gpu-host",
    role="decoder",
    state="in use",
    prefix="colmlm_Xb3fQ1",
    created_at=AT,
    expires_at=None,
    last_used_at=AT,
    rate_limit=60_000,
    rotated_at=None,
    previous_until=None,
    previous_used_at=None,
    revoked_at=None,
)
_WEBHOOK = Webhook(
    webhook_id=3,
    url="https://example.org/hooks/facts",
    kinds=("delete", "forget"),
    format="standard",
    state="active",
    delivered_seq=41,
    attempts=0,
    created_at=AT,
    delivered_at=AT,
    failing_since=None,
    next_attempt_at=None,
    last_error=None,
)

EXAMPLES: tuple[Any, ...] = (
    keysets.Activation(reason="gate passed"),
    keysets.NewThreshold(threshold=0.72, reason="calibrated by hand"),
    kinds.Rekey(corpus="atlas"),
    kinds.Gate(keyset_id=2),
    kinds.Ingest(upload_id=_UPLOAD.upload_id, corpus="atlas"),
    kinds.CalibrateAnswers(upload_id=_UPLOAD.upload_id),
    kinds.AskQuestions(question_set="handbook"),
    Documents(upload_ids=[_UPLOAD.upload_id], corpus="atlas"),
    Sync(folder="handbook", corpus="handbook"),
    kinds.VerifyForgetting(run_id=5),
    kinds.MakeBackup(name="before-the-move"),
    kinds.VerifyBackup(name="before-the-move"),
    kinds.WriteSnapshot(),
    kinds.Check(),
    kinds.Compare(radius=0.97),
    _KEYSET,
    answers.KeysetView(keyset=_KEYSET, gate=_GATE),
    keysets.KeysetGate(standing=_GATE, report={"passed": True, "seq": 40, "criteria": []}),
    JOB,
    _UPLOAD,
    _TOKEN,
    answers.TokenWithSecret(token=_TOKEN, secret="colmlm_Xb3fQ1...the rest of it"),
    tokens.NewToken(name="gpu-host", role="decoder", expires_in_seconds=7_776_000, rate_limit=60_000),
    tokens.Rotation(grace_seconds=86_400),
    _WEBHOOK,
    answers.WebhookWithSecret(webhook=_WEBHOOK, secret="whsec_C2FVsBQIhrscChlQIMV...the rest of it"),
    webhooks.NewWebhook(url=_WEBHOOK.url, kinds=["delete", "forget"], since=40),
    webhooks.Replay(from_seq=12),
    WebhookDelivery(message_id="test_4f1c9a3be0d27e55", ok=True, status=204, error=None, seconds=0.042),
    DenialRecord(
        denial_id=9,
        at=AT,
        request_id="4f1c",
        actor="ana",
        method="POST",
        path="/v1/erasures",
        status=403,
        cause="RightMissing",
    ),
    Statistics(41, 1, 1, 1048, 3, 12, 1, 7, 2, 2, 5, 30),
    Health(
        ok=True,
        missing=[],
        database=True,
        migrations_at_head=True,
        head_seq=41,
        index_seq=41,
        index_lag=0,
        active_keyset=_HEAD,
        checkpoint_id="c0ffee",
        generator_loaded=True,
        degraded=[],
        workers=1,
        worker=OwnWorkerHealth(running=True, since=AT, failures=0, restarts=0),
    ),
)
