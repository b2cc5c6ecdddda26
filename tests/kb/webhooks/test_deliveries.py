"""Changes reach their receivers: signed, in order, at least once, tried again, and given up where nothing helps."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from cloudevents.core.formats.json import JSONFormat
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from standardwebhooks.webhooks import WebhookVerificationError

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.webhooks.messages import message_of_change
from colmlm.kb.webhooks.records import Webhook
from colmlm.kb.webhooks.sending import RetryPolicy, lock_position, lock_subscription
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.kb.webhooks.conftest import edit
from tests.kb.webhooks.process import SOON
from tests.receiver import Received, Receiver
from tests.refusals import raises_code


def added(kb: KnowledgeBase, hook: Receiver, **how: object) -> tuple[str, int]:
    """Adds a webhook to the receiver and gives its secret and id."""
    secret, webhook = kb.webhooks.add(hook.url, **how)  # type: ignore[arg-type]
    return secret, webhook.webhook_id


@dataclass
class Faulty:
    """A store that fails so many times, in a way that nobody foresaw, before it is as it should be."""

    kb: KnowledgeBase
    faults: int = 2

    def __getattr__(self, name: str) -> Any:
        if name == "sessions" and self.faults:
            self.faults -= 1
            raise KeyError("a bug")
        return getattr(self.kb, name)


def now_due(kb: KnowledgeBase) -> None:
    """Lets the wait after a failure be over."""
    with kb.sessions.begin() as session:
        session.execute(text("UPDATE webhook SET next_attempt_at = now()"))


def test_every_change_arrives_signed_in_order_and_as_the_log_has_it(
    kb: KnowledgeBase, hook: Receiver
) -> None:
    secret, webhook_id = added(kb, hook)
    seqs = edit(kb, 230)
    Deliverer(kb).run_once()
    assert hook.seqs() == seqs
    assert [one.verified(secret)["type"] for one in hook.received[:3]] == ["change.insert"] * 3
    first, told = hook.received[0].said, kb.log.changes(seqs[0] - 1, 1)[0]
    assert (first["data"]["hash"], first["data"]["reason"]) == (told.hash, "edit 0")
    assert datetime.fromisoformat(first["timestamp"]) == told.at and first["source"].startswith("urn:colmlm:")
    assert not any(b"value 7" in one.body for one in hook.received)  # no fact's text
    shown = kb.webhooks.show(webhook_id)
    assert (shown.delivered_seq, shown.attempts, shown.last_error) == (seqs[-1], 0, None)
    Deliverer(kb).run_once()
    assert len(hook.received) == len(seqs)  # nothing comes twice without a reason


def test_a_fault_ends_no_delivery(
    kb: KnowledgeBase, hook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    added(kb, hook)
    seqs = edit(kb, 1)
    store = Faulty(kb)
    deliverer = Deliverer(store, poll_seconds=0.01)  # type: ignore[arg-type]
    running = threading.Thread(target=deliverer.run)
    running.start()
    hook.await_taken(1)
    deliverer.stop()
    running.join()
    assert hook.taken() == seqs and not store.faults
    assert caplog.text.count("cannot look for changes to deliver") == 1 and "Traceback" in caplog.text


def test_another_secret_verifies_nothing(kb: KnowledgeBase, hook: Receiver) -> None:
    added(kb, hook)
    other, _ = added(kb, hook, kinds=["delete"])
    edit(kb, 1)
    Deliverer(kb).run_once()
    with pytest.raises(WebhookVerificationError):
        hook.received[0].verified(other)


def test_only_wanted_kinds_are_sent_and_the_others_passed_over(kb: KnowledgeBase, hook: Receiver) -> None:
    fact = kb.facts.add("Question?", "value", actor="ann", reason="add").fact_ids[0]
    deleted = kb.facts.delete([fact], actor="ann", reason="delete").seq
    _, webhook_id = added(kb, hook, kinds=["delete"], since=0)
    Deliverer(kb).run_once()
    assert hook.seqs() == [deleted]
    assert kb.webhooks.show(webhook_id).delivered_seq == kb.log.head_seq()


def test_messages_may_be_cloud_events(kb: KnowledgeBase, hook: Receiver) -> None:
    secret, _ = added(kb, hook, form="cloudevents")
    (seq,) = edit(kb, 1)
    Deliverer(kb).run_once()
    (one,) = hook.received
    one.verified(secret)
    event = from_structured_event(HTTPMessage(one.headers, one.body), JSONFormat())
    assert (event.get_id(), event.get_type()) == (str(seq), "org.colmlm.change.insert")
    assert event.get_data()["reason"] == "edit 0"  # type: ignore[index,call-overload]


def failing(times: int, status: int = 503, **headers: str) -> object:
    """Answers so many times with the status, then takes what comes."""
    left = [times]

    def answer(_: Received) -> tuple[int, dict[str, str]]:
        left[0] -= 1
        return (status, headers) if left[0] >= 0 else (204, {})

    return answer


def test_a_change_is_sent_again_until_it_is_taken_and_none_overtakes_it(
    kb: KnowledgeBase, hook: Receiver
) -> None:
    secret, webhook_id = added(kb, hook)
    first, second = edit(kb, 2)
    hook.answer = failing(2)  # type: ignore[assignment]
    Deliverer(kb).run_once()
    shown = kb.webhooks.show(webhook_id)
    assert (shown.state, shown.attempts, shown.last_error) == ("active", 1, "it answered 503")
    assert shown.delivered_seq < first and shown.next_attempt_at is not None
    Deliverer(kb).run_once()
    assert len(hook.received) == 1  # it is not due yet
    for _ in range(2):
        now_due(kb)
        Deliverer(kb).run_once()
    assert hook.seqs() == [first, first, first, second] and hook.taken() == [first, second]
    assert len(set(hook.names())) == 2
    for one in hook.received:
        one.verified(secret)
    assert kb.webhooks.show(webhook_id).failing_since is None


def test_waits_grow_and_are_no_shorter_than_the_receiver_asks() -> None:
    persistence = RetryPolicy()
    waits = [persistence.wait(failures, None).total_seconds() for failures in range(1, 40)]
    assert all(0.9 * 5 * 2**n <= waits[n] <= 1.1 * 5 * 2**n for n in range(9))
    assert max(waits) <= 1.1 * 3600
    assert persistence.wait(1, 120.0) == timedelta(seconds=120)


def test_a_receiver_that_asks_for_a_pause_gets_it(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    edit(kb, 1)
    hook.answer = failing(1, 429, **{"retry-after": "600"})  # type: ignore[assignment]
    Deliverer(kb).run_once()
    shown = kb.webhooks.show(webhook_id)
    assert shown.next_attempt_at is not None
    assert shown.next_attempt_at - datetime.now(UTC) > timedelta(seconds=500)


def test_a_receiver_that_fails_for_days_is_given_up_and_resumed_by_hand(
    kb: KnowledgeBase, hook: Receiver
) -> None:
    _, webhook_id = added(kb, hook)
    (seq,) = edit(kb, 1)
    hook.answer = failing(2, 500)  # type: ignore[assignment]
    Deliverer(kb).run_once()
    with kb.sessions.begin() as session:
        session.execute(
            text("UPDATE webhook SET failing_since = now() - interval '4 days', next_attempt_at = now()")
        )
    Deliverer(kb).run_once()
    shown = kb.webhooks.show(webhook_id)
    assert (shown.state, shown.attempts, shown.last_error) == ("failed", 2, "it answered 500")
    now_due(kb)
    Deliverer(kb).run_once()
    assert len(hook.received) == 2  # nothing more is sent
    assert kb.webhooks.resume(webhook_id).attempts == 0
    Deliverer(kb).run_once()
    assert hook.taken()[0] == seq


def test_a_receiver_that_works_again_need_not_be_waited_for(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    (seq,) = edit(kb, 1)
    hook.answer = failing(1)  # type: ignore[assignment]
    Deliverer(kb).run_once()
    assert kb.webhooks.resume(webhook_id).next_attempt_at is None
    Deliverer(kb).run_once()
    assert hook.taken()[0] == seq
    with raises_code("WebhookState"):
        kb.webhooks.resume(webhook_id)


def test_who_says_that_it_is_gone_is_given_up_at_once(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    edit(kb, 1)
    hook.answer = failing(1, 410)  # type: ignore[assignment]
    Deliverer(kb).run_once()
    assert kb.webhooks.show(webhook_id).state == "failed"


def test_a_redirect_is_not_followed(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    edit(kb, 1)
    hook.answer = lambda _: (307, {"location": hook.url})
    Deliverer(kb).run_once()
    assert len(hook.received) == 1
    assert "redirect" in (kb.webhooks.show(webhook_id).last_error or "")


def test_a_replay_sends_the_same_messages_again_and_may_skip_one(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    seqs = edit(kb, 3)
    Deliverer(kb).run_once()
    kb.webhooks.replay(webhook_id, seqs[1])
    Deliverer(kb).run_once()
    assert hook.names()[3:5] == hook.names()[1:3]
    later = edit(kb, 2)
    kb.webhooks.replay(webhook_id, later[1])  # one that is never taken is passed over so
    before = len(hook.received)
    Deliverer(kb).run_once()
    assert hook.seqs()[before:] == [later[1], kb.log.head_seq()]


def test_a_paused_webhook_gets_nothing_and_then_all(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook, kinds=["insert"])
    kb.webhooks.pause(webhook_id)
    seqs = edit(kb, 2)
    Deliverer(kb).run_once()
    assert hook.received == []
    kb.webhooks.resume(webhook_id)
    Deliverer(kb).run_once()
    assert hook.seqs() == seqs


def test_a_pause_holds_before_the_next_change(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook, kinds=["insert"])
    first, _ = edit(kb, 2)

    def pause(_: Received) -> tuple[int, dict[str, str]]:
        kb.webhooks.pause(webhook_id)
        return 204, {}

    hook.answer = pause
    Deliverer(kb).run_once()
    assert hook.seqs() == [first] and kb.webhooks.show(webhook_id).delivered_seq == first


def test_a_webhook_that_is_removed_meanwhile_gets_nothing_more(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    edit(kb, 2)

    def remove(_: Received) -> tuple[int, dict[str, str]]:
        kb.webhooks.remove(webhook_id)
        return 500, {}

    hook.answer = remove
    Deliverer(kb).run_once()
    assert len(hook.received) == 1 and kb.webhooks.all() == []


def test_one_process_at_a_time_delivers_to_a_receiver(
    kb: KnowledgeBase, another_process: KnowledgeBase, hook: Receiver
) -> None:
    _, webhook_id = added(kb, hook)
    edit(kb, 1)
    with lock_position(another_process, webhook_id) as theirs, lock_position(kb, webhook_id) as mine:
        assert theirs is not None and mine is None
        Deliverer(kb).run_once()
        assert hook.received == []
    Deliverer(kb).run_once()
    assert len(hook.received) == 1


def test_two_deliverers_and_edits_at_once_keep_the_order(
    kb: KnowledgeBase, another_process: KnowledgeBase, hook: Receiver
) -> None:
    added(kb, hook, kinds=["insert"])
    counted = [0]

    def sometimes(_: Received) -> tuple[int, dict[str, str]]:
        counted[0] += 1
        return (503 if counted[0] % 5 == 0 else 204), {}

    hook.answer = sometimes
    deliverers = [Deliverer(one, SOON, poll_seconds=0.01) for one in (kb, another_process)]
    running = [threading.Thread(target=one.run) for one in deliverers]
    for thread in running:
        thread.start()
    seqs = edit(kb, 60)
    try:
        hook.await_taken(60)
    finally:
        for one in deliverers:
            one.stop()
        for thread in running:
            thread.join()
    assert hook.taken() == seqs  # each once, in order, whoever sent it


@pytest.mark.slow(reason="waits for deliveries")
def test_a_deliverer_goes_on_until_all_is_told_and_stops_when_it_is_told_to(
    kb: KnowledgeBase, hook: Receiver
) -> None:
    added(kb, hook)
    seqs = edit(kb, 250)  # more than a turn has
    deliverer = Deliverer(kb, poll_seconds=0.01)
    running = threading.Thread(target=deliverer.run)
    running.start()
    hook.await_taken(len(seqs))
    deliverer.stop()
    running.join()
    assert hook.taken() == seqs
    edit(kb, 1)
    assert len(hook.received) == len(seqs)


def test_who_lost_the_lock_notes_nothing_and_goes_no_further(
    kb: KnowledgeBase, another_process: KnowledgeBase, hook: Receiver
) -> None:
    _, webhook_id = added(kb, hook, kinds=["insert"])
    seqs = edit(kb, 3)

    def cut_off(_: Received) -> tuple[int, dict[str, str]]:
        if len(hook.received) == 1:  # the second change is on its way
            with kb.engine.begin() as connection:
                ended = (
                    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database "
                    "WHERE locktype = 'advisory' AND datname = current_database()"
                )
                connection.execute(text(ended))
        return 204, {}

    hook.answer = cut_off
    with pytest.raises(SQLAlchemyError):
        Deliverer(kb).run_once()
    assert hook.seqs() == seqs[:2]
    assert kb.webhooks.show(webhook_id).delivered_seq == seqs[0]
    Deliverer(another_process).run_once()
    assert hook.seqs() == [seqs[0], seqs[1], *seqs[1:]] and hook.names()[1] == hook.names()[2]


def test_a_test_message_tells_whether_the_receiver_is_reached(kb: KnowledgeBase, hook: Receiver) -> None:
    secret, webhook_id = added(kb, hook)
    done = kb.webhooks.test(webhook_id)
    assert (done.ok, done.status, done.error) == (True, 204, None)
    (one,) = hook.received
    assert one.verified(secret)["type"] == "test" and one.name == done.message_id
    hook.answer = lambda _: (401, {})
    assert kb.webhooks.test(webhook_id).error == "it answered 401"
    before = kb.webhooks.show(webhook_id)
    assert (before.attempts, before.state) == (0, "active")  # a test is no delivery


def test_a_message_of_a_change_is_the_same_whoever_makes_it(kb: KnowledgeBase) -> None:
    (seq,) = edit(kb, 1)
    (change,) = kb.log.changes(seq - 1, 1)
    message = message_of_change(change, "abc", "standard")
    assert message == message_of_change(change, "abc", "standard")
    of_another_life = replace(change, hash="0" * 64)  # the log went on from an older backup
    assert message_of_change(of_another_life, "abc", "standard").message_id != message.message_id
    assert (
        "." not in message_of_change(change, "abc", "standard").message_id
    )  # the signature joins its parts by dots


def test_a_webhook_shows_no_secret(kb: KnowledgeBase, hook: Receiver) -> None:
    secret, _ = added(kb, hook)
    assert secret.startswith("whsec_")
    assert "secret" not in Webhook.__dataclass_fields__
    with kb.engine.connect() as connection:
        log = " ".join(connection.scalars(text("SELECT change::text FROM change")))
    assert secret not in log and "/hook" not in log and "127.0.0.1" in log


def test_a_webhook_is_shown_while_it_is_edited(kb: KnowledgeBase, hook: Receiver) -> None:
    _, webhook_id = added(kb, hook)
    with ThreadPoolExecutor(1) as pool, kb.sessions() as editing:
        lock_subscription(editing, webhook_id)
        assert pool.submit(kb.webhooks.show, webhook_id).result(timeout=20).webhook_id == webhook_id
