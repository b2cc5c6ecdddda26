"""The body of a completion request."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.openai.errors import Unsupported
from colmlm.api.openai.fields import MAX_CHOICES, MAX_TOP, ChoiceFields

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
        """Gives a generation request for each choice of each prompt. Raises `Unsupported`."""
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
            raise Unsupported("best_of", "all choices are given, and none is chosen; leave it out")
        if self.suffix:
            raise Unsupported("suffix", "text is not inserted, only continued; leave it out")
        if self.logprobs is not None:
            self.refuse_beside_logprobs()
        if self.echo and self.stream and not all(isinstance(prompt, str) for prompt in self._prompts()):
            raise Unsupported("echo", "a stream gives back no token ids; leave it out, or send text")
        if self.max_tokens == 0 and self.stream:
            raise Unsupported("max_tokens", "a stream of nothing; leave stream out")
        if self.max_tokens == 0 and not self.echo:
            raise Unsupported("max_tokens", "0 gives nothing unless echo is set")
        if (num_choices := len(self._prompts()) * self.num_choices) > MAX_CHOICES:
            field = "prompt" if self.num_choices == 1 else "n"
            raise Unsupported(field, f"{num_choices} choices at once; at most {MAX_CHOICES}")

    def _prompts(self) -> list[str | tuple[int, ...]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(one) for one in self.prompt}
        if kinds == {int}:
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        if int in kinds:
            raise Unsupported("prompt", "token ids of several prompts are lists of their own")
        return [
            one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)
        ]
