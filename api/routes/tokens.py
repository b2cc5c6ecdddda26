"""Tokens, for admins: create, list, rotate and revoke them. A secret is in one response and nowhere else."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.errors import PROBLEMS
from colmlm.api.middleware.auth import CorpusLimit, Right, in_thread, needs
from colmlm.api.middleware.idempotency import TELLS_SECRET
from colmlm.api.ports import FromPorts
from colmlm.api.routes.parameters import Cursor, Limit, PathId, WithToken, after_of, page
from colmlm.api.wire import Page, Request, Token, TokenWithSecret
from colmlm.kb.access.records import LONGEST, MAX_RATE, TokenRecord

_MAX_SECONDS = int(LONGEST.total_seconds())

Role = Literal["decoder", "reader", "operator", "auditor", "trainer", "admin"]
Seconds = Annotated[int, Meta(ge=1, le=_MAX_SECONDS)]
TokenCorpora = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=1000)], ...],
    Meta(
        max_length=100, description="It may read these and nothing else; none: all. Of a decoder or a reader"
    ),
]
ExpiresIn = Annotated[Seconds | None, Meta(description="Until it ends by itself; null: never")]


class NewToken(Request, frozen=True, kw_only=True):
    """A token to create. `rate_limit` is in requests per minute; null is the server's default."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="Whose; the actor of its edits")]
    role: Role = "reader"
    expires_in_seconds: ExpiresIn = None
    rate_limit: Annotated[int, Meta(ge=1, le=MAX_RATE)] | None = None
    corpora: TokenCorpora = ()


class Rotation(Request, frozen=True, kw_only=True):
    """Choose how long the old secret works beside the new one, and when the token expires, if that changes."""

    grace_seconds: Annotated[int, Meta(ge=0, le=_MAX_SECONDS)] = 0
    expires_in_seconds: ExpiresIn = None


@get("/tokens", **in_thread(Right.audit))
def list_tokens(ports: FromPorts, cursor: Cursor = None, limit: Limit = 100) -> Page[Token]:
    """List tokens.

    In order of creation, with expired and revoked ones; never with a secret.
    """
    found = ports.kb.access.all(after=after_of(cursor, "tokens"), limit=limit + 1)
    return page([_convert_token(token) for token in found], limit, "tokens", lambda token: (token.key_id,))


@get("/tokens/own", opt=needs(Right.lookup, scoped=CorpusLimit.filter), responses=PROBLEMS)
async def read_own_token(request: WithToken) -> Token:
    """Read the token of this request.

    Its name, role and limits, by which a program knows what it may ask for.
    """
    return _convert_token(request.user)


@post("/tokens", **in_thread(Right.admin, extra=TELLS_SECRET))
def create_token(ports: FromPorts, data: JSONBody[NewToken]) -> TokenWithSecret:
    """Make a token.

    Its secret is in this response only.
    """
    ends = _time_span(data.expires_in_seconds)
    secret, made = ports.kb.access.create(
        data.name, data.role, expires_in=ends, rate_limit=data.rate_limit, corpora=data.corpora
    )
    return TokenWithSecret(token=_convert_token(made), secret=secret)


@post("/tokens/{token_id:int}/rotate", status_code=200, **in_thread(Right.admin, extra=TELLS_SECRET))
def rotate_token(ports: FromPorts, token_id: PathId, data: JSONBody[Rotation]) -> TokenWithSecret:
    """Give a token another secret.

    The secret is in this response only. Name, role and rate limit stay.
    """
    access = ports.kb.access
    grace, ends = timedelta(seconds=data.grace_seconds), _time_span(data.expires_in_seconds)
    secret, rotated = access.rotate(access.name_of(token_id), grace=grace, expires_in=ends)
    return TokenWithSecret(token=_convert_token(rotated), secret=secret)


@delete("/tokens/{token_id:int}", status_code=200, **in_thread(Right.admin))
def revoke_token(ports: FromPorts, token_id: PathId) -> Token:
    """Revoke a token.

    It and every secret of it stop working for good, in every process.
    """
    access = ports.kb.access
    return _convert_token(access.revoke(access.name_of(token_id)))


HANDLERS = (list_tokens, read_own_token, create_token, rotate_token, revoke_token)


def _time_span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _convert_token(token: TokenRecord) -> Token:
    kept = {name: getattr(token, name) for name in Token.__struct_fields__ if name != "state"}
    return Token(state=token.state(), **kept)
