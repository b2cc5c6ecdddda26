"""How likely texts are after a context: without lookups, or as decoding would say them with lookups.

Without lookups this is what lm_eval scores: the model's own probability, lookups forbidden (`model.decoding.scoring`).

With lookups the context is read as it stands, and the continuation as decoding in mode *auto* at temperature 1 would
say it. Before each of its tokens the model may open a lookup, with its own probability p (the checkpoint's fact bias
included). What the lookup finds decides:

- nothing: the lookup is taken back, and changes nothing;
- a value that the continuation goes on with, token for token: both ways lead there, so that stretch has the
  probability p + (1 - p) q, where q is the model's own for its tokens. What follows is read after the likelier way;
- another value: decoding would say that one instead, so the continuation has what is left, 1 - p.

The paper evaluates understanding by likelihood (5-shot, three seeds of the exemplars) and says nothing of lookups
there; off is comparable with its table, and this is our reading of "with the knowledge base". Lookups that the model
would open with a probability below `LEAST_OPENING` are not made.
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

from colmlm.model.decoding.lookup import Lookup
from colmlm.model.decoding.rows import needs_space
from colmlm.model.decoding.scoring import POSITIONS_AT_ONCE, score
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import FactTokenizer

LEAST_OPENING = 0.01

Pair = tuple[Sequence[int], Sequence[int]]  # the tokens of a context, and of what follows it
Stretch = Callable[[int, str], int]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-probability of a continuation, and whether greedy decoding says it."""

    logprob: float
    is_greedy: bool


def encoded(tokenizer: FactTokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens of a context and of what follows, cut where the context's own end; blanks at its end go over."""
    stripped = context.rstrip()
    before = tokenizer.encode(stripped)
    return before, tokenizer.encode(f"{context}{continuation}")[len(before) :]


def without_lookups(checkpoint: Checkpoint, pairs: Sequence[Pair]) -> list[Likelihood]:
    """The model alone. Raises `ValueError` where a pair exceeds its context."""
    sequences = [checkpoint.tokenizer.prompt([*before, *after]) for before, after in pairs]
    likely = []
    for (_, after), scored in zip(pairs, score(checkpoint, sequences), strict=True):
        own = scored[len(scored) - len(after) :]
        is_greedy = all(one.top[0][0] == one.token for one in own)
        likely.append(Likelihood(sum(one.logprob for one in own), is_greedy))
    return likely


class WithLookups:
    """Scores continuations as decoding with lookups would say them, one after the other."""

    def __init__(self, checkpoint: Checkpoint, lookup: Lookup, *, threshold: float | None = None) -> None:
        markup = checkpoint.tokenizer.markup
        if markup.opens is None or markup.asks is not None:
            raise ValueError(
                f"with lookups only Co-LMLM can be scored, not a model of method {markup.method}"
            )
        self.checkpoint, self.lookup, self.threshold = checkpoint, lookup, threshold
        self.tokenizer, self.llama = checkpoint.tokenizer, checkpoint.lm.inference
        self.bias = float(checkpoint.config.decoding.get("fact_bias", 0.0))

    def __call__(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        """Raises `ValueError` where a pair exceeds the context."""
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
        """Whether the two tags of one more lookup fit."""
        return len(prefix) + len(rest) + 2 <= self.llama.context

    def _read(self, prefix: Sequence[int], rest: Sequence[int]) -> tuple[_Odds, dict[int, str]]:
        """What comes before each token of `rest`: the odds, and the values of the lookups that were made."""
        ids = [*prefix, *rest]
        if len(ids) > self.llama.context:
            raise ValueError(f"{len(ids)} tokens exceed the context of {self.llama.context}")
        cache = self.llama.cache(1)
        states_TD = self.llama.advance(torch.tensor([ids]), [0], cache)[0]
        odds = self._odds(states_TD[len(prefix) - 1 : -1], rest)
        opening = [at for at, opens in enumerate(odds.opens) if opens >= math.log(LEAST_OPENING)]
        queries: dict[int, NDArray[np.float32]] = {}
        for at in reversed(opening):  # each writes over what the cache holds from there on
            opened = torch.tensor([[self.tokenizer.fact]])
            states_1D = self.llama.advance(opened, [len(prefix) + at], cache)[0]
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
        """Shapes: states [N, D] before the N tokens of `rest`; a vocabulary is wide, so not all at once."""
        odds = _Odds([], [], [], [], [])
        for start in range(0, len(rest), POSITIONS_AT_ONCE):
            logits_NV = self.llama.logits(states_ND[start : start + POSITIONS_AT_ONCE])
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
        """How many tokens of `rest` from `at` say the value as decoding would write it there; 0 where they do not."""
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
    """Of each token: the log-probability of saying it without a lookup, of opening one, and of not opening one."""

    own: list[float]
    is_likeliest: list[bool]
    opens: list[float]
    passes: list[float]
    opens_greedily: list[bool]


class _Walk:
    """Goes over a continuation up to the first lookup that it is likelier to be said by, or to its end.

    Then `at` is where that lookup opens and `taken` how many tokens it says; 0 at the end.
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
        """Say tokens without a lookup, `against` one that would have said something else."""
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
