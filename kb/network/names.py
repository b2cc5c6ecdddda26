"""Names of hosts and the addresses that they stand for, asked for with a limit, which the system's resolver has not."""

from __future__ import annotations

import socket
import threading
from ipaddress import ip_address

from colmlm.kb.network.addresses import Address

NAME_SECONDS = 10.0  # two tries of five seconds are what a resolver's own client gives a server of names


def addresses_of(host: str, port: int, seconds: float = NAME_SECONDS) -> list[Address]:
    """Gives the addresses of a host, in the system's order. Raises `OSError`, a `TimeoutError` where it takes too long.

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
