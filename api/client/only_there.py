"""Parameters that a server cannot be told: refused by name."""

from __future__ import annotations

from colmlm.kb.errors import NotHeeded

_NOT_HEEDED = "it can be heeded only on the machine of the knowledge base; leave it out with a server."
_ITS_KEY = "a server records this under the name of the key; leave it out."


def refuse(**given: object) -> None:
    """Refuses the first of these parameters that is given. Raises `NotHeeded`."""
    for name, value in given.items():
        if value not in (None, False, "", (), []):
            raise NotHeeded(name, _ITS_KEY if name == "actor" else _NOT_HEEDED)
