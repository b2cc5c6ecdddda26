"""Addresses of inner networks count as public in no spelling."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv6Address, ip_address

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
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.88.99.2",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
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
    "2002:5db8:d70e::1",
    "2001:db8::1",
    "3fff::1",
    "3fff:fff:ffff::1",
    "100::1",
    "100:0:0:1::1",
    "5f00::1",
    "2001:2::1",
    "2001:10::1",
    "2001:0:5db8:d70e::f5ff:fffe",
    "::ffff:192.88.99.1",
    "::ffff:192.0.0.9",
    "64:ff9b::192.88.99.1",
    "4000::1",
]
PUBLIC = [
    "8.8.8.8",
    "192.0.1.0",
    "192.88.98.255",
    "192.88.100.0",
    "2001:200::1",
    "2001:4860:4860::8888",
    "3ffe:ffff::1",
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


def test_no_release_of_python_knows_of_another_inner_address() -> None:
    """The list names at least what this Python does not call global, in each network that it splits the space into."""
    chosen = random.Random(20_261_127)
    fourth = [IPv4Address(high << 16 | low) for high in range(1 << 16) for low in (1, chosen.getrandbits(16))]
    sixth = [IPv6Address(high << 112 | chosen.getrandbits(112)) for high in range(1 << 16)]
    near = [IPv6Address(0x2001 << 112 | high << 96 | chosen.getrandbits(96)) for high in range(1 << 16)]
    mapped = [IPv6Address(0xFFFF << 32 | int(address)) for address in fourth[::64]]
    for address in (*fourth, *sixth, *near, *mapped):
        assert not is_public(address) or (address.is_global and not address.is_multicast), address
