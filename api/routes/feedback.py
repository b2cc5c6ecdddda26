"""Feedback: what people say of stored outputs."""

from __future__ import annotations

from typing import Annotated

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.requests import Behalf, Request
from colmlm.kb.evidence.records import Feedback, NewFeedback, Thumb
from colmlm.kb.evidence.storing import MOST_CHARACTERS

Said = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)]


class GivenFeedback(Request, frozen=True, kw_only=True):
    """A thumb for an output, perhaps with a comment, and with the value that would be right."""

    thumb: Thumb
    comment: Said | None = None
    value: Said | None = None
    on_behalf_of: Behalf | None = None


@post(
    "/generations/{generation_id:int}/feedback",
    opt=needs(Right.read, Lane.records),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def give_feedback(
    ports: FromPorts, request: WithToken, generation_id: PathId, data: JSONBody[GivenFeedback]
) -> Feedback:
    """Say whether an output is right.

    The last thumb of each token, and of each person that it speaks for, counts. A thumb down puts the output on the
    list of misses.
    """
    return ports.kb.outputs.give_feedback(
        generation_id,
        NewFeedback(data.thumb, data.comment, data.value),
        actor=request.user.name,
        on_behalf_of=data.on_behalf_of or "",
    )
