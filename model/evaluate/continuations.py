"""The likelihood of continuations after a context, without lookups or as decoding with lookups would give them.

Without lookups this is the score of lm_eval: the model's own probability, lookups forbidden (`model.decoding.decoder`).

With lookups the context is read without any, and the continuation is scored as decoding in mode *auto* at temperature 1
would give it. Before each of its tokens the model may open a lookup, with its own probability p (the checkpoint's fact
bias included). The result of that lookup decides:

- no match: the lookup is taken back, and changes nothing;
- a value with which the continuation goes on, token for token: decoding gives those tokens with or without the lookup,
  so that stretch has the probability p + (1 - p) q, where q is the model's own for its tokens. What follows is read
  after the likelier of the two;
- another value: decoding would splice that one instead, so the continuation is left with 1 - p.

The paper evaluates understanding by likelihood (5-shot, three seeds of the exemplars) and says nothing of lookups
there. Without lookups the figures are comparable with its table; with lookups they are this project's reading of "with
the knowledge base". Lookups that the model would open with a probability below `LEAST_OPENING` are not made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.model.decoding.config import DecodeConfig, LookupPort
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.rows import needs_space
from colmlm.model.decoding.scoring import POSITIONS_AT_ONCE, scores_of_states
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.lm.past import Piece
from colmlm.model.text.tokens import FactTokenizer

LEAST_OPENING = 0.01

Pair = tuple[Sequence[int], Sequence[int]]  # the tokens of a context, and of its continuation
Stretch = Callable[[int, str], int]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-probability of a continuation in nats, and whether greedy decoding gives it."""

    logprob: float
    is_greedy: bool


def encode_pair(tokenizer: FactTokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encode a context and its continuation together, cut after the context; its last blanks go to the continuation."""
    stripped = context.rstrip()
    before = tokenizer.encode(stripped)
    return before, tokenizer.encode(f"{context}{continuation}")[len(before) :]


def without_lookups(checkpoint: Checkpoint, pairs: Sequence[Pair]) -> list[Likelihood]:
    """Score the continuations with the model alone. Raises `ValueError` if a pair exceeds the model's context.

    A context that pairs in a row share, as the choices of an item do, is read once.
    """
    model, likely = checkpoint.lm.inference, list[Likelihood]()
    if (longest := max((1 + len(before) + len(after) for before, after in pairs), default=0)) > model.context:
        raise ValueError(
            f"a text of {longest} tokens exceeds the model's context, {model.context}; shorten it"
        )
    for before, alike in groupby(pairs, key=itemgetter(0)):
        context, past = checkpoint.tokenizer.prompt(before), model.past()
        with torch.inference_mode():
            last_1D = model.feed([Piece(context, 0, past)])[-1:]
            for _, after in alike:
                more = Piece(after[:-1], len(context), past)
                states_TD = torch.cat([last_1D, model.feed([more])]) if more.ids else last_1D
                own = scores_of_states(checkpoint, states_TD, [context[-1], *after])
                is_greedy = all(one.top[0][0] == one.token for one in own)
                likely.append(Likelihood(sum(one.logprob for one in own), is_greedy))
    return likely


class WithLookups:
    """A scorer of continuations as decoding with lookups would give them, one after the other."""

    def __init__(self, checkpoint: Checkpoint, lookup: LookupPort, *, threshold: float | None = None) -> None:
        markup = checkpoint.tokenizer.markup
        if markup.opens is None or markup.asks is not None:
            raise ValueError(
                f"a model of method {markup.method} cannot be scored with lookups; leave the lookups out, or take "
                "one of method co-lmlm"
            )
        self.checkpoint, self.lookup, self.threshold = checkpoint, lookup, threshold
        self.tokenizer, self.forward = checkpoint.tokenizer, checkpoint.lm.inference
        self.bias = float(checkpoint.config.decoding.get("fact_bias", 0.0))

    def __call__(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        """Score the pairs' continuations. Raises `ValueError` if a pair exceeds the model's context."""
        return [self._likelihood(before, after) for before, after in pairs]

    @torch.inference_mode()
    def _likelihood(self, before: Sequence[int], after: Sequence[int]) -> Likelihood:
        prefix, rest = self.tokenizer.prompt(before), list(after)
        logprob, is_greedy = 0.0, True
        while rest:
            odds, values = self._read_odds(prefix, rest)
            stretch = partial(self._stretch, rest, self.tokenizer.decode(prefix))
            step = _Walk(rest, odds, values, stretch, has_room=self._has_room(prefix, rest))
            step.go()
            logprob, is_greedy = logprob + step.logprob, is_greedy and step.is_greedy
            if step.taken:
                at, end = step.at, step.at + step.taken
                lookup = [self.tokenizer.fact, *rest[at:end], self.tokenizer.fact_end]
                prefix, rest = [*prefix, *rest[:at], *lookup], rest[end:]
            else:
                rest = []
        return Likelihood(logprob, is_greedy)

    def _has_room(self, prefix: Sequence[int], rest: Sequence[int]) -> bool:
        """Tell whether the model's context has room for the two tags of one more lookup."""
        return len(prefix) + len(rest) + 2 <= self.forward.context

    def _read_odds(self, prefix: Sequence[int], rest: Sequence[int]) -> tuple[_Odds, dict[int, str]]:
        """Read `rest` after `prefix`; give the odds at each token of `rest`, and the values that lookups find there."""
        ids = [*prefix, *rest]
        if len(ids) > self.forward.context:
            raise ValueError(
                f"a text of {len(ids)} tokens exceeds the model's context, {self.forward.context}; shorten it"
            )
        cache = self.forward.cache(1)
        states_TD = self.forward.advance(torch.tensor([ids]), [0], cache)[0]
        odds = self._odds(states_TD[len(prefix) - 1 : -1], rest)
        opening = [at for at, opens in enumerate(odds.opens) if opens >= math.log(LEAST_OPENING)]
        queries: dict[int, NDArray[np.float32]] = {}
        for at in reversed(opening):  # each overwrites the cache from its position on
            opened = torch.tensor([[self.tokenizer.fact]])
            states_1D = self.forward.advance(opened, [len(prefix) + at], cache)[0]
            queries[at] = unit(states_1D).cpu().numpy()[0]
        return odds, self._values(queries)

    def _values(self, queries: dict[int, NDArray[np.float32]]) -> dict[int, str]:
        if not queries:
            return {}
        found = self.lookup.find(
            np.stack(list(queries.values())),
            checkpoint_id=self.checkpoint.checkpoint_id,
            k=1,
            threshold=self.threshold,
        )
        return {at: one.hits[0].value for at, one in zip(queries, found, strict=True) if one.hits}

    def _odds(self, states_ND: Tensor, rest: Sequence[int]) -> _Odds:
        """Compute the log probabilities of the N tokens of `rest` from the states [N, D] before them, in pieces."""
        odds = _Odds([], [], [], [], [])
        for start in range(0, len(rest), POSITIONS_AT_ONCE):
            logits_NV = self.forward.logits(states_ND[start : start + POSITIONS_AT_ONCE])
            opens_N = logits_NV[:, self.tokenizer.fact] + self.bias
            self.tokenizer.forbid_markup(logits_NV)
            targets_N = torch.tensor(rest[start : start + len(logits_NV)], device=logits_NV.device)
            plain_N = torch.logsumexp(logits_NV, dim=-1)
            every_N = torch.logaddexp(plain_N, opens_N)
            best = logits_NV.max(dim=-1)
            own_N = logits_NV.gather(1, targets_N[:, None])[:, 0]
            odds.own += (own_N - plain_N).tolist()
            odds.is_likeliest += (best.indices == targets_N).tolist()
            odds.opens += (opens_N - every_N).tolist()
            odds.passes += (plain_N - every_N).tolist()
            odds.opens_greedily += (opens_N > best.values).tolist()
        return odds

    def _stretch(self, rest: Sequence[int], before: str, at: int, value: str) -> int:
        """Count the tokens of `rest`, from index `at`, that spell the value as decoding splices it; 0 if none do."""
        said = self.tokenizer.decode(rest[:at])
        spliced = f" {value}" if self.tokenizer.space_inside and needs_space(before + said) else value
        for end in range(at + 1, len(rest) + 1):
            stretch = self.tokenizer.decode(rest[at:end])
            if stretch == spliced:
                return end - at
            if len(stretch) > len(spliced):
                return 0
        return 0


@dataclass(slots=True)
class _Odds:
    """Log-probabilities at each token: of the token without a lookup, of opening a lookup, and of not opening one."""

    own: list[float]
    is_likeliest: list[bool]
    opens: list[float]
    passes: list[float]
    opens_greedily: list[bool]


class _Walk:
    """A walk over a continuation to the first lookup that gives its tokens with a higher probability, or to the end.

    Then `at` is the place at which that lookup opens and `taken` the number of tokens it gives; 0 at the end.
    """

    def __init__(
        self,
        rest: Sequence[int],
        odds: _Odds,
        values: dict[int, str],
        stretch: Stretch,
        *,
        has_room: bool,
    ) -> None:
        self.rest, self.odds, self.values, self.stretch = rest, odds, values, stretch
        self.has_room = has_room
        self.at = self.taken = 0
        self.logprob, self.is_greedy = 0.0, True

    def go(self) -> None:
        while self.at < len(self.rest) and not self.taken:
            value = self.values.get(self.at)
            width = 0 if value is None else self.stretch(self.at, value)
            if width:
                self._either_way(width)
            else:
                self._score_without_lookup(1, against=value is not None)

    def _score_without_lookup(self, width: int, *, against: bool) -> None:
        """Score `width` tokens without a lookup; with `against` also that no lookup of another value opens."""
        self.logprob += self._own_logprob(width, against)
        self.is_greedy = self.is_greedy and self._is_likeliest(width, against)
        self.at += width

    def _either_way(self, width: int) -> None:
        own, through = self._own_logprob(width, True), self.odds.opens[self.at]
        greedily = self.odds.opens_greedily[self.at]
        self.logprob += float(np.logaddexp(own, through))
        self.is_greedy = self.is_greedy and (greedily or self._is_likeliest(width, True))
        if through > own and self.has_room:
            self.taken = width
        else:
            self.at += width

    def _own_logprob(self, width: int, against: bool) -> float:
        return sum(self.odds.own[self.at : self.at + width]) + against * self.odds.passes[self.at]

    def _is_likeliest(self, width: int, against: bool) -> bool:
        likeliest = all(self.odds.is_likeliest[self.at : self.at + width])
        return likeliest and not (against and self.odds.opens_greedily[self.at])


# Multiple choice by likelihood: the model chooses the text that is likeliest after the context.
#
# Small models do not follow an instruction to name a letter, but any model has likelihoods, hence this
# metric. It is scored as lm_eval does, so that both numbers can be compared: the space before a choice
# belongs to the choice, the normalised score divides by the choice's characters, so that long ones are not at
# a disadvantage, and exemplars are drawn for each item anew.

ITEMS_TOGETHER = 16
Likely = Callable[[Sequence[Pair]], Sequence[Likelihood]]


@dataclass(frozen=True, slots=True)
class Item:
    """A context, the choices that may follow it after a space, and the index of the right one."""

    context: str
    choices: tuple[str, ...]
    answer: int

    @property
    def solved_text(self) -> str:
        return f"{self.context} {self.choices[self.answer]}"


@dataclass(frozen=True, slots=True)
class ScoredChoices:
    """The log-probability of each choice of an item, and whether the likeliest is right, by sum and per character."""

    logprobs: tuple[float, ...]
    is_right: bool
    is_right_by_character: bool


def with_shots(items: Sequence[Item], shots: Sequence[Item], count: int, seed: int) -> Iterator[Item]:
    """Put `count` solved exemplars before each item, drawn from `shots` as lm_eval draws them."""
    rng = random.Random(seed)
    for item in items:
        solved = [shot.solved_text for shot in rng.sample(list(shots), count)] if count else []
        yield replace(item, context="\n\n".join([*solved, item.context]))


def choose(
    checkpoint: Checkpoint, items: Sequence[Item], likely: Likely | None = None
) -> list[ScoredChoices]:
    """Score the choices of each item by `likely`, such as a `WithLookups`; by default without lookups.

    Raises `ValueError` if an item exceeds the model's context.
    """
    chosen: list[ScoredChoices] = []
    for start in range(0, len(items), ITEMS_TOGETHER):
        some = items[start : start + ITEMS_TOGETHER]
        pairs = [
            encode_pair(checkpoint.tokenizer, item.context, f" {choice}")
            for item in some
            for choice in item.choices
        ]
        scores = iter(without_lookups(checkpoint, pairs) if likely is None else likely(pairs))
        chosen += [_score_choices(item, [next(scores).logprob for _ in item.choices]) for item in some]
    return chosen


def _score_choices(item: Item, logprobs: Sequence[float]) -> ScoredChoices:
    by_character = [logprob / len(choice) for logprob, choice in zip(logprobs, item.choices, strict=True)]
    return ScoredChoices(
        logprobs=tuple(logprobs),
        is_right=max(range(len(logprobs)), key=logprobs.__getitem__) == item.answer,
        is_right_by_character=max(range(len(logprobs)), key=by_character.__getitem__) == item.answer,
    )


# The three methods that lm_eval calls on a model, on requests that have only `args`.
#
# This module does not need lm_eval: `lab.harness.model` makes its model class from it. If a text is longer
# than the context, its end is kept, as lm_eval's own model classes do.

MAX_TOKENS = 256
_TAGS = 2  # the tags of a lookup, for which a text that is scored with lookups must leave room
_TOKENS = ("max_gen_toks", "max_tokens", "max_new_tokens", "max_completion_tokens")
_KNOWN = {"until", "do_sample", "temperature", "top_p", "seed", *_TOKENS}

Advance = Callable[[int, int], None]


class HarnessRequest(Protocol):
    @property
    def args(self) -> tuple[Any, ...]: ...


@dataclass(slots=True)
class HarnessResponder:
    """A decoder with or without lookups (`mode` auto or off), which answers the requests of lm_eval in batches."""

    decoder: Decoder
    mode: str = "off"
    batch: int = 16
    threshold: float | None = None
    advance: Advance = lambda done, total: None

    def __post_init__(self) -> None:
        if self.mode not in ("off", "auto"):
            raise ValueError(
                f"there is no scoring in mode {self.mode!r}; choose mode=off, without lookups, or mode=auto, with them"
            )
        if self.mode == "auto" and self.decoder.lookup is None:
            raise ValueError(
                "mode=auto looks facts up, and this decoder has no lookups; give it some, or choose mode=off"
            )

    def loglikelihood(self, requests: Sequence[HarnessRequest]) -> list[tuple[float, bool]]:
        """Give the log-probability of each (context, continuation), and whether greedy decoding gives it."""
        tokenizer = self.decoder.tokenizer
        pairs = [self._cut_pair(*encode_pair(tokenizer, *request.args)) for request in requests]
        return [(one.logprob, one.is_greedy) for one in self._score_pairs(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest]) -> list[float]:
        """Give the log-probability of each whole text, in windows if it is longer than the context."""
        windows = [list(self._windows(*request.args)) for request in requests]
        scored = iter(self._score_pairs([pair for some in windows for pair in some]))
        return [sum(next(scored).logprob for _ in some) for some in windows]

    def generate_until(self, requests: Sequence[HarnessRequest]) -> list[str]:
        """Generate text after each (context, options), up to and without the first of the strings in `until`.

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

    def _score_pairs(self, pairs: Sequence[Pair]) -> Iterator[Likelihood]:
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
        """Give the most tokens of a text that can be scored at once, besides the token that begins it."""
        room = self.decoder.checkpoint.lm.inference.context - 1
        return room - _TAGS if self.mode == "auto" else room

    def _cut_pair(self, before: list[int], after: list[int]) -> Pair:
        after = after[-self._room :]
        return before[max(0, len(before) + len(after) - self._room) :], after

    def _windows(self, text: str) -> Iterator[Pair]:
        """Yield the text's tokens in windows, each token once; the last window has as many tokens before it as fit."""
        ids, room = self.decoder.tokenizer.encode(text), self._room
        yield [], ids[:room]
        for start in range(room, len(ids), room - 1):
            end = min(start + room - 1, len(ids))
            yield ids[max(0, end - room) : start], ids[start:end]

    def _prompt(self, context: str, config: DecodeConfig) -> list[int]:
        room = self.decoder.checkpoint.lm.inference.context - 1 - config.max_tokens
        if room < 1:
            raise ValueError(
                f"{config.max_tokens} tokens to be generated leave no room for a prompt; lower max_gen_toks"
            )
        return self.decoder.tokenizer.encode(context)[-room:]

    def _config(self, options: Mapping[str, Any]) -> DecodeConfig:
        if unknown := sorted(options.keys() - _KNOWN):
            raise ValueError(
                f"gen_kwargs: there is no option {', '.join(unknown)}. Nothing was generated. "
                f"Use {', '.join(sorted(_KNOWN))}"
            )
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
