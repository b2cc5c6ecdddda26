"""Convert exceptions to problem documents (RFC 9457), the only form in which the API refuses a request."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.response.base import ASGIResponse

from colmlm.api import request_context
from colmlm.api.wire import FieldError, Problem
from colmlm.kb import errors
from colmlm.kb.access.records import ROLES, Right
from colmlm.kb.errors import DatabaseUnavailable, KBError, refusals
from colmlm.kb.store import waits
from colmlm.kb.store.waits import refusal_of

MEDIA_TYPE = "application/problem+json"

_log = logging.getLogger(__name__)


class Refused(KBError):
    """A request that the API itself refuses, with this status."""

    status: int = 400


class Busy(Refused):
    title = "Busy"
    status = 503

    def __init__(self, work: str, slots: int) -> None:
        self.work = work
        super().__init__(
            f"All {slots} slots for {work} are taken. Nothing was changed. Try again in a moment."
        )


@Refused.coded("ModelMissing", "No model", status=503)
def model_missing(part: str) -> str:
    return (
        f"This server was started without a model, so it has no {part}. Nothing was changed. Set COLMLM_CHECKPOINT, "
        "then run `colmlm serve`."
    )


@Refused.coded("ClientLeft", "Client left", status=499)
def client_left() -> str:
    return "The client disconnected, so the answer was stopped. Nothing was stored. Send the request again."


@Refused.coded("Draining", "Draining", status=503)
def server_draining() -> str:
    return "This server is shutting down. Nothing was changed. Ask another server, or try again in a moment."


@Refused.coded("NotSignedIn", "Not signed in", status=401)
def not_signed_in() -> str:
    return "The request has no valid token. Nothing was changed. Send 'Authorization: Bearer SECRET', or sign in."


@Refused.coded("IdentityRefused", "Not signed in", status=401)
def identity_refused(cause: str) -> str:
    return f"What the identity provider said is refused: {cause}. Nothing was changed. Sign in again."


@Refused.coded("LogoutRefused", "Logout refused", status=400)
def logout_refused(cause: str) -> str:
    remedy = "Send a new one, or compare the provider's client with COLMLM_SIGN_ON_CLIENT_ID."
    return f"The logout token is refused: {cause}. No session was ended. {remedy}"


@Refused.coded("RoleUnmapped", "No role", status=403)
def role_unmapped(name: str, claim: str) -> str:
    return (
        f"The identity provider knows {name}, but names no group that has a role here. Nothing was changed. Ask an "
        f"admin to add you to one that COLMLM_SIGN_ON_ROLES names, in the claim {claim!r}."
    )


@Refused.coded("ProviderUnavailable", "Identity provider unavailable", status=503)
def provider_unavailable(cause: str) -> str:
    return (
        f"The identity provider cannot be asked: {cause}. Nothing was changed. Try again in a moment, or see "
        "`colmlm doctor`. Tokens of `colmlm tokens create` work without it."
    )


@Refused.coded("RightMissing", "Not allowed", status=403)
def right_missing(role: str, right: Right) -> str:
    having = [name for name, rights in ROLES.items() if right in rights]
    return (
        f"This token has the role {role}, which lacks the right {right.value!r}. Nothing was changed. Use a token "
        f"with one of these roles: {', '.join(having)}."
    )


@Refused.coded("TooManyRequests", "Too many requests", status=429)
def too_many_requests(limit: str, retry_after: int, remedy: str) -> str:
    return f"This token may {limit}. Nothing was changed. Try again in {retry_after} s, or {remedy}."


@Refused.coded("BadIdempotencyKey", "Bad Idempotency-Key", status=400)
def bad_idempotency_key(cause: str) -> str:
    return f"The Idempotency-Key cannot be used: {cause}. Nothing was changed. Correct the request."


@Refused.coded("InvalidCursor", "Invalid cursor", status=422)
def invalid_cursor(of: str) -> str:
    return f"The cursor is not of the list of {of}. Nothing was changed. Pass the `next` of a page, or no cursor."


@Refused.coded("Unacceptable", "Unacceptable request", status=422)
def unacceptable_body(cause: str) -> str:
    return f"This request cannot be carried out: {cause}. Nothing was changed. Correct its body and send it again."


@Refused.coded("CrossOrigin", "Request from another site", status=403)
def cross_origin(origin: str, host: str) -> str:
    return (
        f"The headers Origin ({origin[:100]!r}) and Host ({host[:100]!r}) name two places, so a page of another site "
        "may have sent this. Nothing was changed. Use this server's console or a bearer token. A proxy must pass Host "
        "as the browser sent it."
    )


@Refused.coded("UnknownHost", "Unknown host", status=421)
def unknown_host(host: str) -> str:
    return (
        f"The Host header {host[:100]!r} is not a name of this server. Nothing was changed. Add the name to "
        "COLMLM_ALLOWED_HOSTS."
    )


PROBLEMS = {
    status: ResponseSpec(Problem, generate_examples=False, description=description, media_type=MEDIA_TYPE)
    for status, description in {
        400: "The request is malformed",
        401: "No valid token",
        403: "The token's role has not the right, or the request came from another site",
        404: "No such thing",
        409: "The state of things does not allow it",
        413: "The body is too long",
        421: "The Host header names none of this server's names",
        422: "Understood, and not acceptable",
        429: "Too many requests of this token",
        503: "Not now",
        507: "The disk is full or cannot be written",
    }.items()
}


_CUT_OFF = "client disconnected prematurely"  # only by this text can it be told from a server's fault


def problem_of(error: Exception) -> tuple[Problem, dict[str, str]]:
    """Give the problem document and the response headers for an exception."""
    problem, headers = _problem_of(error)
    if (request := request_context.current()) is None:
        return problem, headers
    request.refusal = problem.type.rpartition(":")[2]
    return msgspec.structs.replace(problem, request_id=request.request_id), headers


def _problem_of(error: Exception) -> tuple[Problem, dict[str, str]]:
    error = refusal_of(error) or error
    match error:
        case KBError():
            return _problem_of_kb_error(error), _headers(error)
        case _ if isinstance(error, waits.GONE):
            waits.log_outage(_log, "the database did not answer", error)
            gone = DatabaseUnavailable("the configured address", "it does not answer")
            return _problem_of_kb_error(gone), _headers(gone)
        case PermissionError():  # the file is one of the server's own
            closed = refusals.storage_read_only(str(error.filename or "the home"))
            return _problem_of_kb_error(closed), _headers(closed)
        case UnicodeDecodeError():  # raised by the decoder of JSON bodies
            return Problem(
                "urn:colmlm:NotUTF8",
                "Malformed request",
                400,
                "The body is not UTF-8. Nothing was changed. Encode it as UTF-8 and send it again.",
            ), {}
        case InternalServerException() if error.detail == _CUT_OFF:
            return Problem(
                "urn:colmlm:BodyCutOff",
                "Malformed request",
                400,
                "The body is incomplete. Nothing was changed. Send it again.",
            ), {}
        case HTTPException() if error.status_code < 500:
            return _problem_of_http_error(error), {"Allow": allow} if (allow := _allow(error)) else {}
    _log.error("unexpected failure", exc_info=error)
    detail = (
        "The server met an unexpected fault. Check `colmlm log list` for changes, and read the server's log."
    )
    return Problem("urn:colmlm:InternalError", "Internal error", 500, detail), {}


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Answer any exception of a route with its problem document, as Litestar's exception handler."""
    problem, headers = problem_of(error)
    return Response(problem, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def refusal(error: Exception) -> ASGIResponse:
    """Give the response with an error's problem document for a request that was refused before routing."""
    problem, headers = problem_of(error)
    body = msgspec.json.encode(problem)
    return ASGIResponse(body=body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _problem_of_kb_error(error: KBError) -> Problem:
    about = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(error).items()
        if name.endswith(("_id", "_ids", "_seq")) and isinstance(value, int | tuple)
    }
    return Problem(f"urn:colmlm:{error.code}", error.title, status_of(error), str(error), about)


# The errors that may be gone a moment later, by code.
_PASSING = frozenset(
    {
        "Busy",
        "CandidatesUnavailable",
        "Collided",
        "DatabaseUnavailable",
        "Draining",
        "IndexBehind",
        "LockHeld",
        "LogHeld",
        "PlanUnderWay",
        "ProviderUnavailable",
        "RequestUnderWay",
        "StandbyAsked",
        "StatementTooLong",
    }
)


def _headers(error: KBError) -> dict[str, str]:
    if error.code == "NotSignedIn":
        return {"WWW-Authenticate": "Bearer"}
    if error.code == "IdentityRefused":
        return {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    if (seconds := getattr(error, "retry_after", None)) is not None:
        return {"Retry-After": str(seconds)}
    return {"Retry-After": "1"} if error.code in _PASSING else {}


def _problem_of_http_error(error: HTTPException) -> Problem:
    name, title = type(error).__name__.removesuffix("Exception"), "Not served"
    errors: list[FieldError] = []
    if isinstance(error, ValidationException):
        title = "Malformed request"
        faults = error.extra if isinstance(error.extra, list) else []
        errors = [FieldError(f.get("key", ""), f["message"], str(f.get("source", ""))) for f in faults]
        if error.detail.startswith("Validation failed"):
            named = ", ".join(f"`{one.field}`" for one in errors if one.field) or "the body"
            said = f"The request has parts that this route does not take: {named}. Nothing was changed. Correct them."
            return Problem(f"urn:colmlm:{name}", title, error.status_code, said, errors=errors)
    detail = _DETAILS.get(error.status_code, error.detail) if error.detail in _BARE else error.detail
    return Problem(f"urn:colmlm:{name}", title, error.status_code, detail, errors=errors)


# What the framework says of a status in two words, and what is said in their place.
_BARE = frozenset({"Not Found", "Request Entity Too Large", "Method Not Allowed"})
_DETAILS = {
    404: "No route of this server has this address. Nothing was changed. See the routes in the API reference.",
    405: "This address does not take this method. Nothing was changed. The header Allow names those that it takes.",
    413: "The body of the request is too large. Nothing was changed. Send less at once, or upload it as a file.",
}


def _allow(error: HTTPException) -> str | None:
    return {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow")


# The HTTP status of each kind of error of the knowledge base, and of the codes that have another than their kind.

_STATUSES: dict[type[KBError], int] = {
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Invalid: 422,
    errors.EvidenceRefused: 422,
    errors.KBError: 500,
    errors.CandidatesRefused: 503,
    errors.IndexBehind: 503,
    errors.OutOfReach: 503,
    errors.Waited: 503,
    errors.StorageRefused: 507,
}
_STATUSES_OF_CODES = {"ContextLengthExceeded": 400, "UploadTooLarge": 413, "NeedsAllCorpora": 403}


def status_of(error: KBError) -> int:
    """Give the HTTP status of an error: that of a `Refused`, else by the error's code or its nearest base class."""
    if isinstance(error, Refused):
        return error.status
    kinds = (_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
    return _STATUSES_OF_CODES.get(error.code) or next(kinds)
