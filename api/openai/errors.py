"""Convert the errors of `api.errors` to OpenAI's form, for the paths of its protocol."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.openapi.datastructures import ResponseSpec
from litestar.response.base import ASGIResponse

from colmlm.api import errors
from colmlm.api.errors import Refused, problem_of
from colmlm.api.middleware.auth import Limiter, Right, needs
from colmlm.api.wire.answers import Problem

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
    return f"The model {asked!r} is not served here. This server has {served!r}; see /v1/models."


class Unsupported(Refused):
    """A request uses a field of OpenAI's protocol that this decoder does not implement."""

    title = "Not supported"
    status = 400

    def __init__(self, field: str, cause: str) -> None:
        self.field = field
        super().__init__(f"{field}: {cause}.")


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
        describe_error(_message(problem), problem.status, at_fault or None, _code(problem)),
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
    "opt": needs(Right.read),
    "responses": PROBLEMS,
    "sync_to_thread": True,
}
DECODING = ROUTE | {"opt": needs(Right.read, Limiter.decoding)}


def refusal(path: str, error: Exception) -> ASGIResponse:
    """Give the same response for a request to this path that was refused before routing."""
    if not speaks_openai(path):
        return errors.refusal(error)
    body, status, headers = openai_problem(error)
    encoded = msgspec.json.encode(body)
    return ASGIResponse(body=encoded, status_code=status, media_type="application/json", headers=headers)


def _message(problem: Problem) -> str:
    faults = "; ".join(
        f"{fault.field}: {fault.message}" if fault.field else fault.message for fault in problem.errors
    )
    return f"{problem.detail} ({faults})" if faults else problem.detail


def _code(problem: Problem) -> str:
    """Give the code of the error in snake case: `ModelNotFound` is `model_not_found`, as OpenAI has it."""
    name = problem.type.rpartition(":")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
