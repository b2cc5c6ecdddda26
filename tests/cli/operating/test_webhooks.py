"""`colmlm webhooks`, the worker that delivers, and what the doctor says of receivers that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from colmlm.cli.operating.webhooks import MessageForm
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.webhooks.records import FORMATS
from tests.cli.conftest import Run
from tests.receiver import LOOPBACK, Receiver, receiver


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that the settings allow."""
    monkeypatch.setenv("COLMLM_WEBHOOK_NETWORKS", ",".join(LOOPBACK))
    with receiver() as found:
        yield found


def test_the_forms_are_those_of_the_knowledge_base() -> None:
    assert tuple(MessageForm) == FORMATS


def found(run: Run, check: str) -> tuple[str, str] | None:
    """Gives the state of a check of the doctor and what it found; None where it has nothing to say."""
    checks = run("doctor", "--json").json["checks"]
    return next(((one["state"], one["found"]) for one in checks if one["check"] == check), None)


def test_a_worker_delivers_what_waits_and_ends(run: Run, kb: KnowledgeBase, hook: Receiver) -> None:
    secret = run("webhooks", "add", hook.url, "--json").json["secret"]
    run(
        "facts",
        "add",
        "--question",
        "Who wrote Emma?",
        "--value",
        "Jane Austen",
        "--reason",
        "asked for",
        "--no-key",
    )
    assert run("worker", "--once").code == 0
    assert [one.verified(secret)["type"] for one in hook.received] == ["change.insert"]
    (listed,) = run("webhooks", "list", "--json").json["webhooks"]
    assert listed["delivered_seq"] == kb.log.head_seq() and found(run, "webhooks") == (
        "ok",
        "1, none of which fails",
    )


def test_a_receiver_that_fails_is_told_of(run: Run, kb: KnowledgeBase, hook: Receiver) -> None:
    hook.answer = lambda _: (500, {})
    assert found(run, "webhooks") is None
    assert run("webhooks", "add", hook.url, "--after", 0).code == 0
    run("worker", "--once")
    shown = run("webhooks", "list")
    assert "it answered 500" in shown.err and "next attempt" in shown.err
    assert (found(run, "webhooks") or ("",))[0] == "warning"
    with kb.sessions.begin() as session:
        session.execute(text("UPDATE webhook SET state = 'failed'"))
    assert "colmlm webhooks edit 1 --resume" in run("webhooks", "list").err
    assert (found(run, "webhooks") or ("",))[0] == "failed"
    tested = run("webhooks", "test", 1)
    assert tested.code == 1 and "not taken: it answered 500" in tested.out
    assert run("webhooks", "edit", 1, "--resume").out.startswith("Webhook 1 is active")


def test_a_secret_is_shown_once(run: Run, hook: Receiver) -> None:
    assert run("webhooks", "add", hook.url, "--dry-run").out.startswith("Would send")
    secret = run("webhooks", "add", hook.url, "--kind", "delete", "--format", "cloudevents").out.strip()
    assert secret.startswith("whsec_") and secret not in run("webhooks", "list").out
    assert run("webhooks", "add", "https://10.0.0.1/x").code == 2
    (listed,) = run("webhooks", "list", "--json").json["webhooks"]
    remove = ("webhooks", "remove", listed["webhook_id"])
    assert run(*remove).code == 2  # nobody to ask
    assert run(*remove, "--dry-run").code == 0
    assert run(*remove, "--yes").out == f"Removed webhook {listed['webhook_id']} to {hook.url}.\n"
    assert run(*remove, "--yes").code == 3
