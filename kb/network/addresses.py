"""Tells public addresses from those of special purpose, by a list that is the same under every release of Python.

The list follows IANA's registries of special-purpose addresses of IPv4 and IPv6, with the reserved, multicast and
documentation networks. Where a registry calls a part of a listed network globally reachable, such as 192.0.0.9, it
serves the protocols of networks and no public host. `ipaddress` differs from release to release.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpcore2
import httpx2

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
    found = meant_address(address)
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _SPECIAL_IPV4)
    return found in _GLOBAL_UNICAST and not any(found in network for network in _SPECIAL_IPV6)


def meant_address(address: Address) -> Address:
    """Give the IPv4 address that one of IPv6 stands for, mapped or translated by NAT64; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


# Requests that end at one moment, however slowly the other side answers.
#
# A client's own time limits are for each read. Who sends one byte before each of them ends would hold a
# request for ever.

_PIECE = 16 * 1024  # bytes that are written before the time is looked at again
_IDLE_SECONDS = 5.0  # for which a connection is kept open


@dataclass(slots=True)
class Deadline:
    """The moment at which a request over a transport must have ended; `begin` sets it."""

    end: float = math.inf

    def begin(self, seconds: float) -> None:
        """Set the deadline to so many seconds from now."""
        self.end = time.monotonic() + seconds

    def within(self, limit: float | None, over: type[httpcore2.TimeoutException]) -> float:
        """Give the seconds that one step may take: up to its own limit. Raises `over` where no time is left."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise over("the time is over")
        return left if limit is None else min(limit, left)


class DeadlineTransport(httpx2.HTTPTransport):
    """A transport of httpx2 whose connections keep a deadline in every step."""

    def __init__(self, deadline: Deadline, trusted: ssl.SSLContext | bool = True) -> None:
        context = httpx2.create_ssl_context(verify=trusted, trust_env=False)
        super().__init__(verify=context)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=context, keepalive_expiry=_IDLE_SECONDS, network_backend=_Backend(deadline)
        )


class _Backend(httpcore2.SyncBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:  # fmt: skip
        within = self._deadline.within(timeout, httpcore2.ConnectTimeout)
        stream = super().connect_tcp(host, port, within, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.within(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            within = self._deadline.within(timeout, httpcore2.WriteTimeout)
            self._stream.write(buffer[start : start + _PIECE], within)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        within = self._deadline.within(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, within), self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


# Names of hosts and the addresses that they stand for, asked for with a limit, which the system's resolver
# has not.

NAME_SECONDS = 10.0  # two tries of five seconds are what a resolver's own client gives a server of names


def addresses_of(host: str, port: int, seconds: float = NAME_SECONDS) -> list[Address]:
    """Give the addresses of a host, in the system's order. Raises `OSError`, a `TimeoutError` where it takes too long.

    The thread that asks goes on until the system gives up: nothing can interrupt it.
    """
    found: list[list[Address]] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.append([ip_address(str(place[0]).partition("%")[0]) for *_, place in places])
        except (OSError, UnicodeError) as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"no server of names answered in {seconds:g} s")
    return found[0]
