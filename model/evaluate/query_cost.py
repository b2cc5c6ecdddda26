"""The time that it takes to form a query at a lookup (appendix A, measuring per-retrieval overhead).

Free decoding would compare models that look up at other places and as often as they like. So each method forms its
query at the same gold lookups of annotated documents, from its own form of the text before, whose keys and values are
already in the cache. The time runs from there to the vector: one forward for Co-LMLM; for a method that asks in words
the decoding of its query and the encoding of that. The search is the same for all and not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.decoding.rows import MAX_QUERY_TOKENS, QueryEncoder
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.lm.past import RowCache


@dataclass(frozen=True, slots=True)
class Site:
    """A gold lookup as one method reads it: the ids before its opening token, and those of its gold query."""

    prefix: tuple[int, ...]
    query: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Formed:
    """One query: the seconds to decode and to encode it, its number of tokens in words, and the vector [dim]."""

    decode: float
    encode: float
    tokens: int
    vector: NDArray[np.float32]


@dataclass(slots=True)
class Former:
    """Form queries with one checkpoint. `encoder` makes vectors of words and is None if the state is the query.

    With `gold` the gold query is written instead of the model's own: the same forwards, with a meaningful length even
    if the model was not trained to ask.
    """

    checkpoint: Checkpoint
    encoder: QueryEncoder | None = None
    gold: bool = False
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if (self.checkpoint.tokenizer.markup.asks is None) != (self.encoder is None):
            raise ValueError("an encoder goes with a method that asks in words, and with no other")
        self.ends = self.checkpoint.end_tokens

    def sites(self, document: AnnotatedDocument) -> list[Site]:
        """Give the lookups of a document that have a question, in order, without those beyond the context."""
        tokenizer = self.checkpoint.tokenizer
        encoded = tokenizer.document(document, close=False)
        in_words = tokenizer.markup.asks is not None
        asked = [span for span in document.facts if span.question or not in_words]
        room = self.checkpoint.lm.inference.context - MAX_QUERY_TOKENS - 1
        found = []
        for span, position in zip(asked, encoded.fact_positions, strict=True):
            if span.question and position <= room:
                query = encoded.ids[position + 1 :]
                length = query.index(tokenizer.id_of(tokenizer.markup.asks)) if in_words else 0
                found.append(Site(encoded.ids[:position], query[:length]))
        return found

    @torch.inference_mode()
    def form(self, site: Site) -> Formed:
        """Form the query at a site; the time begins once the text before it is in the cache."""
        forward = self.checkpoint.lm.inference
        cache = forward.cache(1)
        cache.reserve(len(site.prefix) + MAX_QUERY_TOKENS + 1)
        forward.advance(torch.tensor([site.prefix]), [0], cache)
        self._settle()
        started = time.perf_counter()
        state = self._feed(self.checkpoint.tokenizer.fact, len(site.prefix), cache)
        if self.encoder is None:
            vector = unit(state)[0].cpu().numpy()
            return Formed(time.perf_counter() - started, 0.0, 0, vector)
        words = self._write(state, site, cache)
        self._settle()
        decoded = time.perf_counter()
        (vector,) = self.encoder.encode_questions([self.checkpoint.tokenizer.query_in_words(words)])
        return Formed(decoded - started, time.perf_counter() - decoded, len(words), vector)

    def _write(self, state_1D: torch.Tensor, site: Site, cache: RowCache) -> list[int]:
        """Decode the query up to the token that ends it."""
        tokenizer, forward = self.checkpoint.tokenizer, self.checkpoint.lm.inference
        closes = tokenizer.id_of(tokenizer.markup.asks)
        words: list[int] = []
        while len(words) < MAX_QUERY_TOKENS:
            said = int(forward.logits(state_1D).argmax())
            if self.gold:
                said = site.query[len(words)] if len(words) < len(site.query) else closes
            if said == closes or said in self.ends:
                break
            words.append(said)
            state_1D = self._feed(said, len(site.prefix) + len(words), cache)
        return words

    def _feed(self, token: int, position: int, cache: RowCache) -> torch.Tensor:
        return self.checkpoint.lm.inference.advance(torch.tensor([[token]]), [position], cache)[:, -1]

    def _settle(self) -> None:
        """Wait for the accelerator, if there is one, since its work is asynchronous."""
        if self.checkpoint.lm.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class QueryCost:
    """Medians over the sites, in milliseconds. `vs_state` is the ratio to Co-LMLM's time at the same sites."""

    sites: int
    prefix_tokens: float
    query_tokens: float
    query_tokens_mean: float
    query: str
    decode_ms: float
    encode_ms: float
    total_ms: float
    state_ms: float
    vs_state: float


def measure(
    state: Former,
    words: Former,
    documents: Sequence[AnnotatedDocument],
    *,
    sites: int,
    done: Callable[[int], None] = lambda _: None,
) -> QueryCost:
    """Measure both methods in turns at the same sites, the first `sites` of these documents.

    One site is measured twice to warm up. Raises `ValueError` if there is no site.
    """
    ours: list[float] = []
    theirs: list[Formed] = []
    lengths: list[int] = []
    for number, (mine, other) in enumerate(_pairs(state, words, documents)):
        if number == 0:
            state.form(mine), words.form(other)
        if number == sites:
            break
        ours.append(state.form(mine).decode)
        theirs.append(words.form(other))
        lengths.append(len(other.prefix))
        done(number + 1)
    if not ours:
        raise ValueError("no document has a fact with a question to form a query for")
    total = _median_ms([formed.decode + formed.encode for formed in theirs])
    tokens = [formed.tokens for formed in theirs]
    return QueryCost(
        sites=len(ours),
        prefix_tokens=float(np.median(lengths)),
        query_tokens=float(np.median(tokens)),
        query_tokens_mean=round(float(np.mean(tokens)), 2),
        query="gold" if words.gold else "decoded",
        decode_ms=_median_ms([formed.decode for formed in theirs]),
        encode_ms=_median_ms([formed.encode for formed in theirs]),
        total_ms=total,
        state_ms=_median_ms(ours),
        vs_state=round(total / _median_ms(ours), 2),
    )


def _pairs(
    state: Former, words: Former, documents: Sequence[AnnotatedDocument]
) -> Iterator[tuple[Site, Site]]:
    """Yield the sites that fit the context of both methods."""
    for document in documents:
        yield from zip(state.sites(document), words.sites(document), strict=False)


def _median_ms(seconds: Sequence[float]) -> float:
    return round(1000 * float(np.median(seconds)), 4)
