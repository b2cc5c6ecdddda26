"""A client of a chat endpoint that speaks OpenAI's protocol, hosted or one's own; it retries transient failures."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar

import httpx2

Message = Mapping[str, str]
Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_REFUSED = 3  # refusals in a row after which the fault is not in the conversations
_FENCE = re.compile(r"\A```[^\n]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_TRANSIENT = {408, 409, 425, 429}  # and every 5xx
_REQUEST_FAULTS = {400, 413, 422}
_LONGEST_WAIT = 120.0
_MOST_SAID = 200  # characters of an endpoint's response that a message quotes


class EndpointUnusable(Exception):
    """The chat endpoint is out of reach, refuses the key or does not speak the protocol."""

    def __init__(self, url: str, cause: str, remedy: str) -> None:
        super().__init__(f"{url}: {cause}. Results that were written before are kept. {remedy}")


class ConversationRefused(Exception):
    """The endpoint refuses this one conversation: its text is at fault, or too long for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and model of a chat endpoint, and how requests to it are retried.

    The key appears in no message, log or repr. A `temperature` of None leaves the model's default. One request is sent
    at most `attempts` times; `first_wait` is the seconds before the second attempt, and doubles with every further one.
    Remedies in error messages name `options`, the command's options, and `key_from`, the place its key comes from.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = None
    timeout: float = 300.0
    attempts: int = 6
    first_wait: float = 1.0
    options: tuple[str, str] = ("--url", "--model")
    key_from: str = "COLMLM_ANNOTATOR_API_KEY"


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer. `finished` is False where it was cut off; tokens are as the endpoint counts them."""

    text: str
    finished: bool
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(slots=True)
class EndpointUsage:
    """The cost of conversations so far, in tokens as the endpoint counts them.

    `repairs` counts the requests that followed an unusable answer.
    """

    requests: int = 0
    repairs: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, other: EndpointUsage) -> None:
        self.requests += other.requests
        self.repairs += other.repairs
        self.tokens_in += other.tokens_in
        self.tokens_out += other.tokens_out


class _Transient(Exception):
    """A failure that may not recur: its cause, and the seconds that the endpoint asks to wait."""

    def __init__(self, cause: str, wait: float | None = None) -> None:
        self.wait = wait
        super().__init__(cause)


class Chat:
    """Send conversations to an endpoint. Threads may share it; `stop` ends waits between attempts in all of them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._client = httpx2.Client(headers=headers, timeout=endpoint.timeout)
        self._stopped = threading.Event()

    def reply(self, messages: Sequence[Message]) -> Reply:
        """Give the model's answer to a conversation.

        The request is sent again after 429, 5xx, time-outs, cut connections and responses that are no chat completion.
        Raises `ConversationRefused` if the endpoint refuses this conversation, `EndpointUnusable` if it would
        refuse any, and `CancelledError` after `stop`.
        """
        pause = self.endpoint.first_wait
        attempt = 0
        while True:
            attempt += 1
            if self._stopped.is_set():
                raise CancelledError
            try:
                return self._ask(messages)
            except _Transient as error:
                if attempt >= self.endpoint.attempts:
                    cause = f"{error} (tried {attempt} times)"
                    again = f"Run the same command later; it goes on. Or check {self.endpoint.options[0]}."
                    raise self._unusable(cause, again) from error
                self._stopped.wait(min(_LONGEST_WAIT, error.wait or pause * random.uniform(0.5, 1.5)))
                pause = min(_LONGEST_WAIT, 2 * pause)

    def stop(self) -> None:
        """Prevent further requests, and end all waits between attempts."""
        self._stopped.set()

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, messages: Sequence[Message]) -> Reply:
        body: dict[str, Any] = {"model": self.endpoint.model, "messages": list(messages)}
        if self.endpoint.temperature is not None:
            body["temperature"] = self.endpoint.temperature
        try:
            response = self._client.post(self.url, json=body)
        except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            raise _Transient(str(error) or type(error).__name__) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unusable(str(error), f"Check {self.endpoint.options[0]}.") from error
        return self._reply_or_error(response)

    def _reply_or_error(self, response: httpx2.Response) -> Reply:
        status = response.status_code
        if status == 200:
            return _reply(response)
        cause = f"status {status}: {self._message_of(response)}"
        if status in _TRANSIENT or status >= 500:
            raise _Transient(cause, _wait_asked(response.headers.get("retry-after")))
        if status in _REQUEST_FAULTS:
            remedy = f"shorten its text, leave it out, or name another {self.endpoint.options[1]}"
            raise ConversationRefused(f"the endpoint refused the conversation, {cause.rstrip('.')}; {remedy}")
        if status in (401, 403):
            raise self._unusable(cause, f"Set {self.endpoint.key_from} to a key that may use it.")
        raise self._unusable(cause, f"Check {' and '.join(self.endpoint.options)}.")

    def _message_of(self, response: httpx2.Response) -> str:
        """Give the endpoint's own message in one line, without the key, which some endpoints repeat."""
        said = " ".join(response.text.split())
        if self.endpoint.api_key:
            said = said.replace(self.endpoint.api_key, "***")
        return said[:_MOST_SAID]

    def _unusable(self, cause: str, remedy: str) -> EndpointUnusable:
        return EndpointUnusable(self.url, cause.rstrip("."), remedy)


def _reply(response: httpx2.Response) -> Reply:
    """Read the reply in a response of status 200. Raises `_Transient` if its body is no chat completion."""
    try:
        record = response.json()
        choice = record["choices"][0]
        text = choice["message"]["content"] or ""
        usage = record.get("usage") or {}
        if not isinstance(text, str):
            raise TypeError("its content is no text")
        finished = choice.get("finish_reason") != "length"
        counts = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        return Reply(text, finished, *counts)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _Transient("no chat completion, which has choices[0].message.content") from error


def _wait_asked(header: str | None) -> float | None:
    """Give the seconds that a Retry-After header asks for, as a number or a date; None without a valid one."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def without_fence(reply: str) -> str:
    """Remove the blanks around a reply and the code fence that models tend to add."""
    fenced = _FENCE.match(reply.strip())
    return (fenced.group(1) if fenced else reply).strip()


def repair_messages(reply: str, words: str) -> list[Message]:
    """Make the messages that follow an unusable reply: the reply, and the words that ask for another."""
    broken: list[Message] = [{"role": "assistant", "content": reply}] if reply.strip() else []
    return [*broken, {"role": "user", "content": words}]


def converse_each(
    items: Iterable[Item],
    converse: Callable[[Item], Result],
    keep: Callable[[Item, Future[Result]], object],
    *,
    concurrency: int,
    stop: Callable[[], None],
) -> None:
    """Call `converse` with each item in a thread pool, and `keep` with the item and its future in the calling thread.

    If `keep` raises, `stop` is called, the conversations in progress are finished and kept, and the error is raised.
    """
    waiting = iter(items)
    running: dict[Future[Result], Item] = {}
    with ThreadPoolExecutor(concurrency, "conversation") as pool:
        try:
            while True:
                while len(running) < concurrency and (item := next(waiting, None)) is not None:
                    running[pool.submit(converse, item)] = item
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    keep(running.pop(future), future)
        except BaseException:  # also where it is interrupted: answers that are paid for are kept
            stop()
            for future in wait(running).done:
                if future.exception() is None:
                    keep(running[future], future)
            raise


# Endpoints count tokens differently, so this estimates: a word of seven letters is about one token, a sign one.
TOKEN_PIECE = re.compile(r"[A-Za-z]{1,7}|[0-9]{1,3}|[^\sA-Za-z0-9]")


def rough_tokens(text: str) -> int:
    """Estimate a text's number of tokens without a tokenizer: one for up to 7 letters, 3 digits, or a single sign."""
    return sum(1 for _ in TOKEN_PIECE.finditer(text))
