"""Sends requests to a remote server over kept-alive connections, with timeouts and retries.

Every request is retried where it was certainly not carried out: no connection was made, or the server answered 429. An
idempotent request is also retried where the response was lost or the server was not ready (502, 503, 504). An edit with
an `Idempotency-Key` is idempotent, and is retried also while the server still carries it out (409 with Retry-After).
The waits are random, up to a bound that doubles. All threads share a retry budget that only successful responses
refill, so that retries do not multiply the load on a failing server.
"""

from __future__ import annotations

import hmac
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import msgspec

from colmlm.api.wire import Problem, is_loopback
from colmlm.kb.errors import InvalidValue, KBError, refusals, remedy_after


class RemoteError(KBError):
    """A request to a remote server failed. Where it `was_sent`, it may have been carried out all the same."""

    title = "Server elsewhere"
    was_sent = False


class ServerUnreachable(RemoteError):
    title = "Server out of reach"

    def __init__(self, url: str, cause: str, *, was_sent: bool = False) -> None:
        self.url, self.cause, self.was_sent = url, cause.rstrip("."), was_sent
        sent = "The request may have been carried out." if was_sent else "Nothing was changed."
        remedy = remedy_after(self.cause, "Check the address, and start the server with `colmlm serve`.")
        super().__init__(f"No knowledge base answers at {url}: {self.cause}. {sent}{remedy}")


def answer_lost(lost: ServerUnreachable) -> ServerUnreachable:
    """Give the error of an edit that was sent and had no answer, so that it may have been made."""
    error = ServerUnreachable(lost.url, lost.cause, was_sent=True)
    error.code, error.title = "AnswerLost", "Answer lost"
    error.args = (
        f"The answer of {lost.url} was lost: {lost.cause}. The edit may have been made. "
        "See `colmlm log list` before you repeat it.",
    )
    return error


_NEW_TOKEN = " Make a token with `colmlm tokens create`, and put its secret into a file or COLMLM_TOKEN."


class TokenRefused(RemoteError):
    title = "Token refused"

    def __init__(self, detail: str, where: str = "") -> None:
        self.detail = detail
        super().__init__(f"The server refuses the token{where}: {detail}{_NEW_TOKEN if where else ''}")


class ServerBusy(RemoteError):
    title = "Server is busy"


class RequestRefused(RemoteError):
    """The API itself refuses the request as not valid, with its own message."""

    title = "Refused by the server"


@RemoteError.coded("JobNotDone", "Job not done")
def job_not_done(job_id: int, state: str) -> str:
    ended = "somebody cancelled it" if state == "cancelled" else f"it is {state}"
    return f"Job {job_id} has no result: {ended}. Its committed changes are kept. See `colmlm jobs list {job_id}`."


def error_of_response(response: httpx2.Response) -> KBError:
    """Give the error of a response with a status of 400 or above. It never contains the token's secret."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        said = f"something else answers, with status {response.status_code}. Check the address, and the proxy there"
        was_sent = response.status_code >= 500 and response.request.method != "GET"
        return ServerUnreachable(str(response.request.url.copy_with(query=None)), said, was_sent=was_sent)
    return error_of(problem)


def error_of(problem: Problem) -> KBError:
    """Give the error that a problem document describes."""
    code = problem.type.removeprefix("urn:colmlm:")
    if (known := refusals.kind_of(code)) is not None:
        return _rebuild_error(known, code, problem, problem.detail)
    faults = "".join(f" {fault.field}: {fault.message}." for fault in problem.errors)
    if problem.status in (401, 403):
        return TokenRefused(problem.detail)
    return _rebuild_error(_KINDS.get(problem.status, RemoteError), code, problem, problem.detail + faults)


_KINDS: dict[int, type[RemoteError]] = {
    **dict.fromkeys((429, 503), ServerBusy),
    **dict.fromkeys((400, 413, 422), RequestRefused),
}


def _rebuild_error(kind: type[KBError], code: str, problem: Problem, message: str) -> KBError:
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
        "it holds a lone surrogate, or is a number of more than 64 bits. Remove the surrogate, or give ids "
        "from 1 to 9223372036854775807",
    )


_NOT_READY = (502, 503, 504)
_TURNED_AWAY, _CONFLICT = 429, 409
_IDLE_SECONDS = (
    3.0  # less than the server's 5 s, so that no request is sent on a connection that is being closed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The timeouts, retries and waits of a connection, in seconds, and the size of its retry budget."""

    connect_seconds: float = 5.0
    answer_seconds: float = 60.0
    attempts: int = 4
    first_wait: float = 0.1
    longest_wait: float = 5.0
    saved: float = 10.0
    earned: float = 0.1  # by each successful response


@dataclass(slots=True)
class Budget:
    """The retry budget: how many retries are left.

    Each successful response adds a fraction of one. Threads share it.
    """

    patience: Patience
    left: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.left = self.patience.saved

    def earn(self) -> None:
        with self._lock:
            self.left = min(self.patience.saved, self.left + self.patience.earned)

    def spend(self) -> bool:
        """Take one retry from the budget, and tell whether there was one."""
        with self._lock:
            if self.left < 1:
                return False
            self.left -= 1
            return True


class Connection:
    """A connection to a server with a token. Threads may share it.

    Redirects are not followed, so its secret is sent to no other server.
    """

    def __init__(self, url: str, secret: str, patience: Patience | None = None) -> None:
        self.url, self.patience = url.rstrip("/"), patience or Patience()
        self.budget = Budget(self.patience)
        self._secret = secret.encode()
        is_near = _stays_on_this_machine(self.url)
        try:
            self._client = httpx2.Client(
                base_url=self.url,
                trust_env=not is_near,  # the environment names proxies, which would read the secret
                verify=not is_near,  # no certificate is asked for, and to load those to compare it with takes a while
                headers={"Authorization": f"Bearer {secret}"},
                timeout=httpx2.Timeout(self.patience.answer_seconds, connect=self.patience.connect_seconds),
                limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS),
            )
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise ServerUnreachable(self.url, str(error)) from error

    def is_of(self, secret: str) -> bool:
        """Tell whether this is the secret that the connection sends."""
        return hmac.compare_digest(self._secret, secret.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, method: str, path: str, *, is_repeatable: bool, **options: Any) -> httpx2.Response:
        """Give the response, whose status is below 400.

        Raises `ServerUnreachable`, or the `KBError` that the server reports.
        """
        wait, was_sent = self.patience.first_wait, False
        attempt = 0
        while True:
            attempt += 1
            last, least = attempt >= self.patience.attempts, 0.0
            try:
                response = self._client.request(method, path, **options)
            except UnicodeEncodeError as error:
                raise unsendable() from error
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                was_sent = was_sent or not _is_unsent(error)
                if last or not _is_safe(error, is_repeatable) or not self.budget.spend():
                    raise ServerUnreachable(self.url, _describe_error(error), was_sent=was_sent) from error
            else:
                if response.status_code < 400:
                    self.budget.earn()
                    return response
                may_repeat = response.status_code == _TURNED_AWAY or (is_repeatable and _is_passing(response))
                if last or not may_repeat or not self.budget.spend():
                    raise error_of_response(response)
                asked = response.headers.get("retry-after", "")
                least = min(self.patience.longest_wait, int(asked) if asked.isdecimal() else 0)
            time.sleep(least + random.uniform(0, wait))
            wait = min(self.patience.longest_wait, 2 * wait)

    def lines(self, method: str, path: str, **options: Any) -> Iterator[str]:
        """Yield the lines of a long response as they arrive, each with its line end. The request is never retried."""
        rest = b""
        try:
            with self._client.stream(method, path, **options) as response:
                if response.status_code >= 400:
                    response.read()
                    raise error_of_response(response)
                for block in response.iter_bytes():
                    *whole, rest = (rest + block).split(b"\n")
                    yield from (f"{line.decode()}\n" for line in whole)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServerUnreachable(
                self.url, _describe_error(error), was_sent=not _is_unsent(error)
            ) from error
        if rest:
            yield rest.decode()


def _stays_on_this_machine(url: str) -> bool:
    """Tell whether requests go unencrypted to a loopback address."""
    try:
        address = urlsplit(url)
        return address.scheme == "http" and is_loopback(address.hostname or "")
    except ValueError:
        return False


def _is_passing(response: httpx2.Response) -> bool:
    """Tell by the response's status whether the same request may succeed in a moment."""
    if response.status_code == _CONFLICT:
        return "retry-after" in response.headers
    return response.status_code in _NOT_READY


def _is_safe(error: Exception, is_repeatable: bool) -> bool:
    """Tell whether a retry is safe after this error: nothing was sent, or the request is idempotent."""
    return _is_unsent(error) or (is_repeatable and isinstance(error, httpx2.TransportError))


def _is_unsent(error: Exception) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def _describe_error(error: Exception) -> str:
    """Say what broke, in the words of the system where it has some, such as "Connection refused"."""
    said = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return f"{said}. Set SSL_CERT_FILE to the certificate of the authority that signed the server's"
    return said or type(error).__name__
