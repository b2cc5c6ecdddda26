"""Tells public addresses from those of inner networks, also where an IPv6 address stands for one of IPv4."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")  # addresses that stand for those of IPv4


def is_public(address: Address) -> bool:
    """Says whether an address is of the public internet, and so of nothing that only this machine reaches."""
    found = meant(address)
    if isinstance(found, IPv6Address) and found.is_site_local:
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def meant(address: Address) -> Address:
    """Gives the IPv4 address that one of IPv6 stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
