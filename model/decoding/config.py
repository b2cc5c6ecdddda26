"""The settings of decoding, and the lookups that it needs as protocols."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from colmlm.model.lm.config import require_fields

MODES = ("auto", "forced", "off")
ON_MISS = ("abstain", "continue")
RANKINGS = ("key", "words", "reader")
Prompt = str | Sequence[int]  # text, or token ids without any token of the markup


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """The settings of decoding. `max_tokens` counts sampled tokens only; spliced ones are not counted (appendix A).

    `mode`: "auto" lets the model decide when to look up, "forced" also looks up once before the first token, "off"
    forbids lookups (the paper's normal, enforced-lookup and no-KB settings). `fact_bias` is added to the logit of a
    lookup in "auto" (None: as calibrated for the checkpoint); `threshold` None means the lookup's own. A hit below
    `least_score` counts as none, so that score only raises the threshold. A text does not end before `min_tokens` (at
    most `max_tokens`). With `until_hit` it ends with the value of its first lookup, if that has a hit.

    `on_miss` says what follows a lookup without a match: "continue" goes on in the model's own words, "abstain" ends
    the output. An output that abstains is cut behind its last hit, however it ends, and is empty without a hit.

    `ranking` says how lookups find facts: by "key" (the query's vector, as in the paper), "words" (also the text's)
    or "reader" (which reads what both find). `accepted_only` and `corpora` limit the facts that they find.
    """

    mode: str = "auto"
    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.2
    stop: tuple[str, ...] = ()
    seed: int = 0
    threshold: float | None = None
    least_score: float | None = None
    min_seq: int | None = None
    fact_bias: float | None = None
    until_hit: bool = False
    on_miss: str = "continue"
    ranking: str = "key"
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()

    @property
    def abstains(self) -> bool:
        return self.on_miss == "abstain"

    @property
    def lookup_options(self) -> DecoderLookupOptions:
        """Give the options that every lookup of an output has."""
        asked: DecoderLookupOptions = {"k": 1, "threshold": self.threshold, "min_seq": self.min_seq}
        if self.ranking != "key":
            asked["ranking"] = self.ranking
        if self.accepted_only:
            asked["accepted_only"] = True
        if self.corpora:
            asked["corpora"] = self.corpora
        return asked

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"there is no mode {self.mode!r}; choose one of {', '.join(MODES)}")
        if self.on_miss not in ON_MISS:
            raise ValueError(f"there is no on_miss {self.on_miss!r}; choose one of {', '.join(ON_MISS)}")
        if self.ranking not in RANKINGS:
            raise ValueError(f"there is no ranking {self.ranking!r}; choose one of {', '.join(RANKINGS)}")
        require_fields(
            self, "positive", lambda value: 0 < value < math.inf, "max_tokens", "repetition_penalty"
        )
        require_fields(self, "finite, and 0 or more", lambda value: 0 <= value < math.inf, "temperature")
        require_fields(self, "above 0 and at most 1", lambda value: 0 < value <= 1, "top_p")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens {self.min_tokens} is not from 0 to max_tokens, {self.max_tokens}; lower it, or raise "
                "max_tokens"
            )
        if self.fact_bias is not None and not math.isfinite(self.fact_bias):
            raise ValueError(f"fact_bias {self.fact_bias} is not a finite number; give one such as 0.5")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed} is no number of 64 bits; give one such as 17")


class FoundFact(Protocol):
    """A hit of a lookup: the fact's id, version and value, and its score."""

    @property
    def fact_id(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def value(self) -> str: ...
    @property
    def score(self) -> float: ...


class LookupResult(Protocol):
    """A query's result: `runner_up` is a live fact's best score, `abstained` the forgotten fact that was nearest."""

    @property
    def hits(self) -> Sequence[FoundFact]: ...
    @property
    def runner_up(self) -> float | None: ...
    @property
    def seq(self) -> int: ...
    @property
    def abstained(self) -> int | None: ...


class DecoderLookupOptions(TypedDict, total=False):
    """The options of a decoder's lookup: it finds the `k` best facts (1) above the `threshold` (None: the base's own).

    `min_seq` is a change that the answer must include. With a `ranking` other than "key" there is one of `texts` for
    each query. With `accepted_only` only accepted facts are found, with `corpora` only facts of these corpora.
    """

    k: int
    threshold: float | None
    min_seq: int | None
    ranking: str
    texts: Sequence[str]
    accepted_only: bool
    corpora: tuple[str, ...]


class LookupPort(Protocol):
    """A knowledge base that finds the best facts for unit-norm queries."""

    def find(
        self, queries_BD: NDArray[np.float32], *, checkpoint_id: str, **asked: Unpack[DecoderLookupOptions]
    ) -> Sequence[LookupResult]:
        """Give one result per query; a result without hits at or above the threshold is *no match*."""
        ...
