"""Lookups for decoders on other machines: their checkpoint and dimension, and queries as bytes, which need no parsing.

A `POST /v1/lookups` whose body is `application/octet-stream` is rerouted here, to a path of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import Response, get, post
from litestar.concurrency import sync_to_thread
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType
from litestar.params import QueryParameter, RawBody

from colmlm.api.door.rights import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken
from colmlm.api.routes.lookups import answered, past_apart
from colmlm.api.schema.shown import require_past
from colmlm.api.wire.answers import LookupAnswers
from colmlm.api.wire.requests import MAX_ID, SEEN
from colmlm.api.wire.vectors import JSON, LOOKUPS, MAX_DIM, MAX_VECTORS, MSGPACK, OCTETS, VECTORS
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.lookup.ranking import Lookup, LookupSpace
from colmlm.kb.lookup.replica import KeyLookup

if TYPE_CHECKING:
    from litestar.types import HTTPScope

MAX_BYTES = 16 * 1024 * 1024
_MSGPACKS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}

Dim = Annotated[int, QueryParameter(ge=1, le=MAX_DIM, description="Numbers in a query")]
Of = Annotated[str, QueryParameter(min_length=1, max_length=200, description="Who encoded the queries")]
Dtype = Annotated[Literal["float32", "float16"], QueryParameter()]
K = Annotated[int, QueryParameter(ge=1, le=100)]
Threshold = Annotated[float | None, QueryParameter(ge=-1, le=1)]
# Not `ge=0`, since the OpenAPI document loses a limit of 0 for an optional parameter.
MinSeq = Annotated[int | None, QueryParameter(gt=-1, le=MAX_ID, description=SEEN)]
AsOf = Annotated[
    int | None, QueryParameter(gt=-1, le=MAX_ID, description="Answer as the base stood at this change")
]

AcceptedOnly = Annotated[bool, QueryParameter(description="Find no fact that is only proposed")]


@dataclass
class _TakesOctets(Operation):
    """Describes the body in the OpenAPI document, since Litestar describes none that a handler takes as bytes."""

    def __post_init__(self) -> None:
        octets = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        self.request_body = RequestBody(
            required=True,
            description="The queries, row by row, little-endian",
            content={OCTETS.decode(): OpenAPIMediaType(schema=octets)},
        )


@get("/lookups", opt=needs(Right.lookup), responses=PROBLEMS, sync_to_thread=True)
def read_space(ports: FromPorts) -> LookupSpace:
    """Read what lookups are answered from.

    Gives the checkpoint whose queries are accepted, their dimension, the threshold, and the last change.
    """
    return ports.kb.lookups.space()


@post(
    "/lookups/vectors",
    status_code=200,
    opt=needs(Right.lookup),
    responses=PROBLEMS,
    operation_class=_TakesOctets,
    request_max_body_size=MAX_BYTES,
)
async def look_up_vectors(
    ports: FromPorts,
    request: WithToken,
    body: RawBody,
    checkpoint_id: Of,
    dim: Dim,
    dtype: Dtype = "float32",
    k: K = 1,
    threshold: Threshold = None,
    min_seq: MinSeq = None,
    as_of: AsOf = None,
    accepted_only: AcceptedOnly = False,
) -> Response[LookupAnswers]:
    """Look up queries that are bytes.

    The body is rows of `dim` little-endian numbers of `dtype`; `POST /v1/lookups` accepts it too. The response is the
    same as to a lookup in JSON, or in MessagePack where `Accept` names that. `as_of` needs the right `audit`.
    """
    if as_of is not None:
        require_past(request)
    kind = request.accept.best_match([JSON, *_MSGPACKS], JSON)

    rows = queries(body, dim, dtype)
    if as_of is None and min_seq is None:
        asked = KeyLookup(rows, checkpoint_id, k, threshold, accepted_only)
        return _encoded(kind, checkpoint_id, await ports.find_by_key(asked))

    def looked_up() -> Response[LookupAnswers]:
        asked = ports.kb.lookups if as_of is None else ports.kb.lookups.as_of(as_of)
        found = asked.find(
            rows,
            checkpoint_id=checkpoint_id,
            k=k,
            threshold=threshold,
            min_seq=min_seq,
            accepted_only=accepted_only,
        )
        return _encoded(kind, checkpoint_id, found)

    with past_apart(ports, as_of):
        return await sync_to_thread(looked_up)


def _encoded(kind: str, checkpoint_id: str, found: Sequence[Lookup]) -> Response[LookupAnswers]:
    answers = answered(checkpoint_id, [], found)
    encoded: Any = msgspec.json.encode(answers) if kind == JSON else msgspec.msgpack.encode(answers)
    return Response(encoded, media_type=kind)


def queries(body: bytes, dim: int, dtype: str) -> npt.NDArray[np.float32]:
    """Decodes a body into [B, dim]. Raises `InvalidQuery` unless it is whole rows, at least one and not too many."""
    stored = _DTYPES[dtype]
    rows, rest = divmod(len(body), dim * stored.itemsize)
    if rest:
        raise InvalidQuery(f"{len(body)} bytes are no whole rows of {dim} numbers of {dtype}")
    if not 1 <= rows <= MAX_VECTORS:
        raise InvalidQuery(f"a lookup takes 1 to {MAX_VECTORS} queries, and these are {rows}")
    return np.frombuffer(body, dtype=stored).reshape(rows, dim).astype(np.float32)


def route(scope: HTTPScope) -> None:
    """Reroutes a lookup whose body is bytes to `look_up_vectors`, since Litestar chooses a route by its path alone."""
    if scope["path"] == LOOKUPS and scope["method"] == "POST":
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if kind.partition(b";")[0].strip().lower() == OCTETS:
            scope["path"] = VECTORS
