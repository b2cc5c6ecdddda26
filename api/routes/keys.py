"""API keys, for admins: create, list, rotate and revoke them. A token is in one response and nowhere else."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.idempotency import TELLS_SECRET
from colmlm.api.door.rights import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.schema.paging import Cursor, Limit, after_of, page
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.answers import Key, KeyWithToken
from colmlm.api.wire.pages import Page
from colmlm.api.wire.requests import Request
from colmlm.kb.access.records import LONGEST, MAX_RATE, ApiKeyRecord

_MAX_SECONDS = int(LONGEST.total_seconds())

Role = Literal["decoder", "reader", "operator", "auditor", "trainer", "admin"]
Seconds = Annotated[int, Meta(ge=1, le=_MAX_SECONDS)]
ExpiresIn = Annotated[Seconds | None, Meta(description="Until it ends by itself; null: never")]


class NewKey(Request, frozen=True, kw_only=True):
    """An API key to create. `rate_limit` is in requests per minute; null is the server's default."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="Whose; the actor of its edits")]
    role: Role = "reader"
    expires_in_seconds: ExpiresIn = None
    rate_limit: Annotated[int, Meta(ge=1, le=MAX_RATE)] | None = None


class Rotation(Request, frozen=True, kw_only=True):
    """How long the old token works beside the new one, and when the key expires, if that changes."""

    grace_seconds: Annotated[int, Meta(ge=0, le=_MAX_SECONDS)] = 0
    expires_in_seconds: ExpiresIn = None


@get("/keys", opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def list_keys(ports: FromPorts, cursor: Cursor = None, limit: Limit = 100) -> Page[Key]:
    """List keys.

    In order of creation, with expired and revoked ones; never with a token.
    """
    found = ports.kb.access.all(after=after_of(cursor, "keys"), limit=limit + 1)
    return page([_shown(key) for key in found], limit, "keys", lambda key: (key.key_id,))


@post("/keys", opt=needs(Right.admin) | TELLS_SECRET, responses=PROBLEMS, sync_to_thread=True)
def create_key(ports: FromPorts, data: JSONBody[NewKey]) -> KeyWithToken:
    """Make a key.

    Its token is in this response only.
    """
    ends = _span(data.expires_in_seconds)
    token, made = ports.kb.access.create(data.name, data.role, expires_in=ends, rate_limit=data.rate_limit)
    return KeyWithToken(key=_shown(made), token=token)


@post(
    "/keys/{key_id:int}/rotate",
    status_code=200,
    opt=needs(Right.admin) | TELLS_SECRET,
    responses=PROBLEMS,
    sync_to_thread=True,
)
def rotate_key(ports: FromPorts, key_id: PathId, data: JSONBody[Rotation]) -> KeyWithToken:
    """Give a key another token.

    The token is in this response only. Name, role and rate limit stay.
    """
    access = ports.kb.access
    grace, ends = timedelta(seconds=data.grace_seconds), _span(data.expires_in_seconds)
    token, rotated = access.rotate(access.name_of(key_id), grace=grace, expires_in=ends)
    return KeyWithToken(key=_shown(rotated), token=token)


@delete(
    "/keys/{key_id:int}",
    status_code=200,
    opt=needs(Right.admin),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def revoke_key(ports: FromPorts, key_id: PathId) -> Key:
    """Revoke a key.

    It and every token of it stop working for good, in every process.
    """
    access = ports.kb.access
    return _shown(access.revoke(access.name_of(key_id)))


HANDLERS = (list_keys, create_key, rotate_key, revoke_key)


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _shown(key: ApiKeyRecord) -> Key:
    kept = {name: getattr(key, name) for name in Key.__struct_fields__ if name != "state"}
    return Key(state=key.state(), **kept)
