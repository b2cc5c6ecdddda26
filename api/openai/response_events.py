"""The events of a streamed response, numbered in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from colmlm.api.openai.response_objects import (
    AnsweredResponse,
    OutputPart,
    OutputRefusal,
    OutputText,
    message,
)

Told = dict[str, Any]


class ResponseEvents:
    """Tells a response by events: that it begins, its text, its citations, and the whole.

    All are of one part of one message, whose ids do not change.
    """

    def __init__(self, response: AnsweredResponse) -> None:
        self._response = response
        self._num_told = 0
        self._is_open = False  # whether the part was begun

    def begin(self) -> Iterator[Told]:
        """Yields the beginning, once."""
        if not self._num_told:
            yield self._told("response.created", response=self._response)
            yield self._told("response.in_progress", response=self._response)
            item = message(self._response, "in_progress")
            yield self._told("response.output_item.added", output_index=0, item=item)

    def text(self, piece: str) -> Iterator[Told]:
        """Yields a piece of the text."""
        yield from self._open(OutputText(text=""))
        if piece:
            yield self._of_part("response.output_text.delta", delta=piece, logprobs=[])

    def end(self, part: OutputPart, response: AnsweredResponse) -> Iterator[Told]:
        """Yields the citations, the finished part, message and response."""
        if isinstance(part, OutputRefusal):
            yield from self._open(OutputRefusal(refusal=""))
            yield self._of_part("response.refusal.delta", delta=part.refusal)
            yield self._of_part("response.refusal.done", refusal=part.refusal)
        else:
            yield from self._open(OutputText(text=""))
            for number, cited in enumerate(part.annotations):
                yield self._of_part(
                    "response.output_text.annotation.added", annotation_index=number, annotation=cited
                )
            yield self._of_part("response.output_text.done", text=part.text, logprobs=[])
        yield self._of_part("response.content_part.done", part=part)
        yield self._told("response.output_item.done", output_index=0, item=response.output[0])
        yield self._told(f"response.{response.status}", response=response)

    def _open(self, part: OutputPart) -> Iterator[Told]:
        if not self._is_open:
            self._is_open = True
            yield self._of_part("response.content_part.added", part=part)

    def _of_part(self, kind: str, **fields: Any) -> Told:
        item_id = message(self._response, "in_progress").id
        return self._told(kind, item_id=item_id, output_index=0, content_index=0, **fields)

    def _told(self, kind: str, **fields: Any) -> Told:
        number, self._num_told = self._num_told, self._num_told + 1
        return {
            "type": kind,
            "sequence_number": number,
            **{name: msgspec.to_builtins(value) for name, value in fields.items()},
        }
