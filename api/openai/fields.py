"""The fields that requests of OpenAI's protocol share, and this server's own beside them.

A field that asks for nothing, or that says how to work rather than what to answer, is taken and read over. One that
would change the answer, and that this decoder does not implement, is refused by name.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import ServerSentEvent, ServerSentEventMessage
from litestar.response.base import ASGIResponse
from msgspec import Meta

from colmlm.api import errors
from colmlm.api.errors import Refused, problem_of
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.wire import LookupFields, Problem
from colmlm.kb.answers.records import NO_SURE_ANSWER
from colmlm.kb.errors import remedy_after
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.texts.asked import ANSWER

# The nouns of OpenAI's protocol, also of what is not served here: its clients read no other form of an error.
FAMILIES = frozenset(
    {
        "assistants",
        "audio",
        "batches",
        "chat",
        "completions",
        "containers",
        "conversations",
        "embeddings",
        "engines",
        "evals",
        "files",
        "fine_tuning",
        "images",
        "models",
        "moderations",
        "realtime",
        "responses",
        "threads",
        "vector_stores",
        "videos",
    }
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


@Refused.coded("ModelNotFound", "No such model", status=404)
def model_not_found(asked: str, served: str) -> str:
    return f"The model {asked!r} is not served here. Nothing was changed. Use {served!r}, or see /v1/models."


class Unsupported(Refused):
    """A request uses a field of OpenAI's protocol that this decoder does not implement."""

    title = "Not supported"
    status = 400

    def __init__(self, field: str, cause: str) -> None:
        self.field = field
        remedy = remedy_after(cause, "Correct this field, or leave it out.")
        super().__init__(f"{field}: {cause}. No text was generated.{remedy}")


class OpenAIError(msgspec.Struct, frozen=True):
    """An error in OpenAI's form. `param` is the field at fault, if one is, `code` the kind of error in snake case."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIProblem(msgspec.Struct, frozen=True):
    error: OpenAIError


PROBLEMS = {
    status: ResponseSpec(OpenAIProblem, generate_examples=False, description=of_problem.description)
    for status, of_problem in errors.PROBLEMS.items()
}


def speaks_openai(path: str) -> bool:
    """Tell whether a path is of OpenAI's protocol, by the noun under `/v1`."""
    lead, _, rest = path.partition("/v1/")
    return not lead and rest.partition("/")[0] in FAMILIES


def openai_problem(error: Exception) -> tuple[OpenAIProblem, int, dict[str, str]]:
    """Give the error object, the status and the response headers for an exception."""
    problem, headers = problem_of(error)
    at_fault = error.field if isinstance(error, Unsupported) else "".join(f.field for f in problem.errors[:1])
    return (
        describe_error(_problem_text(problem), problem.status, at_fault or None, _code(problem)),
        problem.status,
        headers,
    )


def describe_error(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> OpenAIProblem:
    """Give an error of this status in OpenAI's form."""
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return OpenAIProblem(OpenAIError(message, kind, param, code))


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer any exception in the form that the path's clients read, as Litestar's exception handler."""
    if not speaks_openai(request.scope["path"]):
        return errors.respond(request, error)
    body, status, headers = openai_problem(error)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


# The options of every route of the protocol, and of those that decode.
ROUTE: dict[str, Any] = {
    "opt": needs(Right.read, scoped=CorpusLimit.filter),
    "responses": PROBLEMS,
    "sync_to_thread": True,
}
DECODING = ROUTE | {"opt": needs(Right.read, Limiter.decoding, CorpusLimit.filter)}


def refusal(path: str, error: Exception) -> ASGIResponse:
    """Give the response for a request that was refused before routing, in the form that the path's clients read."""
    if not speaks_openai(path):
        return errors.refusal(error)
    body, status, headers = openai_problem(error)
    encoded = msgspec.json.encode(body)
    return ASGIResponse(body=encoded, status_code=status, media_type="application/json", headers=headers)


def _problem_text(problem: Problem) -> str:
    faults = "; ".join(
        f"{fault.field}: {fault.message}" if fault.field else fault.message for fault in problem.errors
    )
    return f"{problem.detail} ({faults})" if faults else problem.detail


def _code(problem: Problem) -> str:
    """Give the code of the error in snake case: `ModelNotFound` is `model_not_found`, as OpenAI has it."""
    name = problem.type.rpartition(":")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


MAX_CHOICES = 32  # prompts times choices
MAX_TOKENS = 512
MAX_TOP = 20

Text = Annotated[str, Meta(max_length=1000)]
Stop = Annotated[str, Meta(min_length=1, max_length=100)]
Most = Annotated[int, Meta(ge=1, le=2**31 - 1, description=f"More than {MAX_TOKENS} are cut to that")]

# Fields of the protocol that this decoder does not implement. The schema allows only the values that change nothing;
# any other value is parsed all the same, so that it can be refused by name.
NoTopK = Annotated[int, Meta(extra_json_schema={"enum": [-1, 0]})]
Zero = Annotated[float, Meta(extra_json_schema={"enum": [0]})]
NoBias = Annotated[dict[str, float], Meta(extra_json_schema={"maxProperties": 0})]
NoList = Annotated[list[Any], Meta(extra_json_schema={"maxItems": 0, "items": {}})]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream. `include_usage` adds a last chunk with `usage` and without choices.

    `include_obfuscation` is read over: nothing is padded.
    """

    include_usage: bool = False
    include_obfuscation: bool | None = None


class DecodingFields(LookupFields, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that all requests to decode have. `mode` to `min_tokens` are this server's own.

    Those from `user` to `safety_identifier` are read over.
    """

    model: Annotated[str, Meta(min_length=1, max_length=300)]
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: NoTopK | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Text | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Text | None = None
    safety_identifier: Text | None = None
    mode: Literal["auto", "forced", "off"] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] = 1.0
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0

    def refuse_unsupported(self) -> None:
        """Raise `Unsupported` where a field asks for something that this decoder does not implement."""
        if self.top_k not in (None, -1, 0):
            raise Unsupported("top_k", "it is not supported. Use top_p")

    def decoding(
        self, prompt: str | tuple[int, ...], max_tokens: int, stops: tuple[str, ...] = ()
    ) -> GenerationRequest:
        """Give the generation request of a prompt. Raise `Unsupported`."""
        most = min(max_tokens, MAX_TOKENS)
        if self.min_tokens > most:
            raise Unsupported(
                "min_tokens", f"{self.min_tokens} is more than the limit of {most} tokens (max_tokens)"
            )
        return GenerationRequest(
            prompt=prompt,
            mode=self.mode or "auto",
            max_tokens=most,
            min_tokens=self.min_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            repetition_penalty=self.repetition_penalty,
            stop=stops,
            seed=secrets.randbits(32) if self.seed is None else self.seed % 2**32,
            **{name: getattr(self, name) for name in LookupFields.__struct_fields__},
        )

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChoiceFields(DecodingFields, frozen=True, kw_only=True):
    """The fields that completions and chats have, and responses not."""

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: NoBias | None = None

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        for field in ("presence_penalty", "frequency_penalty"):
            if getattr(self, field):
                raise Unsupported(field, "it is not supported. Use repetition_penalty instead")
        if self.logit_bias:
            raise Unsupported("logit_bias", "it is not supported. Use fact_bias to get more or fewer lookups")

    def refuse_beside_logprobs(self) -> None:
        """Raise `Unsupported` for a field that contradicts log-probabilities, which come from the model alone."""
        if self.mode not in (None, "off"):
            raise Unsupported("logprobs", "they work only without lookups. Leave mode out, or set it to off")
        if self.stream:
            raise Unsupported("logprobs", "a stream has none. Leave stream out")
        if self.on_miss == "abstain":
            raise Unsupported("logprobs", "they come without lookups, so none can fail. Leave on_miss out")

    @property
    def num_choices(self) -> int:
        """Give the number of choices that each prompt gets."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


# Conversations, and the text of one that a base model can continue.
#
# The model was trained on questions and answers, so a conversation is written in that form: first the system
# message, as a paragraph; then each turn as ``Question: ...`` with ``Answer: ...`` on the next line, an empty
# line between turns, and last ``Answer:`` for the model to continue. The answer ends where another question
# would begin. The space after ``Answer:`` is not part of it.

CHAT_TOKENS = 256
NEXT_QUESTION = "\nQuestion:"


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message that is text, by one of the names that the protocol has for that, or a refusal."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = ""
    refusal: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a conversation, as text or as parts that are text. One of the assistant's may be a refusal instead.

    What else the protocol has in an assistant's message, such as its annotations, is read over.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[MessagePart], Meta(max_length=64)] | None = None
    type: Literal["message"] | None = None
    name: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            said = "".join(part.text or part.refusal for part in self.content)
        else:
            said = self.content or self.refusal or ""
        return said.strip()


Messages = Annotated[list[Message], Meta(min_length=1, max_length=100)]


def refuse_unanswerable(field: str, messages: Sequence[Message]) -> None:
    """Raise `Unsupported` unless the last message is a user's, and every one but the assistant's says something."""
    for place, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            cause = f"the message at {place}, of the role {message.role!r}, has no content; only the assistant's may"
            raise Unsupported(field, cause)
    if messages[-1].role != "user":
        raise Unsupported(field, "the last message must be the user's")


def as_text(messages: Sequence[Message]) -> str:
    """Write a conversation as the questions and answers that the model reads; what other roles say stays as it is."""
    parts = []
    for message in messages:
        match message.role:
            case "user":
                parts.append(f"Question: {message.text}\n{ANSWER}")
            case "assistant":
                parts.append(f" {message.text}\n\n")
            case _:
                parts.append(f"{message.text}\n\n")
    return "".join(parts)


def refusal_of(decoding: GenerationRequest, trace: OutputTrace) -> str | None:
    """Give the text of a refusal if the request's output abstained; None if it has text, or was to continue."""
    return NO_SURE_ANSWER if decoding.abstains and trace.abstained else None


def shift_of(output: str) -> int:
    """Give the shift of offsets from an output to the answer: -1 if the output's first space is left out, else 0."""
    return -1 if output.startswith(" ") else 0


# Sends the chunks of a response as server-sent events, as OpenAI's clients read them.

DONE = "[DONE]"


def chunks(items: Iterator[msgspec.Struct]) -> Response[Any]:
    """Give a response that streams these chunks as events, ended by `[DONE]`.

    An error before the first is raised here, while its status can still be sent.
    """
    return _event_stream(_encode_chunks(chain([next(items)], items)))


def named_events(items: Iterator[dict[str, Any]]) -> Response[Any]:
    """Give a response that streams events named by their `type`. An error before the first is raised here."""
    return _event_stream(_encode_events(chain([next(items)], items)))


def _event_stream(events: Iterator[ServerSentEventMessage]) -> Response[Any]:
    streamed: Response[Any] = ServerSentEvent(events, status_code=200)
    return streamed


def _encode_chunks(items: Iterator[msgspec.Struct]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            yield _event(msgspec.json.encode(item).decode())
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        yield _event(msgspec.json.encode(openai_problem(error)[0]).decode())
    else:
        yield _event(DONE)


def _encode_events(items: Iterator[dict[str, Any]]) -> Iterator[ServerSentEventMessage]:
    number = 0
    try:
        for item in items:
            number = item["sequence_number"] + 1
            yield _event(msgspec.json.encode(item).decode(), item["type"])
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        told = openai_problem(error)[0].error
        said = {"type": "error", "sequence_number": number, "code": told.code, "message": told.message}
        yield _event(msgspec.json.encode({**said, "param": told.param}).decode(), "error")


def _event(data: str, name: str | None = None) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=data, event=name)
