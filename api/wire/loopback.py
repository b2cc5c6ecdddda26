"""Tells which host names mean this machine."""

from __future__ import annotations

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_loopback(host: str) -> bool:
    """Tells whether what is sent to this host stays on this machine, whatever the resolver says of other names."""
    return host.lower() in LOOPBACK
