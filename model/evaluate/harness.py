"""The three methods that lm_eval calls on a model, on requests that have only `args`.

This module does not need lm_eval: `lab.harness.model` makes its model class from it. If a text is longer than the
context, its end is kept, as lm_eval's own model classes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.continuations import Likelihood, Pair, WithLookups, encoded, without_lookups

MAX_TOKENS = 256
_TAGS = 2  # the tags of a lookup, for which a text that is scored with lookups must leave room
_TOKENS = ("max_gen_toks", "max_tokens", "max_new_tokens", "max_completion_tokens")
_KNOWN = {"until", "do_sample", "temperature", "top_p", "seed", *_TOKENS}

Advance = Callable[[int, int], None]


class HarnessRequest(Protocol):
    @property
    def args(self) -> tuple[Any, ...]: ...


@dataclass(slots=True)
class Harness:
    """A decoder with or without lookups (`mode` auto or off), which answers requests in batches."""

    decoder: Decoder
    mode: str = "off"
    batch: int = 16
    threshold: float | None = None
    advance: Advance = lambda done, total: None

    def __post_init__(self) -> None:
        if self.mode not in ("off", "auto"):
            raise ValueError(
                f"mode {self.mode!r}: a continuation is scored with lookups 'off' or in mode 'auto'"
            )
        if self.mode == "auto" and self.decoder.lookup is None:
            raise ValueError("mode 'auto' needs a knowledge base")

    def loglikelihood(self, requests: Sequence[HarnessRequest]) -> list[tuple[float, bool]]:
        """Gives the log-probability of each (context, continuation), and whether greedy decoding gives it."""
        tokenizer = self.decoder.tokenizer
        pairs = [self._kept(*encoded(tokenizer, *request.args)) for request in requests]
        return [(one.logprob, one.is_greedy) for one in self._scored(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest]) -> list[float]:
        """Gives the log-probability of each whole text, in windows if it is longer than the context."""
        windows = [list(self._windows(*request.args)) for request in requests]
        scored = iter(self._scored([pair for some in windows for pair in some]))
        return [sum(next(scored).logprob for _ in some) for some in windows]

    def generate_until(self, requests: Sequence[HarnessRequest]) -> list[str]:
        """Generates text after each (context, options), up to one of the strings in `until`, which is left out.

        Raises `ValueError` for options that decoding does not have.
        """
        said: list[str] = []
        for options, some in groupby(requests, key=lambda request: dict(request.args[1])):
            config, contexts = self._config(options), [request.args[0] for request in some]
            for start in range(0, len(contexts), self.batch):
                prompts = [self._prompt(c, config) for c in contexts[start : start + self.batch]]
                said += [one.output for one in self.decoder.generate(prompts, config)]
                self.advance(len(said), len(requests))
        return said

    def _scored(self, pairs: Sequence[Pair]) -> Iterator[Likelihood]:
        for start in range(0, len(pairs), self.batch):
            some = pairs[start : start + self.batch]
            yield from self._likely(some)
            self.advance(start + len(some), len(pairs))

    def _likely(self, pairs: Sequence[Pair]) -> Sequence[Likelihood]:
        if self.mode == "off" or self.decoder.lookup is None:
            return without_lookups(self.decoder.checkpoint, pairs)
        return WithLookups(self.decoder.checkpoint, self.decoder.lookup, threshold=self.threshold)(pairs)

    @property
    def _room(self) -> int:
        """The number of tokens of a text that can be scored, after the token that begins it."""
        room = self.decoder.checkpoint.lm.inference.context - 1
        return room - _TAGS if self.mode == "auto" else room

    def _kept(self, before: list[int], after: list[int]) -> Pair:
        after = after[-self._room :]
        return before[max(0, len(before) + len(after) - self._room) :], after

    def _windows(self, text: str) -> Iterator[Pair]:
        """Yields the text's tokens in windows, each token once; the last window has as many tokens before it as fit."""
        ids, room = self.decoder.tokenizer.encode(text), self._room
        yield [], ids[:room]
        for start in range(room, len(ids), room - 1):
            end = min(start + room - 1, len(ids))
            yield ids[max(0, end - room) : start], ids[start:end]

    def _prompt(self, context: str, config: DecodeConfig) -> list[int]:
        room = self.decoder.checkpoint.lm.inference.context - 1 - config.max_tokens
        if room < 1:
            raise ValueError(f"{config.max_tokens} tokens to be generated leave no room for a prompt")
        return self.decoder.tokenizer.encode(context)[-room:]

    def _config(self, options: Mapping[str, Any]) -> DecodeConfig:
        if unknown := sorted(options.keys() - _KNOWN):
            raise ValueError(f"decoding has no option {', '.join(unknown)}")
        until = options.get("until") or ()
        samples = options.get("do_sample", bool(options.get("temperature")))
        return DecodeConfig(
            mode=self.mode,
            max_tokens=next((int(options[name]) for name in _TOKENS if options.get(name)), MAX_TOKENS),
            temperature=float(options.get("temperature") or 1.0) if samples else 0.0,
            top_p=float(options.get("top_p") or 1.0),
            repetition_penalty=1.0,
            stop=(until,) if isinstance(until, str) else tuple(until),
            seed=int(options.get("seed") or 0),
            threshold=self.threshold,
        )
