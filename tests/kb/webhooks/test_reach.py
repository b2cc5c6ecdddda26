"""Webhooks reach public addresses and what the operator allows, and nothing else."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from colmlm.kb.errors import InvalidValue, SettingsError, WebhookRefused
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.messages import message_of_test
from colmlm.kb.webhooks.sending import Reach, Sender
from tests.receiver import LOOPBACK, Receiver
from tests.refusals import raises_code


def test_nothing_inner_is_reached_and_what_is_public_is() -> None:
    assert not any(Reach().allows(ip_address(address)) for address in ("10.0.0.1", "fec0::1", "::10.0.0.5"))
    assert Reach().allows(ip_address("93.184.215.14"))


def test_a_network_that_is_allowed_is_reached_and_its_neighbour_is_not() -> None:
    reach = Reach.of(["10.1.0.0/16"])
    assert reach.allows(ip_address("10.1.2.3")) and reach.allows(ip_address("::ffff:10.1.2.3"))
    assert not reach.allows(ip_address("10.2.0.1"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/x", "not a public address"),
        ("http://localhost:9/x", "not a public address"),
        ("http://127.1:9/x", "not a public address"),
        ("http://0x7f000001:9/x", "not a public address"),
        ("https://[::1]/x", "not a public address"),
        ("https://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://no-such-host.invalid/x", "not known"),
        ("ftp://example.org/x", "address like https"),
        ("example.org/x", "address like https"),
        ("https://", "address like https"),
        ("https://ann:secret@example.org/x", "has a user or password"),
        ("https://93.184.215.14/x#part", "fragment"),
        ("http://93.184.215.14/x", "https"),
        ("https://example.org:99999/", "is not valid"),
    ],
)
def test_what_may_not_be_sent_to_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(WebhookRefused, match=why):
        Reach().target(url)


def test_plain_http_is_for_this_machine_alone() -> None:
    reach = Reach.of([*LOOPBACK, "10.0.0.0/8"])
    assert str(reach.target("http://127.0.0.1:9/x")[1]) == "127.0.0.1"
    with pytest.raises(WebhookRefused, match="https"):
        reach.target("http://10.0.0.1/x")
    assert reach.target("https://10.0.0.1/x")


def test_a_receiver_that_is_inner_by_now_is_not_sent_to(kb: KnowledgeBase, hook: Receiver) -> None:
    """What was allowed once is looked at with every request, since a name may come to mean another address."""
    _, webhook = kb.webhooks.add(hook.url)
    with Sender(webhook.url, bytes(32), Reach()) as sender:
        done = sender.send(message_of_test(webhook.webhook_id, "abc", "standard")).delivery
    assert not done.ok and "not a public address" in (done.error or "") and hook.received == []


def test_a_name_is_sent_to_as_the_address_that_was_checked(hook: Receiver) -> None:
    url = hook.url.replace("127.0.0.1", "localhost")
    with Sender(url, bytes(32), Reach.of(LOOPBACK)) as sender:
        assert sender.send(message_of_test(1, "abc", "standard")).delivery.ok
    assert hook.received[0].headers["host"].startswith("localhost:")


def test_who_does_not_answer_is_told_by_what_went_wrong() -> None:
    with Sender("http://127.0.0.1:1/x", bytes(32), Reach.of(LOOPBACK)) as sender:
        done = sender.send(message_of_test(1, "abc", "standard")).delivery
    assert not done.ok and done.status is None and "refused" in (done.error or "").lower()


def test_what_makes_no_sense_is_refused(kb: KnowledgeBase, hook: Receiver) -> None:
    for unfit in ({"kinds": ["deleted"]}, {"form": "xml"}):
        with pytest.raises(InvalidValue):
            kb.webhooks.add(hook.url, **unfit)  # type: ignore[arg-type]
    with raises_code("NoSuchChange"):
        kb.webhooks.add(hook.url, since=99)
    assert kb.webhooks.all() == [] and kb.log.head_seq() == 0
    assert kb.webhooks.add(hook.url, dry_run=True)[1].url == hook.url and kb.webhooks.all() == []


def test_networks_of_the_setting_are_checked() -> None:
    env = {"COLMLM_WEBHOOK_NETWORKS": "10.0.0.0/8, fd00::/8"}
    assert Settings.from_environment(env).webhook_networks == ("10.0.0.0/8", "fd00::/8")
    with pytest.raises(SettingsError, match="COLMLM_WEBHOOK_NETWORKS"):
        Settings.from_environment({"COLMLM_WEBHOOK_NETWORKS": "10.0.0.1/8"})
