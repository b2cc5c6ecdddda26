"""Perplexity of texts with marked facts: static, dynamic and their normalised forms (section 4.2, appendix A.5).

The tokens outside of lookups, M-bar in the paper, are scored. *Static* gives the model the annotator's paraphrase of
each span, or the span itself where it has none; a second static figure gives the text's own spans alone. *Dynamic*
gives the values that its own lookups find. All leave the spans unscored. The normalised forms add the loss of the
opening ``<FACT>`` tokens: dynamic-normalised divides by the same tokens as dynamic, so that the true value lies between
the two; normalised goes with static and divides by all tokens of the text without markup.

The paper does not say how a lookup without a match counts in the dynamic form. Two readings are measured: `nearest`
splices the nearest fact in any case; *gated* takes the lookup back as the decoder does and lets the model say the span
itself, so that its tokens are scored as any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.decoding.config import LookupPort
from colmlm.model.evaluate.run_log import bootstrap
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.lm.past import Cache
from colmlm.model.text.tokens import EncodedText, FactTokenizer, pad_sequences

# Texts with marked facts, read token by token as a decoder would, and the losses of their tokens.
#
# A token's loss is of one of three kinds: not counted (`GIVEN`), summed (`SAID`), or summed separately (`APART`).
# Several texts are read side by side: a text has few tokens between its lookups, and for so few, reading the model's
# weights costs more than multiplying by them.

Query = NDArray[np.float32]  # [dim], unit norm
Find = Callable[[Query], str | None]  # gives the value to splice; None: no match
Splice = Callable[
    [str | None, Sequence[int]], Sequence[int] | None
]  # of what was found, and the text's own span

GIVEN, SAID, APART = range(3)
_DONE = object()


@dataclass(frozen=True, slots=True)
class NearestValue:
    """A lookup of the value of a query's nearest fact, if its score reaches `threshold` (None: the base's own)."""

    lookups: LookupPort
    checkpoint_id: str
    threshold: float | None

    def __call__(self, query: Query) -> str | None:
        return self.find_several(query[None])[0]

    def find_several(self, queries_ND: NDArray[np.float32]) -> list[str | None]:
        """Find the value of each query's nearest fact by one lookup; None for a query without a match."""
        found = self.lookups.find(queries_ND, checkpoint_id=self.checkpoint_id, k=1, threshold=self.threshold)
        return [one.hits[0].value if one.hits else None for one in found]


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A document cut into the stretches outside of lookups (one more than there are spans), and the spans."""

    outside: list[list[int]]
    spans: list[list[int]]

    @classmethod
    def of(cls, encoded: EncodedText, tokenizer: FactTokenizer, room: int) -> MarkedText:
        """Cut the encoded text into its stretches and spans, up to `room` tokens and with whole lookups only."""
        ids = list(encoded.ids)
        outside: list[list[int]] = []
        spans: list[list[int]] = []
        at = 0
        for position in encoded.fact_positions:
            end = ids.index(tokenizer.fact_end, position)
            if end >= room:
                return cls([*outside, ids[at : min(position, room)]], spans)
            outside.append(ids[at:position])
            spans.append(ids[position + 1 : end])
            at = end + 1
        return cls([*outside, ids[at:room]], spans)

    @property
    def num_tokens(self) -> int:
        """Give the number of tokens of the text without markup, and without the first, which no token precedes."""
        return sum(map(len, self.outside)) + sum(map(len, self.spans)) - 1


Course = Iterator[None]  # queues tokens of a reader, and yields when they are to be read


class SequenceReader:
    """A sequence that the model reads, in as few passes as its lookups allow, and the losses of its tokens.

    One that is `after` another continues the sequence that the other has read. `markup_loss` is the part of the losses
    of scored tokens (`SAID`) that is due to the probability of markup tokens.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, without_markup: bool = False, after: SequenceReader | None = None
    ) -> None:
        self.without_markup = without_markup
        self.forward = checkpoint.lm.inference
        self.tokenizer = checkpoint.tokenizer
        self.queued: list[tuple[int, int]] = []
        self.position: int = after.position if after else 0
        self.states: list[Tensor] = list(after.states) if after else []  # [dim] of the last two tokens
        self.took_back = False
        self.looks_up_by: Find | None = None  # by which its last state is looked up before it goes on
        self.value_found: str | None = None
        self.losses = {SAID: 0.0, APART: 0.0}
        self.counts = {SAID: 0, APART: 0}
        self.markup_loss = 0.0

    def queue(self, ids: Sequence[int], kind: int) -> None:
        self.queued += [(token, kind) for token in ids]

    def at_once(self) -> Course:
        """Yield once, after which the queued tokens have been read in one pass."""
        yield

    def with_lookups(self, text: MarkedText, find: Find, splice: Splice) -> Course:
        """Queue a text with its lookups; the loss of each opening token is summed separately.

        `splice` gets what a lookup found and the ids of the text's own span, and gives the ids to splice. If it gives
        None, the lookup is taken back and the span is scored.
        """
        for outside, span in zip(text.outside, text.spans, strict=False):
            self.queue(outside, SAID)
            self.queue([self.tokenizer.fact], APART)
            self.looks_up_by = find
            yield
            self.looks_up_by = None
            if (ids := splice(self.value_found, span)) is None:
                self._take_back()
                self.queue(span, SAID)
            else:
                self.queue([*ids, self.tokenizer.fact_end], GIVEN)
        self.queue(text.outside[-1], SAID)
        yield

    def take_states(self, states_TD: Tensor) -> None:
        """Take the states [T, D] of the queued tokens."""
        self._score(states_TD)
        self.states = [*self.states[-1:], *states_TD[-2:]][-2:]
        self.position += len(self.queued)
        self.queued = []

    def _take_back(self) -> None:
        """Remove the token read last, which opened a lookup; the next token is scored as if it cannot be markup."""
        self.position -= 1
        self.states.pop()
        self.took_back = True

    def _score(self, states_TD: Tensor) -> None:
        """Add the losses of the queued tokens, each from the state before it; the first of a sequence has none."""
        before_TD = torch.cat([*(state[None] for state in self.states[-1:]), states_TD[:-1]])
        queued = self.queued[len(self.queued) - len(before_TD) :]
        rows = [row for row, (_, kind) in enumerate(queued) if kind != GIVEN]
        if not rows:
            return
        logits_NV = self.forward.logits(before_TD[torch.tensor(rows, device=before_TD.device)])
        if self.without_markup:
            self.tokenizer.forbid_markup(logits_NV)
        elif self.took_back and rows[0] == 0:
            self.tokenizer.forbid_markup(logits_NV[:1])
        self.took_back = False
        targets_N = torch.tensor([queued[row][0] for row in rows], device=logits_NV.device)
        losses_N = cross_entropy(logits_NV, targets_N, reduction="none")
        for row, loss, markup in zip(rows, losses_N.tolist(), self._markup_losses(logits_NV), strict=True):
            kind = queued[row][1]
            self.losses[kind] += loss
            self.counts[kind] += 1
            self.markup_loss += markup if kind == SAID else 0.0

    def _markup_losses(self, logits_NV: Tensor) -> list[float]:
        """Give for each row by how many nats a token of text would be likelier if no markup could follow."""
        text_NV = logits_NV.clone()
        self.tokenizer.forbid_markup(text_NV)
        return list((logits_NV.logsumexp(dim=1) - text_NV.logsumexp(dim=1)).tolist())


def read_courses(readers: Sequence[tuple[SequenceReader, Course]], cache: Cache) -> None:
    """Run every reader's course to its end; each reader has a row of the cache, and finished ones are removed."""
    live = list(readers)
    while True:
        _look_up([reader for reader, _ in live])
        staying = [row for row, (_, course) in enumerate(live) if next(course, _DONE) is not _DONE]
        if not staying:
            return
        if len(staying) < len(live):
            cache.keep(staying)
            live = [live[row] for row in staying]
        _advance([reader for reader, _ in live], cache)


def _look_up(readers: Sequence[SequenceReader]) -> None:
    """Find the value for each reader that waits for a lookup; lookups by one `NearestValue` are one call."""
    asking = [reader for reader in readers if reader.looks_up_by is not None]
    if not asking:
        return
    queries_ND = unit(torch.stack([reader.states[-1] for reader in asking])).cpu().numpy()
    for find in {id(reader.looks_up_by): reader.looks_up_by for reader in asking}.values():
        rows = [row for row, reader in enumerate(asking) if reader.looks_up_by is find]
        if isinstance(find, NearestValue):
            values = find.find_several(queries_ND[rows])
        else:
            assert find is not None
            values = [find(queries_ND[row]) for row in rows]
        for row, value in zip(rows, values, strict=True):
            asking[row].value_found = value


def _advance(readers: Sequence[SequenceReader], cache: Cache) -> None:
    """Read the queued tokens of all readers in one pass; the padding of shorter ones is overwritten later."""
    lengths = [len(reader.queued) for reader in readers]
    width = max(lengths)
    if not width:
        return
    ids_BT, _ = pad_sequences([[token for token, _ in reader.queued] for reader in readers], 0)
    states_BTD = readers[0].forward.advance(ids_BT, [reader.position for reader in readers], cache, lengths)
    for states_TD, length, reader in zip(states_BTD, lengths, readers, strict=True):
        reader.take_states(states_TD[:length])


# The losses of answers under a model that may look facts up, from which TOFU's metrics are computed.
#
# The paper scores Co-LMLM "with answer masking" and does not say what that is. Two readings of it are
# measured, and a model without lookups has neither:
#
# - *masked*: tokens of fact spans have no loss, whatever they are. The value that a lookup finds is spliced before the
#   following tokens; without a match it is the answer's own span. Answers that differ only in their facts are then
#   equally likely.
# - *spoken*: a span has no loss where the lookup finds exactly its value; otherwise its tokens have the model's own
#   loss, as in decoding, where a lookup without a match is taken back. Wrong answers then have the loss of their own
#   tokens.


class Masking(StrEnum):
    """The tokens of an answer that are scored. `none` scores all, for a model that makes no lookups."""

    none = "none"
    masked = "masked"
    spoken = "spoken"


Answers = Sequence[tuple[AnnotatedDocument, Masking]]


def answer_losses(
    checkpoint: Checkpoint, question: str, answers: Answers, find: Find | None = None
) -> list[tuple[float, int]]:
    """Give for each answer the summed loss in nats of its scored tokens, with the end of the text, and their number."""
    return losses_of_answers(checkpoint, [(question, answers)], find)[0]


@torch.inference_mode()
def losses_of_answers(
    checkpoint: Checkpoint, asked: Sequence[tuple[str, Answers]], find: Find | None = None
) -> list[list[tuple[float, int]]]:
    """Compute `answer_losses` of the answers of several questions, all read in one batch.

    The answers follow ``Question: ...`` and ``Answer:`` on the next line, which are read once; lookups are made where
    the answers have their facts.
    """
    tokenizer, cache = checkpoint.tokenizer, checkpoint.lm.inference.cache(len(asked))
    prompts = [SequenceReader(checkpoint) for _ in asked]
    for prompt, (question, _) in zip(prompts, asked, strict=True):
        prompt.queue([tokenizer.begin, *tokenizer.encode(f"Question: {question}\nAnswer:")], GIVEN)
    read_courses([(prompt, prompt.at_once()) for prompt in prompts], cache)
    cache.keep([row for row, (_, answers) in enumerate(asked) for _ in answers])
    readers = [
        [
            SequenceReader(checkpoint, without_markup=masking is Masking.none, after=prompt)
            for _, masking in answers
        ]
        for prompt, (_, answers) in zip(prompts, asked, strict=True)
    ]
    courses = [
        (reader, _course(reader, _encode_answer(answer, tokenizer), masking, find))
        for some, (_, answers) in zip(readers, asked, strict=True)
        for reader, (answer, masking) in zip(some, answers, strict=True)
    ]
    read_courses(courses, cache)
    return [[(reader.losses[SAID], reader.counts[SAID]) for reader in some] for some in readers]


def _course(reader: SequenceReader, text: MarkedText, masking: Masking, find: Find | None) -> Course:
    if masking is not Masking.none and find is not None:
        return reader.with_lookups(text, find, _splice(reader.tokenizer, masking))
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue([*outside, *span], SAID)
    reader.queue(text.outside[-1], SAID)
    return reader.at_once()


def _encode_answer(answer: AnnotatedDocument, tokenizer: FactTokenizer) -> MarkedText:
    """Encode the answer as it follows the prompt: after a space, and without the token that begins a text."""
    encoded = tokenizer.spans(" ", answer.text, answer.facts)
    text = MarkedText.of(encoded, tokenizer, len(encoded.ids))
    return MarkedText([text.outside[0][1:], *text.outside[1:]], text.spans)


def _splice(tokenizer: FactTokenizer, masking: Masking) -> Splice:
    def splice(value: str | None, span: Sequence[int]) -> Sequence[int] | None:
        own = tokenizer.decode(span)
        if masking is Masking.spoken:
            return span if value == own.strip() else None
        return span if value is None else _value_ids(tokenizer, value, own)

    return splice


def _value_ids(tokenizer: FactTokenizer, value: str, own: str) -> list[int]:
    """Encode a value for the place of the text's own span."""
    return tokenizer.encode(f" {value}" if own.startswith(" ") else value)


# The forms of perplexity, over one text.


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTally:
    """Sums over one text. Losses are in nats; `right` counts the lookups that found exactly the span's value.

    `markup_loss` is the part of `loss` that is due to the probability of markup tokens.
    """

    loss: float = 0.0
    tokens: int = 0
    opening_loss: float = 0.0
    markup_loss: float = 0.0
    text_tokens: int = 0
    lookups: int = 0
    matched: int = 0
    right: int = 0


@torch.inference_mode()
def static_tally(
    checkpoint: Checkpoint, document: AnnotatedDocument, *, max_tokens: int = 1024, own_spans: bool = False
) -> TextTally:
    """Score the document in one pass, with the annotator's paraphrase of each span given, or with its `own_spans`.

    `matched` counts the spans that have a paraphrase, `right` those of them whose paraphrase is the very span.
    """
    text = _text(checkpoint, document, max_tokens)
    reader, tokenizer = SequenceReader(checkpoint), checkpoint.tokenizer
    answers = [None if own_spans else fact.answer for fact in document.facts[: len(text.spans)]]
    for outside, span, answer in zip(text.outside, text.spans, answers, strict=False):
        reader.queue(outside, SAID)
        reader.queue([tokenizer.fact], APART)
        given = _value_ids(tokenizer, answer, tokenizer.decode(span)) if answer else span
        reader.queue([*given, tokenizer.fact_end], GIVEN)
    reader.queue(text.outside[-1], SAID)
    read_courses([(reader, reader.at_once())], checkpoint.lm.inference.cache(1))
    same = sum(
        fact.answer == fact.value for fact, answer in zip(document.facts, answers, strict=False) if answer
    )
    return replace(_tally(reader, text), matched=sum(map(bool, answers)), right=same)


def dynamic_tallies(
    checkpoint: Checkpoint, document: AnnotatedDocument, finds: Sequence[Find], *, max_tokens: int = 1024
) -> list[TextTally]:
    """Score the document once per `find`, with the values that it gives in place of the document's spans."""
    return dynamic_readings(checkpoint, [document], finds, max_tokens=max_tokens)[0]


@torch.inference_mode()
def dynamic_readings(
    checkpoint: Checkpoint,
    documents: Sequence[AnnotatedDocument],
    finds: Sequence[Find],
    *,
    max_tokens: int = 1024,
) -> list[list[TextTally]]:
    """Compute the `dynamic_tallies` of each document, all read in one batch."""
    read = [
        (SequenceReader(checkpoint), text, find, _Splices(checkpoint.tokenizer))
        for text in (_text(checkpoint, document, max_tokens) for document in documents)
        for find in finds
    ]
    courses = [(reader, reader.with_lookups(text, find, splice)) for reader, text, find, splice in read]
    read_courses(courses, checkpoint.lm.inference.cache(len(read)))
    tallies = [
        replace(_tally(reader, text), matched=splice.matched, right=splice.right)
        for reader, text, _, splice in read
    ]
    return [tallies[start : start + len(finds)] for start in range(0, len(tallies), len(finds))]


@dataclass(slots=True)
class _Splices:
    """A splice of encoded values; it counts the lookups with a match, and those that found exactly the span."""

    tokenizer: FactTokenizer
    matched: int = 0
    right: int = 0

    def __call__(self, value: str | None, span: Sequence[int]) -> list[int] | None:
        if value is None:
            return None
        said = self.tokenizer.decode(span)
        self.matched, self.right = self.matched + 1, self.right + (value == said.strip())
        return _value_ids(self.tokenizer, value, said)


@torch.inference_mode()
def plain_tallies(
    checkpoint: Checkpoint, marked: FactTokenizer, document: AnnotatedDocument, *, max_tokens: int = 1024
) -> tuple[TextTally, TextTally]:
    """Score a model without lookups on the text without markup: all tokens, and only those that Co-LMLM is scored on.

    Both use the same tokens, cut at the spans as `marked`, the other model's tokenizer, cuts them. Leaving out fact
    tokens makes a text easier, so the second is the fair comparison.
    """
    text = MarkedText.of(marked.document(document), marked, max_tokens)
    reader = SequenceReader(checkpoint, without_markup=True)
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, SAID)
        reader.queue(span, APART)
    reader.queue(text.outside[-1], SAID)
    read_courses([(reader, reader.at_once())], checkpoint.lm.inference.cache(1))
    found = _tally(reader, text)
    every = TextTally(
        loss=found.loss + found.opening_loss, tokens=text.num_tokens, text_tokens=text.num_tokens
    )
    return every, replace(found, opening_loss=0.0, lookups=0)


def _text(checkpoint: Checkpoint, document: AnnotatedDocument, max_tokens: int) -> MarkedText:
    room = min(max_tokens, checkpoint.lm.inference.context // 2)  # found values may be longer than the spans
    return MarkedText.of(checkpoint.tokenizer.document(document), checkpoint.tokenizer, room)


def _tally(reader: SequenceReader, text: MarkedText) -> TextTally:
    return TextTally(
        loss=reader.losses[SAID],
        tokens=reader.counts[SAID],
        opening_loss=reader.losses[APART],
        markup_loss=reader.markup_loss,
        text_tokens=text.num_tokens,
        lookups=len(text.spans),
    )


# Perplexities over many documents, of the sums of each.

Sums = tuple[NDArray[np.float64], NDArray[np.float64]]  # for each document: losses in nats, and tokens


@dataclass(slots=True)
class DocumentSums:
    """Each document's tallies by way of reading, by index, and by baseline (`beside`: of all tokens, of the same)."""

    static: list[TextTally]
    own_spans: list[TextTally]
    nearest: list[TextTally]
    gated: list[TextTally]  # empty if that reading is left out
    beside: dict[str, tuple[list[TextTally], list[TextTally]]]
    indexes: dict[str, list[TextTally]]

    def sums(self) -> dict[str, Sums]:
        """Give each document's losses and tokens for every reported figure, by the figure's name."""
        found = {
            "static": _outside(self.static),
            "static_own_spans": _outside(self.own_spans),
            "static_without_markup": _without_markup(self.static),
            "normalised": _with_openings(self.static, by_text=True),
            "dynamic": _outside(self.nearest),
            "dynamic_without_markup": _without_markup(self.nearest),
            "dynamic_normalised": _with_openings(self.nearest),
        }
        if self.gated:
            found["dynamic_gated"] = _outside(self.gated)
            found["dynamic_gated_normalised"] = _with_openings(self.gated)
        for name, tallies in self.indexes.items():
            found[f"dynamic, {name}"] = _outside(tallies)
            found[f"dynamic_normalised, {name}"] = _with_openings(tallies)
        for name, (every, same) in self.beside.items():
            found[f"{name}, all tokens"] = _outside(every)
            found[f"{name}, same tokens"] = _outside(same)
        return found


def _outside(tallies: Sequence[TextTally]) -> Sums:
    return np.array([t.loss for t in tallies]), np.array([t.tokens for t in tallies], dtype=np.float64)


def _without_markup(tallies: Sequence[TextTally]) -> Sums:
    losses_N, tokens_N = _outside(tallies)
    return losses_N - np.array([t.markup_loss for t in tallies]), tokens_N


def opening_probabilities(tallies: Sequence[TextTally]) -> dict[str, float]:
    """Compute the mean probability of ``<FACT>`` before spans, and that of markup elsewhere; means are geometric."""
    spans, tokens = sum(t.lookups for t in tallies), sum(t.tokens for t in tallies)
    opening, markup = sum(t.opening_loss for t in tallies), sum(t.markup_loss for t in tallies)
    return {"at_spans": exp(-opening / max(spans, 1)), "elsewhere": 1 - exp(-markup / max(tokens, 1))}


def _with_openings(tallies: Sequence[TextTally], *, by_text: bool = False) -> Sums:
    losses_N = np.array([t.loss + t.opening_loss for t in tallies])
    tokens_N = np.array([t.text_tokens if by_text else t.tokens for t in tallies], dtype=np.float64)
    return losses_N, tokens_N


def perplexities(sums: dict[str, Sums], documents: int) -> dict[str, dict[str, Any]]:
    """Compute each figure's perplexity over all tokens, so that long documents weigh more, with its 95 % interval."""

    def measure(draw: Callable[[int], NDArray[np.int64]]) -> dict[str, float]:
        rows = draw(documents)
        return {name: _perplexity(losses[rows], tokens[rows]) for name, (losses, tokens) in sums.items()}

    intervals = bootstrap(measure)
    return {
        name: {
            "perplexity": _perplexity(losses, tokens),
            "low": intervals[name][0],
            "high": intervals[name][1],
            "tokens": int(tokens.sum()),
        }
        for name, (losses, tokens) in sums.items()
    }


def _perplexity(losses: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    return float(np.exp(losses.sum() / tokens.sum()))
