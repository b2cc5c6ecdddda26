"""Jobs, keysets, keys and webhooks of a knowledge base elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb.store.settings import Settings
from tests.cli.conftest import invoke
from tests.cli.elsewhere import WHY, There, working
from tests.receiver import LOOPBACK, Receiver
from tests.tiny import tiny_checkpoint


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings by which webhooks may be sent to this machine, here and at the server."""
    monkeypatch.setenv("COLMLM_WEBHOOK_NETWORKS", ",".join(LOOPBACK))
    return replace(settings, webhook_networks=LOOPBACK)


def test_jobs_are_asked_for_shown_and_ended_there(there: There) -> None:
    job_id = there.run("jobs", "start", "fsck", "--json", role="auditor").json["job_id"]
    rekey = there.run("jobs", "start", "rekey", "keyset_id=1", "--json").json
    assert (rekey["actor"], rekey["state"]) == ("the admin", "queued")
    for words in (
        ("jobs", "list"),
        ("jobs", "list", "--kind", "fsck", "--limit", 1),
        ("jobs", "list", "--state", "queued", "--before", rekey["job_id"]),
        ("jobs", "list", job_id),
        ("keysets", "list"),
        ("tokens", "list"),
    ):
        assert any(there.same(*words, volatile=("last_used_at",)).values())
    assert there.run("jobs", "cancel", job_id, "--json").json["state"] == "cancelled"
    assert there.same("jobs", "list", job_id, "--wait", code=1)["cancelled_by"] == "the admin"
    for words, code in (
        (("jobs", "cancel", job_id), 4),
        (("jobs", "list", 99), 3),
        (("jobs", "start", "rekey", "checkpoint=none", "keyset_id=1"), 2),
    ):
        here, answer = invoke(*words), there.run(*words)
        assert answer.code == here.code == code and answer.err == here.err
    assert there.run("jobs", "list", "--json", role="reader").json["jobs"] == []
    assert "'train'" in there.run("jobs", "start", "rekey", role="auditor").err
    assert "--actor" in there.run("jobs", "start", "fsck", "--actor", "ann").err


@pytest.mark.slow(reason="types many commands here and against a server")
def test_a_keyset_is_keyed_checked_activated_and_retired_there(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    other = tiny_checkpoint(tmp_path / "other", seed=4, eagerness=1.0)
    assert invoke("keysets", "create", "--checkpoint", other, "--empty", "--json").json["keyset_id"] == 2
    with working(there.kb):
        keyed = there.run("keysets", "fill", 2, "--json", role="trainer").json
        assert (keyed["keyset_id"], keyed["num_keys"], keyed["state"]) == (2, 2, "ready")
        assert there.run("keysets", "fill", "--json", role="trainer").json["keyset_id"] == 1, "the active one"
        check = ("keysets", "check", 2, "--sample", 2)
        report = there.run(*check, "--json", role="trainer")
        table = there.run(*check)
        assert "criterion" in table.out and "Job" in table.err
    here = invoke(*check, "--json")
    assert here.code == report.code == table.code and {**here.json, "at": ""} == {**report.json, "at": ""}
    active = there.run("keysets", "activate", 2, "--force", *WHY, "--json", role="trainer").json
    assert active["state"] == "active" and there.kb.log.changes()[-1].actor == "the trainer"
    assert there.run("keysets", "retire", 2, "--yes").code == 4
    back = there.run("keysets", "rollback", "--actor", "ann", "--json").json
    assert back["keyset_id"] == 1 and there.kb.log.changes()[-1].on_behalf_of == "ann"
    there.same("keysets", "threshold", 1, "--set", 0.5)
    there.same("keysets", "retire", 2, "--dry-run")
    assert there.run("keysets", "retire", 2, "--yes", "--json").json["num_keys"] == 2
    for words, code in (
        (("keysets", "fill", 2), 4),
        (("keysets", "check", 99), 3),
        (("keysets", "activate", 2), 4),
        (("keysets", "threshold", 99), 3),
    ):
        here, answer = invoke(*words), there.run(*words)
        assert (answer.code, answer.err) == (here.code, here.err) and here.code == code
    assert "--plot" in there.run("keysets", "check", 1, "--plot", "x.png").err


def test_keys_are_made_rotated_and_revoked_there(there: There) -> None:
    options = ("--role", "operator", "--expires-in", "90d", "--rate-limit", 600, "--json")
    made, here = (
        there.run("tokens", "create", "ann", *options).json,
        invoke("tokens", "create", "bob", *options),
    )
    assert made.keys() == here.json.keys() and made["rate_limit"] == 600 and made["role"] == "operator"
    rotated = there.run("tokens", "rotate", "ann", "--grace", "24h", "--json").json
    assert rotated["token"] != made["token"] and rotated["previous_until"]
    assert there.run("tokens", "revoke", "ann").code == 2  # nobody to ask
    assert there.run("tokens", "revoke", "ann", "--yes", "--json").json == {"name": "ann", "revoked": True}
    for words, code in (
        (("tokens", "revoke", "ann", "--yes"), 4),
        (("tokens", "rotate", "ann", "--yes"), 4),
        (("tokens", "rotate", "nobody", "--yes"), 3),
        (("tokens", "create", "ann"), 2),
    ):
        told, answer = invoke(*words), there.run(*words)
        assert (answer.code, answer.err) == (told.code, told.err) and told.code == code
    assert "--dry-run" in there.run("tokens", "create", "eve", "--dry-run").err
    assert there.run("tokens", "list", role="reader").code == 2


def test_webhooks_are_added_and_told_there(there: There, hook: Receiver) -> None:
    made = there.run("webhooks", "add", hook.url, "--kind", "delete", "--after", 0, "--json").json
    assert made["secret"].startswith("whsec_") and made["webhook"]["kinds"] == ["delete"]
    assert there.same("webhooks", "list")["webhooks"] == [made["webhook"]]
    assert there.run("webhooks", "test", 1, "--json").json["ok"]
    assert hook.received[0].verified(made["secret"])["type"] == "test"
    assert there.run("webhooks", "edit", 1, "--pause", "--json").json["state"] == "paused"
    assert "paused" in there.run("webhooks", "edit", 1, "--replay-from", 1).err
    assert there.run("webhooks", "edit", 1, "--resume", "--json").json["state"] == "active"
    for words, code in (
        (("webhooks", "edit", 1, "--resume"), 4),
        (("webhooks", "edit", 99, "--pause"), 3),
        (("webhooks", "edit", 1, "--replay-from", 999), 3),
        (("webhooks", "add", "http://169.254.169.254/"), 2),
        (("webhooks", "add", hook.url, "--kind", "nothing"), 2),
    ):
        here, answer = invoke(*words), there.run(*words)
        assert (answer.code, answer.err) == (here.code, here.err) and here.code == code
    assert "--dry-run" in there.run("webhooks", "remove", 1, "--dry-run").err
    assert there.run("webhooks", "remove", 1).code == 2  # nobody to ask
    assert there.run("webhooks", "remove", 1, "--yes", "--json").json["webhook"]["webhook_id"] == 1
    assert there.run("webhooks", "list", role="operator").code == 0
    assert there.run("webhooks", "list", role="auditor").code == 2
    kinds = [change.kind for change in there.kb.log.changes() if "webhook" in change.kind]
    assert kinds == ["add-webhook", "pause-webhook", "replay-webhook", "resume-webhook", "remove-webhook"]
