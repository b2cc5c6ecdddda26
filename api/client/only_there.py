"""Refuses, by name, parameters that the API does not have."""

from __future__ import annotations

from colmlm.kb.errors import NotHeeded

_NOT_HEEDED = "it can be heeded only on the machine of the knowledge base; leave it out with a server."
_ITS_KEY = "a server records this under the name of the key; leave it out."


def refuse(**given: object) -> None:
    """Raises `NotHeeded` for the first of these parameters that is set."""
    for name, value in given.items():
        if value not in (None, False, "", (), []):
            raise NotHeeded(name, _ITS_KEY if name == "actor" else _NOT_HEEDED)
