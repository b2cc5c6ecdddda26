"""The errors of a client of a remote server.

KBError (kb/errors: an error of the server's knowledge base is raised here with the same kind and code)
└── RemoteError             with the code that the server gave, if it gave one
    ├── ServerUnreachable   no response, or none of this program's; `AnswerLost` where an edit may have been made
    ├── TokenRefused        401 or 403
    ├── ServerBusy          429 or 503, also after the retries
    └── RequestRefused      400, 413 or 422 of the API itself: the request is not valid
"""

from __future__ import annotations

import httpx2
import msgspec

from colmlm.api.wire.answers import Problem
from colmlm.kb.errors import InvalidValue, KBError, refusals


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


def answer_lost(lost: ServerUnreachable) -> ServerUnreachable:
    """Give the error of an edit that was sent and had no answer, so that it may have been made."""
    error = ServerUnreachable(lost.url, lost.cause, was_sent=True)
    error.code, error.title = "AnswerLost", "Answer lost"
    error.args = (
        f"The answer of {lost.url} was lost: {lost.cause}. Whether it was done is not known here; "
        "see `colmlm log list` before you ask for it again.",
    )
    return error


class TokenRefused(RemoteError):
    title = "Token refused"

    def __init__(self, detail: str, where: str = "") -> None:
        self.detail = detail
        super().__init__(f"The server refuses the token{where}: {detail}")


class ServerBusy(RemoteError):
    title = "Server is busy"


class RequestRefused(RemoteError):
    """The API itself refuses the request as not valid, with its own message."""

    title = "Refused by the server"


@RemoteError.coded("JobNotDone", "Job not done")
def job_not_done(job_id: int, state: str) -> str:
    return f"Job {job_id} is {state}. What it had done stays done; see `colmlm jobs show`."


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
    code = problem.type.removeprefix("urn:colmlm:")
    if (known := refusals.kind_of(code)) is not None:
        return _as_it_was(known, code, problem, problem.detail)
    faults = "".join(f" {fault.field}: {fault.message}." for fault in problem.errors)
    if problem.status in (401, 403):
        return TokenRefused(problem.detail)
    return _as_it_was(_KINDS.get(problem.status, RemoteError), code, problem, problem.detail + faults)


_KINDS: dict[int, type[RemoteError]] = {
    **dict.fromkeys((429, 503), ServerBusy),
    **dict.fromkeys((400, 413, 422), RequestRefused),
}


def _as_it_was(kind: type[KBError], code: str, problem: Problem, message: str) -> KBError:
    """Rebuild an error of the server with its code, its title, its message and its ids."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    about = {name: tuple(ids) if isinstance(ids, list) else ids for name, ids in problem.about.items()}
    vars(error).update(about, code=code, title=problem.title)
    return error


def unsendable() -> InvalidValue:
    """Give the error for a value that no request can hold."""
    return InvalidValue(
        "value",
        "it holds a lone surrogate, or is a number of more than 64 bits; remove the one, and give ids "
        "from 1 to 9223372036854775807",
    )
