"""The body of a request to `/v1/responses`, in its basic form: text in, text out, and nothing kept between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.openai.chat_request import Nothing, NoTool, TextFormat, refuse_tools
from colmlm.api.openai.conversation import (
    CHAT_TOKENS,
    NEXT_QUESTION,
    Message,
    Messages,
    as_text,
    refuse_unanswerable,
)
from colmlm.api.openai.errors import Unsupported
from colmlm.api.openai.fields import DecodingFields, Most, NoList, Text

# What an answer may be asked to include of which there is none here.
NONE_OF_THEM = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
Include = Annotated[list[str], Meta(extra_json_schema={"items": {"enum": list(NONE_OF_THEM)}})]
Off = Annotated[bool, Meta(extra_json_schema={"enum": [False]})]


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the text is to be written. `verbosity` is read over."""

    format: TextFormat | None = None
    verbosity: Text | None = None


class ResponseRequest(DecodingFields, frozen=True, kw_only=True):
    """A question, or a conversation whose last message is the user's, with `instructions` before it.

    `reasoning` and `truncation` are read over: the model does not reason, and a prompt that is too long is refused.
    """

    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Most | None = None
    text: TextOptions | None = None
    tools: NoList | None = None
    tool_choice: NoTool = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    include: Include | None = None
    background: Off | None = None
    previous_response_id: Nothing = None
    conversation: Nothing = None
    prompt: Nothing = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    def request(self) -> GenerationRequest:
        """Gives the generation request. Raises `Unsupported`."""
        self._refuse()
        most = self.max_output_tokens or CHAT_TOKENS
        return self.decoding(as_text(self._messages()), most, (NEXT_QUESTION,))

    def _messages(self) -> list[Message]:
        lead = [Message(role="system", content=self.instructions)] if self.instructions else []
        said = [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        return [*lead, *said]

    def _refuse(self) -> None:
        self.refuse_unsupported()
        refuse_tools("tools", self.tools, self.tool_choice)
        if self.text is not None and self.text.format not in (None, {"type": "text"}):
            raise Unsupported("text.format", "only text is written")
        for wanted in self.include or ():
            if wanted not in NONE_OF_THEM:
                raise Unsupported("include", f"{wanted!r} is not told; citations always are")
        if self.background:
            raise Unsupported("background", "an answer is waited for; leave it out, or set stream")
        for field in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, field) is not None:
                raise Unsupported(
                    field, "nothing is kept between requests; send the whole conversation as input"
                )
        refuse_unanswerable("input", self._messages())
