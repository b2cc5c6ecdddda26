"""The likelihood of continuations after a context, without lookups or as decoding with lookups would give them.

Without lookups this is the score of lm_eval: the model's own probability, lookups forbidden (`model.decoding.scoring`).

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.model.decoding.lookup import LookupPort
from colmlm.model.decoding.rows import needs_space
from colmlm.model.decoding.scoring import POSITIONS_AT_ONCE, score
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import FactTokenizer

LEAST_OPENING = 0.01

Pair = tuple[Sequence[int], Sequence[int]]  # the tokens of a context, and of its continuation
Stretch = Callable[[int, str], int]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-probability of a continuation, and whether greedy decoding gives it."""

    logprob: float
    is_greedy: bool


def encoded(tokenizer: FactTokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encodes a context and its continuation, cut where the context's tokens end; its last blanks go to the latter."""
    stripped = context.rstrip()
    before = tokenizer.encode(stripped)
    return before, tokenizer.encode(f"{context}{continuation}")[len(before) :]


def without_lookups(checkpoint: Checkpoint, pairs: Sequence[Pair]) -> list[Likelihood]:
    """Scores with the model alone. Raises `ValueError` if a pair exceeds its context."""
    sequences = [checkpoint.tokenizer.prompt([*before, *after]) for before, after in pairs]
    likely = []
    for (_, after), scored in zip(pairs, score(checkpoint, sequences), strict=True):
        own = scored[len(scored) - len(after) :]
        is_greedy = all(one.top[0][0] == one.token for one in own)
        likely.append(Likelihood(sum(one.logprob for one in own), is_greedy))
    return likely


class WithLookups:
    """Scores continuations as decoding with lookups would give them, one after the other."""

    def __init__(self, checkpoint: Checkpoint, lookup: LookupPort, *, threshold: float | None = None) -> None:
        markup = checkpoint.tokenizer.markup
        if markup.opens is None or markup.asks is not None:
            raise ValueError(
                f"with lookups only Co-LMLM can be scored, not a model of method {markup.method}"
            )
        self.checkpoint, self.lookup, self.threshold = checkpoint, lookup, threshold
        self.tokenizer, self.forward = checkpoint.tokenizer, checkpoint.lm.inference
        self.bias = float(checkpoint.config.decoding.get("fact_bias", 0.0))

    def __call__(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        """Scores the pairs. Raises `ValueError` if one exceeds the context."""
        return [self._likelihood(before, after) for before, after in pairs]

    @torch.inference_mode()
    def _likelihood(self, before: Sequence[int], after: Sequence[int]) -> Likelihood:
        prefix, rest = self.tokenizer.prompt(before), list(after)
        logprob, is_greedy = 0.0, True
        while rest:
            odds, values = self._read(prefix, rest)
            stretch = partial(self._stretch, rest, self.tokenizer.decode(prefix))
            step = _Walk(rest, odds, values, stretch, has_room=self._room(prefix, rest))
            step.go()
            logprob, is_greedy = logprob + step.logprob, is_greedy and step.is_greedy
            if step.taken:
                at, end = step.at, step.at + step.taken
                lookup = [self.tokenizer.fact, *rest[at:end], self.tokenizer.fact_end]
                prefix, rest = [*prefix, *rest[:at], *lookup], rest[end:]
            else:
                rest = []
        return Likelihood(logprob, is_greedy)

    def _room(self, prefix: Sequence[int], rest: Sequence[int]) -> bool:
        """Tells whether the two tags of one more lookup fit."""
        return len(prefix) + len(rest) + 2 <= self.forward.context

    def _read(self, prefix: Sequence[int], rest: Sequence[int]) -> tuple[_Odds, dict[int, str]]:
        """Reads `rest` after `prefix`; gives the odds before each token, and the values that lookups found."""
        ids = [*prefix, *rest]
        if len(ids) > self.forward.context:
            raise ValueError(f"{len(ids)} tokens exceed the context of {self.forward.context}")
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
        """Computes the odds from the states [N, D] before the N tokens of `rest`, in pieces to save memory."""
        odds = _Odds([], [], [], [], [])
        for start in range(0, len(rest), POSITIONS_AT_ONCE):
            logits_NV = self.forward.logits(states_ND[start : start + POSITIONS_AT_ONCE])
            opens_N = logits_NV[:, self.tokenizer.fact] + self.bias
            logits_NV[:, self.tokenizer.added] = -math.inf
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
        """Counts the tokens of `rest` from `at` that say the value as decoding would splice it; 0 if they do not."""
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
    """Log-probabilities at each token: of saying it without a lookup, of opening a lookup, and of not opening one."""

    own: list[float]
    is_likeliest: list[bool]
    opens: list[float]
    passes: list[float]
    opens_greedily: list[bool]


class _Walk:
    """Walks over a continuation up to the first lookup that gives its tokens with a higher probability, or to the end.

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
                self._say(1, against=value is not None)

    def _say(self, width: int, *, against: bool) -> None:
        """Scores tokens without a lookup; with `against` also that no lookup with another value opens."""
        self.logprob += self._own(width, against)
        self.is_greedy = self.is_greedy and self._is_likeliest(width, against)
        self.at += width

    def _either_way(self, width: int) -> None:
        own, through = self._own(width, True), self.odds.opens[self.at]
        greedily = self.odds.opens_greedily[self.at]
        self.logprob += float(np.logaddexp(own, through))
        self.is_greedy = self.is_greedy and (greedily or self._is_likeliest(width, True))
        if through > own and self.has_room:
            self.taken = width
        else:
            self.at += width

    def _own(self, width: int, against: bool) -> float:
        return sum(self.odds.own[self.at : self.at + width]) + against * self.odds.passes[self.at]

    def _is_likeliest(self, width: int, against: bool) -> bool:
        likeliest = all(self.odds.is_likeliest[self.at : self.at + width])
        return likeliest and not (against and self.odds.opens_greedily[self.at])
