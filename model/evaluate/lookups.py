"""The lookups of a decoder: at which bias they are made where a text has one, and what it costs to form a query."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.decoding.config import DecodeConfig, DecoderLookupOptions
from colmlm.model.decoding.decoder import DecodedOutput, Decoder, penalise_seen
from colmlm.model.decoding.rows import MAX_QUERY_TOKENS, QueryEncoder
from colmlm.model.evaluate.answers import exact_match
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit
from colmlm.model.lm.past import Cache
from colmlm.model.text.tokens import EncodedText, send

# The bias on the token that opens a lookup, measured and chosen on held-out text (section 4.7).
#
# The paper finds that a lookup forced before an answer is right more often than one the model decides on, and goes
# no further. At temperature 0 the model opens a lookup where that token's logit exceeds all others. The *margin* is
# by how much it falls short; a bias above the margin opens a lookup there. So one pass over a text tells for every
# bias how many of the text's lookups would be made, and how many would be made elsewhere.

Floats = NDArray[np.float32]
OnDone = Callable[[int], None]

BIASES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_PENALTY = DecodeConfig().repetition_penalty
_POSITIONS = 256  # positions whose logits are held at once


@dataclass(frozen=True, slots=True)
class Margins:
    """The margins by which a lookup's logit falls short of the greatest: where the text has a lookup, and elsewhere."""

    sites: Floats
    others: Floats

    def site_rate(self, bias: float) -> float:
        """Give the share of the texts' lookups that are made if `bias` raises the opening logit; NaN without any."""
        return float(np.mean(self.sites < bias)) if len(self.sites) else math.nan

    def false_per_100(self, bias: float) -> float:
        """Give the number of lookups made where the texts have none, per 100 of their other tokens; NaN without any."""
        return 100 * float(np.mean(self.others < bias)) if len(self.others) else math.nan


@dataclass(frozen=True, slots=True)
class MemoryHit:
    fact_id: int
    version: int
    value: str
    score: float


@dataclass(frozen=True, slots=True)
class MemoryFound:
    hits: tuple[MemoryHit, ...]
    runner_up: float | None
    seq: int = 0
    abstained: int | None = None


class MemoryLookup:
    """A lookup over facts in memory, searched exactly, for a decoder without a knowledge base."""

    def __init__(self, keys_KD: Floats, values: Sequence[str], threshold: float) -> None:
        self.keys_KD, self.values, self.threshold = keys_KD, values, threshold

    def find(
        self, queries_BD: Floats, *, checkpoint_id: str, **asked: Unpack[DecoderLookupOptions]
    ) -> list[MemoryFound]:
        """Find the nearest fact of each query; one whose score is below the threshold is no hit, but the runner-up."""
        threshold = asked.get("threshold")
        least = self.threshold if threshold is None else threshold
        return [self._nearest_fact(scores_K, least) for scores_K in queries_BD @ self.keys_KD.T]

    def _nearest_fact(self, scores_K: Floats, least: float) -> MemoryFound:
        at = int(scores_K.argmax())
        score = float(scores_K[at])
        return (
            MemoryFound((MemoryHit(at + 1, 1, self.values[at], score),), None)
            if score >= least
            else MemoryFound((), score)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasPoint:
    """The figures of one bias: the share of the texts' lookups that are made, those made elsewhere, and answer scores.

    `answer_rate` is the share of answers that begin with a lookup; `exact_match` is the share that have the gold answer
    in their first 100 characters; `lookups` is the mean number of lookups per answer.
    """

    bias: float
    site_rate: float
    false_per_100: float
    answer_rate: float
    exact_match: float
    lookups: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasCurve:
    """Points by bias over `questions` questions, with the exact match of forced lookups and of none for comparison."""

    documents: int
    sites: int
    positions: int
    questions: int
    threshold: float
    forced_exact_match: float
    off_exact_match: float
    points: tuple[BiasPoint, ...]

    def choose(self) -> BiasPoint:
        """Choose the smallest bias whose exact match is within one standard error of the best."""
        best = max(point.exact_match for point in self.points)
        error = math.sqrt(best * (1 - best) / self.questions)
        return next(p for p in sorted(self.points, key=lambda p: p.bias) if p.exact_match >= best - error)


@dataclass(frozen=True, slots=True)
class QuestionWithValue:
    question: str
    value: str

    @property
    def prompt(self) -> str:
        return f"Question: {self.question}\nAnswer:"


def measure_biases(
    checkpoint: Checkpoint,
    documents: Sequence[AnnotatedDocument],
    *,
    questions: int,
    biases: Sequence[float] = BIASES,
    threshold: float | None = None,
    max_tokens: int = 16,
    batch: int = 16,
    on_done: OnDone = lambda more: None,
) -> BiasCurve:
    """Measure the curve over `documents`, whose facts are the knowledge base, by up to `questions` of their questions.

    `threshold` None takes the `balanced_threshold`. `on_done` is called with the number of steps that were done since
    its last call, of `num_steps` in all.
    """
    asked = _spread_evenly(
        [QuestionWithValue(s.question, s.value) for d in documents for s in d.facts if s.question], questions
    )
    if not asked:
        raise ValueError("no questions to measure with; name documents whose facts have some")
    values = [span.value for document in documents for span in document.facts]
    encoder = KeyEncoder(checkpoint)
    keys_KD = np.concatenate(encoder.encode_documents(documents))
    on_done(len(documents))
    if threshold is None:
        threshold = balanced_threshold(encoder, asked, keys_KD, values)
    decoder = Decoder(checkpoint, MemoryLookup(keys_KD, values, threshold))

    def answers(mode: str, bias: float) -> list[DecodedOutput]:
        config = DecodeConfig(mode=mode, max_tokens=max_tokens, fact_bias=bias, stop=("\n",))
        made: list[DecodedOutput] = []
        for at in range(0, len(asked), batch):
            made += decoder.generate([a.prompt for a in asked[at : at + batch]], config)
            on_done(len(asked[at : at + batch]))
        return made

    margins = text_margins(checkpoint, documents, on_done=on_done)
    answer_margins = prompt_margins(checkpoint, [a.prompt for a in asked])
    points = []
    for bias in biases:
        made = answers("auto", bias)
        points.append(
            BiasPoint(
                bias=bias,
                site_rate=margins.site_rate(bias),
                false_per_100=margins.false_per_100(bias),
                answer_rate=float(np.mean(answer_margins < bias)),
                exact_match=_right(asked, made),
                lookups=float(np.mean([len(generation.splices) for generation in made])),
            )
        )
    return BiasCurve(
        documents=len(documents),
        sites=len(margins.sites),
        positions=len(margins.others),
        questions=len(asked),
        threshold=threshold,
        forced_exact_match=_right(asked, answers("forced", 0.0)),
        off_exact_match=_right(asked, answers("off", 0.0)),
        points=tuple(points),
    )


def num_steps(
    documents: Sequence[AnnotatedDocument], questions: int, biases: Sequence[float] = BIASES
) -> int:
    """Count the steps of `measure_biases` whose completion is reported to `on_done`."""
    available = sum(bool(span.question) for document in documents for span in document.facts)
    return 2 * len(documents) + (len(biases) + 2) * min(questions, available)


def text_margins(
    checkpoint: Checkpoint,
    documents: Iterable[AnnotatedDocument],
    *,
    on_done: OnDone = lambda more: None,
) -> Margins:
    """Measure the margins at each token that the model would choose itself, so at none of values and closing tokens."""
    sites: list[Floats] = []
    others: list[Floats] = []
    opens, window = checkpoint.tokenizer.fact, checkpoint.lm.inference.context
    for document in documents:
        encoded = checkpoint.tokenizer.document(document, close=False)
        encoded = EncodedText(encoded.ids[:window], (), encoded.masked[:window])
        margins_T = _margins(checkpoint, encoded.ids)[:-1]
        is_site = np.array(encoded.ids[1:]) == opens
        is_chosen = ~np.array(encoded.masked[1:], dtype=bool)
        sites.append(margins_T[is_site])
        others.append(margins_T[is_chosen & ~is_site])
        on_done(1)
    return Margins(np.concatenate(sites), np.concatenate(others))


def prompt_margins(checkpoint: Checkpoint, prompts: Sequence[str]) -> Floats:
    """Give [n]: right after each prompt, by how much the greatest other logit exceeds that of opening a lookup."""
    found = [_margins(checkpoint, checkpoint.tokenizer.prompt(prompt))[-1] for prompt in prompts]
    return np.array(found, dtype=np.float32)


@torch.inference_mode()
def _margins(checkpoint: Checkpoint, ids: Sequence[int]) -> Floats:
    """Give [T]: after each token of one text, by how much the greatest other logit exceeds that of opening a lookup."""
    forward, tokenizer = checkpoint.lm.inference, checkpoint.tokenizer
    ids_T = torch.tensor(ids, device=checkpoint.lm.device)
    states_TD = forward.states(ids_T[None])[0]
    first = np.full(tokenizer.vocabulary_size, len(ids), dtype=np.int64)
    for at in range(len(ids) - 1, 0, -1):  # the first token, which begins every text, is not penalised
        first[ids[at]] = at
    first_V = send(torch.from_numpy(first), ids_T.device)
    pieces: list[Tensor] = []
    for start in range(0, len(ids), _POSITIONS):
        logits_NV = forward.logits(states_TD[start : start + _POSITIONS])
        wanted_N = logits_NV[:, tokenizer.fact].clone()
        at_N = torch.arange(start, start + len(logits_NV), device=ids_T.device)
        logits_NV = penalise_seen(logits_NV, first_V <= at_N[:, None], _PENALTY)
        tokenizer.forbid_markup(logits_NV)
        pieces.append(logits_NV.max(dim=-1).values - wanted_N)
    margins: Floats = torch.cat(pieces).float().cpu().numpy()
    return margins


def balanced_threshold(
    encoder: KeyEncoder, asked: Sequence[QuestionWithValue], keys_KD: Floats, values: Sequence[str]
) -> float:
    """Find the threshold with the fewest errors: no hit though the fact exists, or a hit though it does not.

    Each question is asked as the decoder asks it: once with all facts, and once as if those of its value were deleted.
    """
    queries_QD = encoder.encode_contexts([a.prompt for a in asked])
    scores_QK = queries_QD @ keys_KD.T
    present = scores_QK.max(axis=1)
    same_QK = np.array([[value == a.value for value in values] for a in asked])
    absent = np.where(same_QK, -1.0, scores_QK).max(axis=1)
    candidates = np.unique(np.concatenate([present, absent]))
    errors = [np.mean(present < least) + np.mean(absent >= least) for least in candidates]
    return float(candidates[int(np.argmin(errors))])


def _right(asked: Sequence[QuestionWithValue], made: Sequence[DecodedOutput]) -> float:
    """Give the share of outputs that have their question's value in their first characters, ignoring case."""
    return float(np.mean([exact_match(g.output, [a.value]) for a, g in zip(asked, made, strict=True)]))


def _spread_evenly(items: Sequence[QuestionWithValue], count: int) -> list[QuestionWithValue]:
    """Take at most `count` of the items, spread evenly over all."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


# The time that it takes to form a query at a lookup (appendix A, measuring per-retrieval overhead).
#
# Free decoding would compare models that look up at other places and as often as they like. So each method forms its
# query at the same gold lookups of annotated documents, from its own form of the text before, whose keys and values
# are already in the cache. The time runs from there to the vector: one forward for Co-LMLM; for a method that asks
# in words the decoding of its query and the encoding of that. The search is the same for all and not measured.


@dataclass(frozen=True, slots=True)
class Site:
    """A lookup marked in a text: the token ids before its opening token, and those of its query if that is in words."""

    prefix: tuple[int, ...]
    query: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FormedQuery:
    """A query: the seconds that writing and encoding it took, its length in tokens, and its vector [dim]."""

    decode: float
    encode: float
    tokens: int
    vector: NDArray[np.float32]


@dataclass(slots=True)
class QueryMaker:
    """A maker of queries with one checkpoint. `encoder` makes vectors of words and is None if the state is the query.

    With `gold` the query marked in the text is written instead of the model's own: the same forwards, with a meaningful
    length even if the model was not trained to ask.
    """

    checkpoint: Checkpoint
    encoder: QueryEncoder | None = None
    gold: bool = False
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if (self.checkpoint.tokenizer.markup.asks is None) != (self.encoder is None):
            raise ValueError(
                "an encoder goes with a method that asks in words, and with no other; give one there alone"
            )
        self.ends = self.checkpoint.end_tokens

    def sites(self, document: AnnotatedDocument) -> list[Site]:
        """Give the sites of a document's lookups that have a question, in order, without those beyond the context."""
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
    def make_query(self, site: Site) -> FormedQuery:
        """Make the query at a site; its time begins when the text before the site is in the cache."""
        forward = self.checkpoint.lm.inference
        cache = forward.cache(1)
        cache.reserve(len(site.prefix) + MAX_QUERY_TOKENS + 1)
        forward.advance(torch.tensor([site.prefix]), [0], cache)
        self._settle()
        started = time.perf_counter()
        state = self._feed_token(self.checkpoint.tokenizer.fact, len(site.prefix), cache)
        if self.encoder is None:
            vector = unit(state)[0].cpu().numpy()
            return FormedQuery(time.perf_counter() - started, 0.0, 0, vector)
        words = self._write(state, site, cache)
        self._settle()
        decoded = time.perf_counter()
        (vector,) = self.encoder.encode_questions([self.checkpoint.tokenizer.query_in_words(words)])
        return FormedQuery(decoded - started, time.perf_counter() - decoded, len(words), vector)

    def _write(self, state_1D: torch.Tensor, site: Site, cache: Cache) -> list[int]:
        """Decode the query in words from the state at its opening token; give its tokens up to its closing token."""
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
            state_1D = self._feed_token(said, len(site.prefix) + len(words), cache)
        return words

    def _feed_token(self, token: int, position: int, cache: Cache) -> torch.Tensor:
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


def measure_query_cost(
    state: QueryMaker,
    words: QueryMaker,
    documents: Sequence[AnnotatedDocument],
    *,
    sites: int,
    done: Callable[[int], None] = lambda _: None,
) -> QueryCost:
    """Measure the time to form a query by both methods, in turns at the first `sites` lookups of the documents.

    One site is measured twice to warm up. Raises `ValueError` if there is no site.
    """
    ours: list[float] = []
    theirs: list[FormedQuery] = []
    lengths: list[int] = []
    for number, (mine, other) in enumerate(_shared_sites(state, words, documents)):
        if number == 0:
            state.make_query(mine), words.make_query(other)
        if number == sites:
            break
        ours.append(state.make_query(mine).decode)
        theirs.append(words.make_query(other))
        lengths.append(len(other.prefix))
        done(number + 1)
    if not ours:
        raise ValueError("no document has a fact with a question; annotate some with questions")
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


def _shared_sites(
    state: QueryMaker, words: QueryMaker, documents: Sequence[AnnotatedDocument]
) -> Iterator[tuple[Site, Site]]:
    """Yield each lookup as the site of both methods, if it fits the context of both."""
    for document in documents:
        yield from zip(state.sites(document), words.sites(document), strict=False)


def _median_ms(seconds: Sequence[float]) -> float:
    return round(1000 * float(np.median(seconds)), 4)
