"""The errors of a client of a remote server.

KBError (kb/errors: an error of the server's knowledge base is raised here as the same class)
└── RemoteError
    ├── ServerUnreachable   no response, or none of this program's
    │   └── AnswerLost      an edit was sent without a response, and may have been made
    ├── TokenRefused        401 or 403
    ├── ServerBusy          429 or 503, also after the retries
    ├── JobNotDone          a job there ended without a result or an error
    ├── RequestRefused      400, 413 or 422 of the API itself: the request is not valid
    └── RemoteRefused       anything else
"""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from colmlm.api.wire.answers import Problem
from colmlm.kb import errors
from colmlm.kb.errors import KBError


class RemoteError(KBError):
    """A request to a remote server failed. Where it `was_sent`, it may have been carried out all the same."""

    title = "Server elsewhere"
    was_sent = False


class ServerUnreachable(RemoteError):
    title = "Server out of reach"

    def __init__(self, url: str, cause: str, *, was_sent: bool = False) -> None:
        self.url, self.cause, self.was_sent = url, cause.rstrip("."), was_sent
        super().__init__(
            f"No knowledge base answers at {url}: {self.cause}. Check the address and that it runs."
        )


class AnswerLost(ServerUnreachable):
    title = "Answer lost"

    def __init__(self, lost: ServerUnreachable) -> None:
        super().__init__(lost.url, lost.cause, was_sent=True)
        self.args = (
            f"The answer of {lost.url} was lost: {lost.cause}. Whether it was done is not known here; "
            "see `colmlm log list` before you ask for it again.",
        )


class TokenRefused(RemoteError):
    title = "Token refused"

    def __init__(self, detail: str, where: str = "") -> None:
        self.detail = detail
        super().__init__(f"The server refuses the token{where}: {detail}")


class ServerBusy(RemoteError):
    title = "Server is busy"


class JobNotDone(RemoteError):
    title = "Job not done"

    def __init__(self, job_id: int, state: str) -> None:
        self.job_id = job_id
        super().__init__(f"Job {job_id} is {state}. What it had done stays done; see `colmlm jobs show`.")


class RemoteRefused(RemoteError):
    title = "Refused by the server"


class RequestRefused(RemoteRefused):
    """The API itself refuses the request as not valid, with its own message."""


def refused(response: httpx2.Response) -> KBError:
    """Give the error of a response with a status of 400 or above. It never contains the token's secret."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        return ServerUnreachable(
            str(response.request.url.copy_with(query=None)), f"status {response.status_code}"
        )
    return error_of(problem)


def error_of(problem: Problem) -> KBError:
    """Give the error that a problem document describes."""
    known = _KNOWN.get(problem.type.removeprefix("urn:colmlm:"))
    if known is not None:
        return _as_it_was(known, problem)
    if problem.status in (401, 403):
        return TokenRefused(problem.detail)
    faults = "".join(f" {fault.field}: {fault.message}." for fault in problem.errors)
    return _KINDS.get(problem.status, RemoteRefused)(problem.detail + faults)


_KINDS: dict[int, type[RemoteError]] = {
    **dict.fromkeys((429, 503), ServerBusy),
    **dict.fromkeys((400, 413, 422), RequestRefused),
}


_KNOWN: dict[str, type[KBError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, KBError)
}


def _as_it_was(kind: type[KBError], problem: Problem) -> KBError:
    """Rebuild an error of the server's knowledge base with its message and its ids."""
    error: Any = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    for name, ids in problem.about.items():
        setattr(error, name, tuple(ids) if isinstance(ids, list) else ids)
    found: KBError = error
    return found


def unsendable() -> errors.InvalidValue:
    """Give the error for a value that no request can hold."""
    return errors.InvalidValue(
        "value",
        "it holds a lone surrogate, or is a number of more than 64 bits; remove the one, and give ids "
        "from 1 to 9223372036854775807",
    )
