"""`/v1/completions`: continues prompts with lookups, or scores them, as evaluation harnesses ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody

from colmlm.api.nouns.generation import Completed, Finished, GenerationRequest, Generator
from colmlm.api.openai.answers import (
    Completion,
    CompletionChoice,
    finish_reason,
    heading,
    usage,
)
from colmlm.api.openai.citations import Citation, citations
from colmlm.api.openai.completion_request import CompletionRequest
from colmlm.api.openai.errors import DECODING
from colmlm.api.openai.logprobs import CompletionLogprobs, logprobs
from colmlm.api.openai.models import require_model
from colmlm.api.openai.streams import chunks
from colmlm.api.ports import FromPorts, await_seen
from colmlm.kb.evidence.records import OutputTrace


@post("/completions", status_code=200, **DECODING)
def complete(
    ports: FromPorts, request: Request[Any, Any, Any], data: JSONBody[CompletionRequest]
) -> Response[Completion]:
    """Complete prompts.

    Continues each prompt, stores the output, and cites the facts that were spliced.
    With `logprobs` nothing is looked up: the log-probabilities are the model's alone. With `stream` the answer is
    `text/event-stream` of chunks in the same form, the last of which holds the citations, and then `[DONE]`.
    """
    generator = ports.need_generator()
    model = require_model(generator.model, data.model)
    decodings, base_url = data.decodings(), str(request.base_url)
    await_seen(ports, data.min_seq)
    if data.stream:
        return chunks(_chunks(generator, data, decodings, heading("cmpl", model), base_url))
    done = generator.complete(decodings, data.logprobs)
    choices = [_choice(index, one, data, base_url) for index, one in enumerate(done)]
    return Response(
        Completion(
            **heading("cmpl", model),
            choices=choices,
            usage=usage([one.finished for one in done]),
            citations=[citation for choice in choices for citation in choice.citations],
        )
    )


def _choice(index: int, done: Completed, data: CompletionRequest, base_url: str) -> CompletionChoice:
    lead, trace = done.prompt if data.echo else "", done.trace
    return CompletionChoice(
        index=index,
        text=lead + (trace.output if trace else ""),
        logprobs=_logprobs(done, data),
        finish_reason=finish_reason(done.finished),
        generation_id=trace.generation_id if trace else None,
        citations=citations(trace, base_url, index=index, shift=len(lead)) if trace else [],
    )


def _logprobs(done: Completed, data: CompletionRequest) -> CompletionLogprobs | None:
    if data.logprobs is None:
        return None
    tokens = done.prompt_logprobs + done.output_logprobs if data.echo else done.output_logprobs
    return logprobs(tokens, data.logprobs)


def _chunks(
    generator: Generator,
    data: CompletionRequest,
    decodings: list[GenerationRequest],
    fields: dict[str, Any],
    base_url: str,
) -> Iterator[Completion]:
    """Yields the chunks of one prompt after another."""
    took: list[Finished] = []
    cited: list[Citation] = []
    for index, decoding in enumerate(decodings):
        text = decoding.prompt if isinstance(decoding.prompt, str) else ""
        if lead := text if data.echo else "":
            yield Completion(**fields, choices=[CompletionChoice(index=index, text=lead)])
        # Choices of a batch are drawn from seeds of their own, and so are these.
        for item in generator.stream(replace(decoding, seed=decoding.seed + index)):
            if isinstance(item, str):
                yield Completion(**fields, choices=[CompletionChoice(index=index, text=item)])
            elif isinstance(item, Finished):
                took.append(item)
            elif isinstance(item, OutputTrace):
                found = citations(item, base_url, index=index, shift=len(lead))
                cited += found
                ended = CompletionChoice(
                    index=index,
                    text="",
                    finish_reason=finish_reason(took[-1]),
                    generation_id=item.generation_id,
                    citations=found,
                )
                yield Completion(**fields, choices=[ended], citations=found)
    if data.wants_usage:
        yield Completion(**fields, choices=[], usage=usage(took), citations=cited)
