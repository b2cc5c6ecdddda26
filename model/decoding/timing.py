"""The bias on the token that opens a lookup, measured and chosen on held-out text (section 4.7).

The paper finds that a lookup forced before an answer is right more often than one the model decides on, and goes no
further. At temperature 0 the model opens a lookup where that token's logit exceeds all others. The *margin* is by how
much it falls short; a bias above the margin opens a lookup there. So one pass over a text tells for every bias how many
of the text's lookups would be made, and how many would be made elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.decoding.config import DecodeConfig, LookupAsked
from colmlm.model.decoding.decoder import DecodedOutput, Decoder, penalise_seen
from colmlm.model.evaluate.answers import exact_match
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.text.tokens import Encoded

Floats = NDArray[np.float32]
OnDone = Callable[[int], None]

BIASES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_PENALTY = DecodeConfig().repetition_penalty
_POSITIONS = 256  # positions whose logits are held at once


@dataclass(frozen=True, slots=True)
class Margins:
    """By how much a lookup's logit falls short of the greatest: where the text has a lookup, and elsewhere."""

    sites: Floats
    others: Floats

    def site_rate(self, bias: float) -> float:
        """Give the share of a text's lookups that are made with this bias."""
        return float(np.mean(self.sites < bias)) if len(self.sites) else math.nan

    def false_per_100(self, bias: float) -> float:
        """Give the lookups made where the text has none, per 100 tokens of it."""
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
        self, queries_BD: Floats, *, checkpoint_id: str, **asked: Unpack[LookupAsked]
    ) -> list[MemoryFound]:
        """Give the nearest fact of each query if its score reaches the threshold."""
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
class Point:
    """The figures of one bias: which share of a text's lookups is made, how many elsewhere, and how answers score.

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
class Curve:
    """Points by bias over `questions` questions, with the exact match of forced lookups and of none for comparison."""

    documents: int
    sites: int
    positions: int
    questions: int
    threshold: float
    forced_exact_match: float
    off_exact_match: float
    points: tuple[Point, ...]

    def choose(self) -> Point:
        """Choose the smallest bias whose exact match is within one standard error of the best."""
        best = max(point.exact_match for point in self.points)
        error = math.sqrt(best * (1 - best) / self.questions)
        return next(p for p in sorted(self.points, key=lambda p: p.bias) if p.exact_match >= best - error)


@dataclass(frozen=True, slots=True)
class TimedQuestion:
    question: str
    value: str

    @property
    def prompt(self) -> str:
        return f"Question: {self.question}\nAnswer:"


def measure(
    checkpoint: Checkpoint,
    documents: Sequence[AnnotatedDocument],
    *,
    questions: int,
    biases: Sequence[float] = BIASES,
    threshold: float | None = None,
    max_tokens: int = 16,
    batch: int = 16,
    on_done: OnDone = lambda more: None,
) -> Curve:
    """Measure the curve over `documents`, whose facts are the knowledge base, with that many of their questions.

    `threshold` None takes the score that balances refusing facts that are there with accepting others that are not.
    `on_done` is told how many more of `num_steps` are done.
    """
    asked = _spread_evenly(
        [TimedQuestion(s.question, s.value) for d in documents for s in d.facts if s.question], questions
    )
    if not asked:
        raise ValueError("no questions to measure with: the documents have no fact with a question")
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
            Point(
                bias=bias,
                site_rate=margins.site_rate(bias),
                false_per_100=margins.false_per_100(bias),
                answer_rate=float(np.mean(answer_margins < bias)),
                exact_match=_right(asked, made),
                lookups=float(np.mean([len(generation.splices) for generation in made])),
            )
        )
    return Curve(
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
    """Count the steps of `measure`, in the unit that `on_done` is told."""
    available = sum(bool(span.question) for document in documents for span in document.facts)
    return 2 * len(documents) + (len(biases) + 2) * min(questions, available)


def text_margins(
    checkpoint: Checkpoint,
    documents: Iterable[AnnotatedDocument],
    *,
    on_done: OnDone = lambda more: None,
) -> Margins:
    """Measure the margins at every token that the model itself would choose, so none of values and closing tokens."""
    sites: list[Floats] = []
    others: list[Floats] = []
    opens, window = checkpoint.tokenizer.fact, checkpoint.lm.inference.context
    for document in documents:
        encoded = checkpoint.tokenizer.document(document, close=False)
        encoded = Encoded(encoded.ids[:window], (), encoded.masked[:window])
        margins_T = _margins(checkpoint, encoded.ids)[:-1]
        is_site = np.array(encoded.ids[1:]) == opens
        is_chosen = ~np.array(encoded.masked[1:], dtype=bool)
        sites.append(margins_T[is_site])
        others.append(margins_T[is_chosen & ~is_site])
        on_done(1)
    return Margins(np.concatenate(sites), np.concatenate(others))


def prompt_margins(checkpoint: Checkpoint, prompts: Sequence[str]) -> Floats:
    """Measure the margin at the first token after each prompt: [n]."""
    found = [_margins(checkpoint, checkpoint.tokenizer.prompt(prompt))[-1] for prompt in prompts]
    return np.array(found, dtype=np.float32)


@torch.inference_mode()
def _margins(checkpoint: Checkpoint, ids: Sequence[int]) -> Floats:
    """Give [T]: by how much the greatest other logit exceeds that of a lookup, after each token of one text."""
    forward, tokenizer = checkpoint.lm.inference, checkpoint.tokenizer
    ids_T = torch.tensor(ids, device=checkpoint.lm.device)
    states_TD = forward.states(ids_T[None])[0]
    first_V = torch.full((tokenizer.vocabulary_size,), len(ids), device=ids_T.device)
    for at in range(len(ids) - 1, 0, -1):  # the first token, which begins every text, is not penalised
        first_V[ids[at]] = at
    pieces: list[Tensor] = []
    for start in range(0, len(ids), _POSITIONS):
        logits_NV = forward.logits(states_TD[start : start + _POSITIONS])
        wanted_N = logits_NV[:, tokenizer.fact].clone()
        at_N = torch.arange(start, start + len(logits_NV), device=ids_T.device)
        logits_NV = penalise_seen(logits_NV, first_V <= at_N[:, None], _PENALTY)
        logits_NV[:, tokenizer.added] = -math.inf
        pieces.append(logits_NV.max(dim=-1).values - wanted_N)
    margins: Floats = torch.cat(pieces).float().cpu().numpy()
    return margins


def balanced_threshold(
    encoder: KeyEncoder, asked: Sequence[TimedQuestion], keys_KD: Floats, values: Sequence[str]
) -> float:
    """Give the score with the fewest errors: facts refused that are there, and others accepted where they are not.

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


def _right(asked: Sequence[TimedQuestion], made: Sequence[DecodedOutput]) -> float:
    """Give the share of outputs that have the answer in their first characters, ignoring case."""
    return float(np.mean([exact_match(g.output, [a.value]) for a, g in zip(asked, made, strict=True)]))


def _spread_evenly(items: Sequence[TimedQuestion], count: int) -> list[TimedQuestion]:
    """Take at most `count` items, spread evenly over all."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
