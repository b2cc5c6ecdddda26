"""The body of a chat request."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.openai.conversation import CHAT_TOKENS, NEXT_QUESTION, Messages, as_text, refuse_unanswerable
from colmlm.api.openai.errors import Unsupported
from colmlm.api.openai.fields import MAX_TOP, ChoiceFields, Most, NoList, Text

UNFORCED = ("none", "auto", None)
NoTool = Annotated[Any, Meta(extra_json_schema={"enum": list(UNFORCED)})]
_ONLY_TEXT = {
    "properties": {"type": {"type": "string", "enum": ["text"]}},
    "required": ["type"],
    "additionalProperties": False,
}
TextFormat = Annotated[dict[str, Any], Meta(extra_json_schema=_ONLY_TEXT)]
OnlyText = Annotated[list[str], Meta(extra_json_schema={"items": {"enum": ["text"]}})]
Nothing = Annotated[Any, Meta(extra_json_schema={"enum": [None]})]


def refuse_tools(field: str, tools: list[Any] | None, choice: Any) -> None:
    """Raises `Unsupported` where tools are to be called. With the choice "none" they may be listed."""
    if choice not in UNFORCED or (tools and choice != "none"):
        raise Unsupported(
            field, "the model calls none; its lookups are its own. Leave them out, or choose none"
        )


class ChatRequest(ChoiceFields, frozen=True, kw_only=True):
    """A conversation whose last message is the user's; `api.openai.conversation` writes it as the text that the model
    reads.

    With `logprobs` nothing is looked up, as in a completion. `reasoning_effort`, `verbosity` and `prediction` are read
    over.
    """

    messages: Messages
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    tools: NoList | None = None
    tool_choice: NoTool = None
    functions: NoList | None = None
    function_call: NoTool = None
    response_format: TextFormat | None = None
    modalities: OnlyText | None = None
    audio: Nothing = None
    web_search_options: Nothing = None
    reasoning_effort: Text | None = None
    verbosity: Text | None = None
    prediction: dict[str, Any] | None = None

    def decodings(self) -> list[GenerationRequest]:
        """Gives a generation request for each choice. Raises `Unsupported`."""
        self._refuse()
        tokens = self.max_completion_tokens or self.max_tokens or CHAT_TOKENS
        decoding = self.decoding(as_text(self.messages), tokens, (*self.stops, NEXT_QUESTION))
        return [replace(decoding, mode="off") if self.logprobs else decoding] * self.num_choices

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens are listed; None where no log-probabilities are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def _refuse(self) -> None:
        self.refuse_unsupported()
        if self.logprobs:
            self.refuse_beside_logprobs()
        elif self.top_logprobs:
            raise Unsupported("top_logprobs", "they come with logprobs; set that, too")
        refuse_tools("tools", self.tools, self.tool_choice)
        refuse_tools("functions", self.functions, self.function_call)
        if self.response_format not in (None, {"type": "text"}):
            raise Unsupported("response_format", "only text is written")
        if set(self.modalities or ()) - {"text"} or self.audio is not None:
            raise Unsupported("modalities", "only text is written")
        if self.web_search_options is not None:
            raise Unsupported("web_search_options", "only the knowledge base is searched")
        refuse_unanswerable("messages", self.messages)
