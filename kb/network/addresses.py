"""Tells public addresses from those of special purpose, by a list that is the same under every release of Python.

The list follows IANA's registries of special-purpose addresses of IPv4 and IPv6, with the reserved, multicast and
documentation networks. Where a registry calls a part of a listed network globally reachable, such as 192.0.0.9, it
serves the protocols of networks and no public host. `ipaddress` differs from release to release.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_SPECIAL_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared by carriers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private use
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# Outside of it an address is loopback, link-local, site-local, unique local, multicast, translated, or not assigned.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_SPECIAL_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, such as Teredo, which tunnels to any address of IPv4
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which tunnels to any address of IPv4
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # addresses that stand for those of IPv4


def is_public(address: Address) -> bool:
    """Say whether an address is of the public internet, and so of nothing that only this machine reaches."""
    found = meant(address)
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _SPECIAL_IPV4)
    return found in _GLOBAL_UNICAST and not any(found in network for network in _SPECIAL_IPV6)


def meant(address: Address) -> Address:
    """Give the IPv4 address that one of IPv6 stands for, mapped or translated by NAT64; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address
