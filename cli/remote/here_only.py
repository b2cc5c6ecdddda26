"""Options that a server cannot be told: refused by name."""

from __future__ import annotations

import typer

_NOT_HEEDED = "it can be heeded only on the machine of the knowledge base; leave it out with a server."
_ITS_KEY = "a server records this under the name of the key; leave it out."


def refuse(**given: object) -> None:
    """Refuse the first of these options that is given, named as in Python."""
    for name, value in given.items():
        if value not in (None, False, "", (), []):
            said = _ITS_KEY if name == "actor" else _NOT_HEEDED
            raise typer.BadParameter(said, param_hint=f"--{name.replace('_', '-')}")
