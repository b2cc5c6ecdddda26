"""The addresses that webhooks may reach: public ones, and those of networks that the operator names.

Whoever may add a webhook could otherwise have this machine send requests to services that only it reaches. So a name
is resolved here, its addresses are checked, and the request goes to an address that was checked and not to the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Self

import httpx2

from colmlm.kb.errors import WebhookRefused
from colmlm.kb.log.audit import check_text
from colmlm.kb.network.addresses import Address, is_public, meant
from colmlm.kb.network.names import addresses_of
from colmlm.kb.webhooks.records import LONGEST_URL

_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Reach:
    """The networks that webhooks may reach beside the public internet."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, networks: Iterable[str]) -> Self:
        return cls(tuple(ip_network(network) for network in networks))

    def target(self, text: str) -> tuple[httpx2.URL, Address]:
        """Gives the URL and an address of its host that may be reached now. Raises `WebhookRefused`."""
        url = _parsed(text)
        resolved = _resolved(url)
        allowed = [address for address in resolved if self.allows(address)]
        if not allowed:
            raise WebhookRefused(
                f"its host {url.host} is at {resolved[0]}, which is no public address; the operator can allow its "
                "network in COLMLM_WEBHOOK_NETWORKS"
            )
        if url.scheme == "http" and not all(address.is_loopback for address in allowed):
            raise WebhookRefused("it must start with https://; plain http is for this machine alone")
        return url, allowed[0]

    def allows(self, address: Address) -> bool:
        """Says whether a request may be sent to this address."""
        found = meant(address)
        return any(found in network for network in self.networks) or is_public(address)


def _resolved(url: httpx2.URL) -> list[Address]:
    port = url.port or _PORTS[url.scheme]
    try:
        return addresses_of(url.raw_host.decode(), port)
    except (OSError, UnicodeError) as error:
        raise WebhookRefused(f"its host {url.host} is not known ({error})") from error


def _parsed(text: str) -> httpx2.URL:
    check_text("URL of the webhook", text, blank=False, limit=LONGEST_URL)
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise WebhookRefused(f"it is no URL ({error})") from error
    if url.scheme not in _PORTS or not url.host:
        raise WebhookRefused("it must be an address like https://example.org/hook")
    if url.port is not None and not 0 < url.port < 65_536:
        raise WebhookRefused(f"it has no port {url.port}")
    if url.userinfo or url.fragment:
        raise WebhookRefused("it must have no user, password or fragment; the secret shows who sends")
    return url
