"""Addresses of inner networks count as public in no spelling."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from colmlm.kb.network.addresses import is_public

INNER = [
    "10.0.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:0:10.0.0.5",
    "::10.0.0.5",
    "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::10.0.0.5",
    "64:ff9b:1:ffff::1",
    "2002:a00:1::",
    "2001:db8::1",
]
PUBLIC = [
    "93.184.215.14",
    "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
    "::ffff:93.184.215.14",
    "64:ff9b::5db8:d70e",
]


@pytest.mark.parametrize("address", INNER)
def test_no_inner_address_is_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are(address: str) -> None:
    assert is_public(ip_address(address))
