"""What goes wrong between here and a server elsewhere.

KBError (kb/errors.py: what the server's knowledge base refused is raised as the error it was there)
└── RemoteError
    ├── ServerUnreachable   nobody answers there, or the answers are not of this program
    ├── KeyRefused          401 or 403
    ├── ServerBusy          429 or 503, still after trying again
    └── RemoteRefused       anything else
"""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

import kb.errors
from api.errors import Problem
from kb.errors import KBError


class RemoteError(KBError):
    """What a server elsewhere did not do."""

    title = "Server elsewhere"
    status = 502


class ServerUnreachable(RemoteError):
    title = "Server out of reach"
    exit_code = 5

    def __init__(self, url: str, cause: str) -> None:
        self.url = url
        super().__init__(
            f"No knowledge base answers at {url}: {cause.rstrip('.')}. Check the address and that it runs."
        )


class KeyRefused(RemoteError):
    title = "Key refused"
    exit_code = 2

    def __init__(self, detail: str) -> None:
        super().__init__(f"The server refuses the key: {detail}")


class ServerBusy(RemoteError):
    title = "Server is busy"
    exit_code = 6


class RemoteRefused(RemoteError):
    title = "Refused by the server"


def refused(response: httpx2.Response) -> KBError:
    """The error that an answer with a status of 400 and above tells of; the key is in none."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        return ServerUnreachable(
            str(response.request.url.copy_with(query=None)), f"status {response.status_code}"
        )
    known = _KNOWN.get(problem.type.removeprefix("urn:colmlm:"))
    if known is not None:
        return _as_it_was(known, problem)
    if problem.status in (401, 403):
        return KeyRefused(problem.detail)
    faults = "".join(f" {fault.field}: {fault.message}." for fault in problem.errors)
    return (ServerBusy if problem.status in (429, 503) else RemoteRefused)(problem.detail + faults)


_KNOWN: dict[str, type[KBError]] = {
    name: found
    for name, found in vars(kb.errors).items()
    if isinstance(found, type) and issubclass(found, KBError)
}


def _as_it_was(kind: type[KBError], problem: Problem) -> KBError:
    """An error of the knowledge base with the words it had there, and the ids it is about."""
    error: Any = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    for name, ids in problem.about.items():
        setattr(error, name, tuple(ids) if isinstance(ids, list) else ids)
    found: KBError = error
    return found
