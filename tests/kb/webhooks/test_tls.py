"""Receivers prove their names: the address is the one that was checked, and the certificate is held to the name."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from colmlm.kb.webhooks.messages import message_of_test
from colmlm.kb.webhooks.records import WebhookDelivery
from colmlm.kb.webhooks.sending import Reach, Sender
from tests.authority import Authority
from tests.receiver import LOOPBACK, Receiver, receiver


@pytest.fixture
def authority() -> Authority:
    return Authority.new("tests")


@pytest.fixture
def hook(authority: Authority, tmp_path: Path) -> Iterator[Receiver]:
    """A receiver whose certificate is for the name localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    proof = authority.certify(key).public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "server.pem").write_bytes(proof + secret)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    with receiver(tls) as found:
        yield found


def sent(url: str, authority: Authority | None) -> WebhookDelivery:
    trusted = ssl.create_default_context()
    if authority is not None:
        trusted.load_verify_locations(cadata=authority.certificate.public_bytes(Encoding.PEM).decode())
    with Sender(url, bytes(32), Reach.of([*LOOPBACK, "::1/128"]), trusted=trusted) as sender:
        return sender.send(message_of_test(1, "abc", "standard")).delivery


def test_a_receiver_that_proves_its_name_is_sent_to(hook: Receiver, authority: Authority) -> None:
    assert sent(hook.url, authority).ok and len(hook.received) == 1


def test_one_that_does_not_gets_nothing(hook: Receiver, authority: Authority) -> None:
    others = sent(hook.url.replace("localhost", "127.0.0.1"), authority)  # certified for another name
    stranger = sent(hook.url, None)  # certified by nobody who is trusted
    for done in (others, stranger):
        assert not done.ok and "certificate" in (done.error or "").lower()
    assert hook.received == []
