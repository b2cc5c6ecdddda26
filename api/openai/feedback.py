"""`POST /v1/chat/completions/{id}`: OpenAI's way to change the metadata of a stored completion, here its feedback.

The id is the `generation_id` of the choice, since a completion's own id is made before anything is stored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import post
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import Refused
from colmlm.api.openai.answers import ChatMessage
from colmlm.api.openai.errors import ROUTE
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken
from colmlm.api.schema.schemas import shown_to
from colmlm.api.wire.requests import Request
from colmlm.kb.answers.records import NOTHING
from colmlm.kb.evidence.records import NewFeedback, OutputTrace, Thumb

CompletionId = Annotated[str, PathParameter(max_length=300)]
MetadataText = Annotated[str, Meta(min_length=1, max_length=512)]  # as long as OpenAI has it


class CompletionNotFound(Refused):
    title = "No such completion"
    status = 404

    def __init__(self, asked: str) -> None:
        super().__init__(f"No completion {asked!r} is stored. Its id is the `generation_id` of its choice.")


class FeedbackMetadata(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The keys that are kept of a completion's metadata: a thumb, a comment, and the value that would be right."""

    feedback: Thumb
    comment: MetadataText | None = None
    value: MetadataText | None = None


class CompletionUpdate(Request, frozen=True, kw_only=True):
    metadata: FeedbackMetadata


class JudgedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a stored completion says. Why its model stopped is not stored."""

    message: ChatMessage
    generation_id: int
    index: int = 0
    finish_reason: str = "stop"
    logprobs: None = None


class JudgedCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A stored completion with its feedback as metadata."""

    id: str
    created: int
    model: str
    choices: list[JudgedChoice]
    metadata: FeedbackMetadata
    object: str = "chat.completion"


@post(
    "/chat/completions/{completion_id:str}",
    status_code=200,
    **ROUTE | {"opt": needs(Right.read, Lane.records)},
)
def update_completion(
    ports: FromPorts, request: WithToken, completion_id: CompletionId, data: JSONBody[CompletionUpdate]
) -> JudgedCompletion:
    """Say whether a completion is right.

    Its `metadata` holds a thumb as `feedback`, and perhaps a `comment` and the `value` that would be right. The id is
    the `generation_id` of its choice.
    """
    generation_id, said = _generation(completion_id), data.metadata
    made = NewFeedback(said.feedback, said.comment, said.value)
    ports.kb.outputs.give_feedback(generation_id, made, actor=request.user.name)
    return _judged(shown_to(request, ports).trace_output(generation_id), said)


def _generation(completion_id: str) -> int:
    if len(completion_id) < 20 and completion_id.isascii() and completion_id.isdecimal():
        return int(completion_id)
    raise CompletionNotFound(completion_id)


def _judged(trace: OutputTrace, said: FeedbackMetadata) -> JudgedCompletion:
    message = ChatMessage(
        role="assistant", content=trace.output or None, refusal=NOTHING if trace.abstained else None
    )
    return JudgedCompletion(
        id=str(trace.generation_id),
        created=int(trace.at.timestamp()),
        model=trace.checkpoint_id,
        choices=[JudgedChoice(message=message, generation_id=trace.generation_id)],
        metadata=said,
    )
