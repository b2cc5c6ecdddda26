"""Decoding on a remote server with its checkpoint, for a machine that has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colmlm.api.client.api import Api
from colmlm.api.client.errors import RemoteError, ServerUnreachable, error_of
from colmlm.api.wire.answers import Problem
from colmlm.kb.errors import KBError
from colmlm.kb.evidence.records import OutputTrace

if TYPE_CHECKING:
    from colmlm.api.nouns.generation import GenerationRequest, Item

_PATH = "/generations"


@dataclass(frozen=True, slots=True)
class RemoteGenerator:
    """`api.nouns.generation.DecoderVerbs` over the API. A request is not retried, since each would store an output."""

    api: Api

    def generate(self, request: GenerationRequest) -> OutputTrace:
        return self.api.once(_PATH, OutputTrace, _body(request))

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Yields the pieces of text and then the trace, which holds the splices and the lookups without a match."""
        name = ""
        for line in self.api.lines_of(_PATH, _body(request) | {"stream": True}):
            field, _, said = line.rstrip("\r\n").partition(": ")
            if field == "event":
                name = said
            elif field == "data" and name == "piece":
                yield self.api.read(said.encode(), dict[str, str])["text"]
            elif field == "data" and name == "trace":
                yield self.api.read(said.encode(), OutputTrace)
                return
            elif field == "data" and name == "error":
                raise _broken_off(error_of(self.api.read(said.encode(), Problem)))
        raise ServerUnreachable(self.api.connection.url, "the stream ended early", was_sent=True)


def _broken_off(error: KBError) -> KBError:
    """Notes on the error of a stream that it came when the request was carried out in part."""
    if isinstance(error, RemoteError):
        error.was_sent = True
    return error


def _body(request: GenerationRequest) -> dict[str, Any]:
    said = {name: value for name, value in asdict(request).items() if value is not None}
    return {**said, "mode": str(request.mode), "stop": list(request.stop)}
