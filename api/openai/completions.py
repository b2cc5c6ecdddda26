"""`/v1/completions`: continues prompts with lookups, or scores them, as evaluation harnesses ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.openai.answers import (
    Citation,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    citations,
    finish_reason,
    logprobs,
    response_heading,
    usage,
)
from colmlm.api.openai.fields import DECODING, MAX_CHOICES, MAX_TOP, ChoiceFields, Unsupported, chunks
from colmlm.api.openai.models import require_model
from colmlm.api.ports import FromPorts, await_seen
from colmlm.kb.evidence.generation import CompletedRequest, FinishedOutput, GenerationRequest, Generator
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
        return chunks(_chunks(generator, data, decodings, response_heading("cmpl", model), base_url))
    done = generator.complete(decodings, data.logprobs)
    choices = [_choice(index, one, data, base_url) for index, one in enumerate(done)]
    return Response(
        Completion(
            **response_heading("cmpl", model),
            choices=choices,
            usage=usage([one.finished for one in done]),
            citations=[citation for choice in choices for citation in choice.citations],
        )
    )


def _choice(index: int, done: CompletedRequest, data: CompletionRequest, base_url: str) -> CompletionChoice:
    lead, trace = done.prompt if data.echo else "", done.trace
    return CompletionChoice(
        index=index,
        text=lead + (trace.output if trace else ""),
        logprobs=_logprobs(done, data),
        finish_reason=finish_reason(done.finished),
        generation_id=trace.generation_id if trace else None,
        citations=citations(trace, base_url, index=index, shift=len(lead)) if trace else [],
    )


def _logprobs(done: CompletedRequest, data: CompletionRequest) -> CompletionLogprobs | None:
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
    """Yield the chunks of one prompt after another."""
    took: list[FinishedOutput] = []
    cited: list[Citation] = []
    for index, decoding in enumerate(decodings):
        text = decoding.prompt if isinstance(decoding.prompt, str) else ""
        if lead := text if data.echo else "":
            yield Completion(**fields, choices=[CompletionChoice(index=index, text=lead)])
        # Choices of a batch are drawn from seeds of their own, and so are these.
        for item in generator.stream(replace(decoding, seed=decoding.seed + index)):
            if isinstance(item, str):
                yield Completion(**fields, choices=[CompletionChoice(index=index, text=item)])
            elif isinstance(item, FinishedOutput):
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


# The body of a completion request.

COMPLETION_TOKENS = 16

Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[Token], Meta(min_length=1)]  # the generator limits their number
Prompts = Annotated[list[str | Token | Tokens], Meta(min_length=1)]
NoText = Annotated[str, Meta(extra_json_schema={"maxLength": 0})]


class CompletionRequest(ChoiceFields, frozen=True, kw_only=True):
    """Prompts to complete: one text or several, or the token ids of one or several.

    `max_tokens` 0 with `echo` only scores them. Where a lookup finds nothing a completion continues, unless `on_miss`
    is "abstain".
    """

    prompt: str | Prompts
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    suffix: NoText | None = None

    def decodings(self) -> list[GenerationRequest]:
        """Give `n` generation requests for each prompt. Raises `Unsupported` where an option has no equivalent here."""
        self._refuse()
        max_tokens = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        requests = [
            replace(self.decoding(prompt, max_tokens, self.stops), on_miss=self.on_miss or "continue")
            for prompt in self._prompts()
            for _ in range(self.num_choices)
        ]
        return [replace(one, mode="off") for one in requests] if self.logprobs is not None else requests

    def _refuse(self) -> None:
        self.refuse_unsupported()
        if self.best_of not in (None, self.num_choices):
            raise Unsupported("best_of", f"{self.best_of} is not {self.num_choices}, the n. Leave it out")
        if self.suffix:
            raise Unsupported("suffix", "the model only continues text. Leave it out")
        if self.logprobs is not None:
            self.refuse_beside_logprobs()
        if self.echo and self.stream and not all(isinstance(prompt, str) for prompt in self._prompts()):
            raise Unsupported("echo", "a stream returns no token ids. Leave it out, or send text")
        if self.max_tokens == 0 and self.stream:
            raise Unsupported("max_tokens", "0 leaves nothing to stream. Leave stream out")
        if self.max_tokens == 0 and not self.echo:
            raise Unsupported("max_tokens", "0 needs echo. Set echo, or ask for more tokens")
        if (num_choices := len(self._prompts()) * self.num_choices) > MAX_CHOICES:
            field = "prompt" if self.num_choices == 1 else "n"
            raise Unsupported(field, f"this asks for {num_choices} choices. Ask for at most {MAX_CHOICES}")

    def _prompts(self) -> list[str | tuple[int, ...]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(one) for one in self.prompt}
        if kinds == {int}:
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        if int in kinds:
            raise Unsupported("prompt", "token ids are beside other prompts. Give each a list of its own")
        return [
            one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)
        ]


HANDLERS = (complete,)
