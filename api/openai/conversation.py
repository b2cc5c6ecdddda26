"""Conversations, and the text of one that a base model can continue.

The model was trained on questions and answers, so a conversation is written in that form: first the system message, as
a paragraph; then each turn as ``Question: ...`` with ``Answer: ...`` on the next line, an empty line between turns, and
last ``Answer:`` for the model to continue. The answer ends where another question would begin. The space after
``Answer:`` is not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.openai.errors import Unsupported
from colmlm.kb.answers.records import NOTHING
from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.texts.asked import ANSWER

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
    """Raises `Unsupported` unless the last message is a user's, and every one but the assistant's says something."""
    if any(message.content is None and message.role != "assistant" for message in messages):
        raise Unsupported(field, "only a message of the assistant's may be without content")
    if messages[-1].role != "user":
        raise Unsupported(field, "the last one must be the user's")


def as_text(messages: Sequence[Message]) -> str:
    """Writes a conversation as the text that the model reads."""
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
    """Says that nothing answers where the output abstained; None where it says something, or was to continue."""
    return NOTHING if decoding.abstains and trace.abstained else None


def shift_of(output: str) -> int:
    """Gives the offset of an output within the answer: -1 where the space after ``Answer:`` is left out."""
    return -1 if output.startswith(" ") else 0
