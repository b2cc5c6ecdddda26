"""The annotators' models: one finds the fact spans of texts, one writes a question for each (section 3.3)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from colmlm.kb.corpus.format import unstorable_characters
from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from colmlm.model.annotate.checkpoint import QUESTIONS, SPANS, LoadedAnnotator, load_annotator
from colmlm.model.annotate.spans import Wholes, best_tags, spans_of, whole_spans
from colmlm.model.text.markup import STANDARD, Span
from colmlm.model.text.tokens import (
    FactTokenizer,
    Words,
    WordTokenizer,
    WordWindow,
    length_groups,
    pad_sequences,
    windows,
)

# The fact-span annotator: an encoder that tags words as beginning, inside or outside a fact (section 3.3).
#
# Spans are offsets into the given text, so a value is always a stretch of it.


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A text's words and, for each, the log-probabilities of O, B and I: [num_words, 3]."""

    text: str
    words: list[Span]
    log_probs_N3: NDArray[np.float32]
    wholes: Wholes

    def spans(self, threshold: float) -> list[Span]:
        """Give the spans at a threshold: sorted, without overlap, trimmed, and completed to wholes."""
        tagged = spans_of(self.text, self.words, best_tags(self.log_probs_N3, threshold))
        return whole_spans(self.text, tagged, self.wholes)


class SpanAnnotator:
    """Find the facts of texts. `batch_tokens` bounds the padded tokens of a forward."""

    def __init__(
        self, loaded: LoadedAnnotator, *, threshold: float | None = None, batch_tokens: int = 4096
    ) -> None:
        reading = loaded.config.reading
        self.config, self.model, self.device = loaded.config, loaded.model, loaded.device
        self.tokenizer = WordTokenizer.load(loaded.tokenizer_file)
        self.threshold = reading["threshold"] if threshold is None else threshold
        self.window, self.overlap = (
            int(reading["window"]) - 2,
            int(reading["overlap"]),
        )  # without [CLS] and [SEP]
        self.batch_tokens = batch_tokens

    @classmethod
    def load(
        cls, path: Path, cache: Path | None = None, *, threshold: float | None = None, precision: str = "auto"
    ) -> Self:
        """Load an annotator's directory. `cache` holds base models; `threshold` overrides the annotator's own.

        Raises `CheckpointError` and `BaseNotFound`.
        """
        return cls(load_annotator(path, SPANS, cache or Path(), precision=precision), threshold=threshold)

    def spans(self, texts: Sequence[str]) -> list[list[Span]]:
        """Find the fact spans of each text, in code points: sorted, without overlap, never blank."""
        return [tagged.spans(self.threshold) for tagged in self.tag(texts)]

    @torch.inference_mode()
    def tag(self, texts: Sequence[str]) -> list[TaggedText]:
        """Compute the tags' probabilities of every word, from which spans at any threshold follow."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        tagged = [
            TaggedText(text, e.words, np.zeros((len(e.words), 3), dtype=np.float32), Wholes(text))
            for text, e in zip(texts, encoded, strict=True)
        ]
        reads = [(i, w) for i, e in enumerate(encoded) for w in windows(e, self.window, self.overlap)]
        for group in self._groups([window for _, window in reads]):
            batch = [reads[i] for i in group]
            for (i, window), log_probs in zip(batch, self._forward(encoded, batch), strict=True):
                tagged[i].log_probs_N3[window.words.start : window.words.stop] = log_probs
        return tagged

    def _groups(self, reads: Sequence[WordWindow]) -> list[list[int]]:
        return length_groups([w.end - w.start + 2 for w in reads], max_tokens=self.batch_tokens)

    def _forward(
        self, encoded: Sequence[Words], batch: Sequence[tuple[int, WordWindow]]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield for each window the log-probabilities of its words, read at each word's first token."""
        framed = [self.tokenizer.frame_ids(encoded[i].ids[w.start : w.end]) for i, w in batch]
        ids_BT, mask_BT = pad_sequences(framed, self.tokenizer.pad)
        logits_BT3 = self.model(
            input_ids=ids_BT.to(self.device), attention_mask=mask_BT.to(self.device)
        ).logits
        log_probs_BT3 = logits_BT3.float().log_softmax(dim=-1).cpu()
        for row, (i, window) in enumerate(batch):
            at = [encoded[i].first[word] - window.start + 1 for word in window.words]
            yield log_probs_BT3[row, at].numpy()


# The question generator: a decoder that writes, for each marked span, a question that it answers.
#
# A document is encoded once. Its KV cache is copied for every span, each copy visible up to that span's stop (see
# below), and all spans of several documents are decoded as one batch.

BATCH_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text with its title and its spans (sorted, without overlap)."""

    text: str
    spans: Sequence[Span]
    title: str | None = None


@dataclass(slots=True)
class _Row:
    """One span's question during decoding: its place in the results, and the part of the prefix that it sees."""

    passage: int
    span: int
    prefix: int
    stop: int
    suffix: list[int]
    written: list[int] = field(default_factory=list)
    breaks: int = 0
    finished: bool = False


class QuestionGenerator:
    """Write questions, greedily. `batch_tokens` bounds the tokens that a batch of rows keeps in its cache."""

    def __init__(self, loaded: LoadedAnnotator, *, batch_tokens: int = BATCH_TOKENS) -> None:
        reading = loaded.config.reading
        self.config, self.model, self.device = loaded.config, loaded.model, loaded.device
        self.tokenizer = FactTokenizer.load(loaded.tokenizer_file, markup=STANDARD)
        self.window, self.max_new_tokens = int(reading["window"]), int(reading["max_new_tokens"])
        self.batch_tokens = batch_tokens
        eos = loaded.model.config.eos_token_id
        self.ends = {self.tokenizer.end_of_text, *(eos if isinstance(eos, list) else [eos])}
        self.breaks = {
            token: breaks
            for token in range(self.tokenizer.vocabulary_size)
            if (breaks := self.tokenizer.decode([token]).count("\n"))
        }

    @classmethod
    def load(
        cls, path: Path, cache: Path, *, precision: str = "auto", batch_tokens: int = BATCH_TOKENS
    ) -> Self:
        """Load an annotator's directory; `cache` holds base models. Raises `CheckpointError` and `BaseNotFound`."""
        return cls(load_annotator(path, QUESTIONS, cache, precision=precision), batch_tokens=batch_tokens)

    def questions(
        self, text: str, spans: Sequence[Span], title: str | None = None
    ) -> list[GeneratedQuestion | None]:
        """Write a question for each span (sorted, without overlap), or None where the model did not write one."""
        return self.annotate([SpannedText(text, spans, title)])[0]

    def annotate(
        self, passages: Sequence[SpannedText], *, share_prefix: bool = True
    ) -> list[list[GeneratedQuestion | None]]:
        """Write the questions of several documents, decoded together.

        Without `share_prefix` each span's part of the document is read anew; the gain of sharing is measured against
        that.
        """
        found: list[list[GeneratedQuestion | None]] = [[None] * len(p.spans) for p in passages]
        read = [(i, prefix) for i, p in enumerate(passages) for prefix in self._prefixes(p, share_prefix)]
        for group in length_groups([len(p.ids) for _, p in read], waste=0.3, max_tokens=self.batch_tokens):
            batch = [read[i] for i in group]
            for row in self._write(passages, batch):
                if row.finished:
                    found[row.passage][row.span] = parse_question(self.tokenizer.decode(row.written))
        return found

    def _prefixes(self, passage: SpannedText, share_prefix: bool) -> Iterator[Prefix]:
        if not passage.spans:
            return
        for prefix in cut_prefixes(
            mark_spans(self.tokenizer, passage.text, passage.spans, passage.title), self.window
        ):
            yield from [prefix] if share_prefix else prefix_for_each(prefix)

    def _rows(self, passages: Sequence[SpannedText], batch: Sequence[tuple[int, Prefix]]) -> list[_Row]:
        rows: list[_Row] = []
        for at, (i, prefix) in enumerate(batch):
            for span, stop in zip(prefix.spans, prefix.stops, strict=True):
                start, end = passages[i].spans[span]
                asked = question_suffix(self.tokenizer, passages[i].text[start:end], span_number(span))
                rows.append(_Row(i, span, at, stop, asked))
        return rows

    @torch.inference_mode()
    def _write(self, passages: Sequence[SpannedText], batch: Sequence[tuple[int, Prefix]]) -> list[_Row]:
        """Read the prefixes, then write the questions of all their spans, as many at a time as the cache may hold."""
        ids_BT, _ = pad_sequences(
            [prefix.ids for _, prefix in batch], 0
        )  # attention is causal, so padding needs no mask
        cache: Any = DynamicCache()
        self.model.model(input_ids=ids_BT.to(self.device), past_key_values=cache, use_cache=True)
        rows = self._rows(passages, batch)
        width = ids_BT.shape[1]
        longest = width + max(len(row.suffix) for row in rows) + self.max_new_tokens
        size = max(1, self.batch_tokens // longest)
        for at in range(0, len(rows), size):
            self._decode(cache, width, rows[at : at + size])
        return rows

    def _decode(self, prefilled: Any, width: int, rows: list[_Row]) -> None:
        """Decode rows to their ends. Finished rows are removed from the batch once they are half of it."""
        cache = expand_cache(prefilled, torch.tensor([row.prefix for row in rows], device=self.device))
        ids_RT, fed_RT = pad_sequences([row.suffix for row in rows], 0)
        stops_R = torch.tensor([row.stop for row in rows])
        attended_RS = torch.cat([torch.arange(width) < stops_R[:, None], fed_RT.bool()], dim=1)
        positions_RT = stops_R[:, None] + torch.arange(ids_RT.shape[1])
        last_R = fed_RT.sum(dim=1) - 1
        states_RTD = self._advance(ids_RT, attended_RS, positions_RT, cache)
        states_RD = states_RTD[torch.arange(len(rows)), last_R.to(states_RTD.device)]
        next_R = stops_R + last_R + 1
        for _ in range(self.max_new_tokens):
            tokens_R = self.model.lm_head(states_RD).argmax(dim=-1).cpu()
            for row, token in zip(rows, tokens_R.tolist(), strict=True):
                self._take(row, token)
            going = [i for i, row in enumerate(rows) if not row.finished]
            if not going:
                return
            if len(going) <= len(rows) // 2:
                rows = [rows[i] for i in going]
                tokens_R, next_R, attended_RS = tokens_R[going], next_R[going], attended_RS[going]
                cache.batch_select_indices(torch.tensor(going, device=self.device))
            attended_RS = torch.cat([attended_RS, torch.ones(len(rows), 1, dtype=torch.bool)], dim=1)
            states_RD = self._advance(tokens_R[:, None], attended_RS, next_R[:, None], cache)[:, -1]
            next_R = next_R + 1

    def _take(self, row: _Row, token: int) -> None:
        """Add a token to a row, unless the token ends it: at the end of the text, or of its second line."""
        if row.finished:
            return
        if token in self.ends:
            row.finished = True
            return
        row.written.append(token)
        row.breaks += self.breaks.get(token, 0)
        row.finished = row.breaks > 1

    def _advance(self, ids_RT: Tensor, attended_RS: Tensor, positions_RT: Tensor, cache: Any) -> Tensor:
        """Give the [R, T, D] states of the next T tokens of every row; slots that are not attended are masked."""
        output = self.model.model(
            input_ids=ids_RT.to(self.device),
            attention_mask=attended_RS.to(self.device),
            position_ids=positions_RT.to(self.device),
            past_key_values=cache,
            use_cache=True,
        )
        return output.last_hidden_state


def expand_cache(cache: Any, rows_R: Tensor) -> Any:
    """Make a cache whose row i is a copy of row `rows_R[i]` of `cache`, which is not changed."""
    copy: Any = DynamicCache()
    for depth, layer in enumerate(cache.layers):
        copy.update(layer.keys[rows_R], layer.values[rows_R], depth)
    return copy


# The prompts of the question generator and what it writes (section 3.3).
#
# A document is one *prefix*: its title and its text, with the spans marked and numbered::
#
# Peru\n\nThe capital of Peru is [1: Lima]. Its great lake is [2: Titicaca].
#
# To ask about a span, a short *suffix* names it, and the model continues with two lines and the end of the
# text::
#
# \n\n[1: Lima]\nQuestion: What is the capital of Peru?\nAnswer: Lima
#
# A question must not mention what the document tells later, or it would leak a fact that is still to come. So
# a suffix sees the prefix only up to the end of the sentence that holds its span: its *stop*. It is not the
# end of the span, since the subject of a sentence often comes after it ("In <1981> the river rose"). As
# attention is causal, hiding the rest changes nothing in the states before it, and one pass over the prefix
# serves all its spans.

NUMBERS = 99  # numbers begin again after this; a prefix shows fewer spans
LONGEST_SENTENCE = 400  # the most code points after a span that count as its sentence
LONGEST_VALUE = 200
_WRITTEN = re.compile(r"\s*(?P<question>[^\n]*\S)[^\S\n]*\nAnswer:[^\S\n]*(?P<answer>[^\n]*\S)[^\S\n]*")


@dataclass(frozen=True, slots=True)
class GeneratedQuestion:
    """A question that a span answers, and the answer in the form of a snippet."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class MarkedDocument:
    """A document's tokens: the lead of every window of it, its text with the spans marked, and each span's stop.

    `stops[i]` counts the tokens of `ids` that span i may see.
    """

    lead: list[int]
    ids: list[int]
    stops: list[int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that are read once, the spans (by their place in the document) that ask there, and their stops in it."""

    ids: list[int]
    spans: list[int]
    stops: list[int]


def mark_spans(
    tokenizer: FactTokenizer, text: str, spans: Sequence[Span], title: str | None, *, first: int = 1
) -> MarkedDocument:
    """Make the tokens of a document, with `spans` (sorted, without overlap) numbered from `first` on."""
    ends = sentence_stops(text, spans)
    cuts = sorted({0, len(text), *ends, *(offset for span in spans for offset in span)})
    marked = {start: span_number(i, first) for i, (start, _) in enumerate(spans)}
    ids: list[int] = []
    reached: dict[int, int] = {0: 0}
    space = ""
    for start, end in pairwise(cuts):
        piece = text[start:end]
        if start in marked:
            piece = f"{space}[{marked[start]}: {piece}]"
            space = ""
        else:
            piece, space = (piece[:-1], " ") if end in marked and piece.endswith(" ") else (piece, "")
        ids += tokenizer.encode(piece)
        reached[end] = len(ids)
    lead = tokenizer.prompt(f"{title}\n\n" if title else "")
    return MarkedDocument(lead, ids, [reached[end] for end in ends])


def span_number(index: int, first: int = 1) -> int:
    """Give the number that span `index` of a document is marked with."""
    return (index + first - 1) % NUMBERS + 1


def question_suffix(tokenizer: FactTokenizer, value: str, number: int) -> list[int]:
    """Make the tokens that ask about one span."""
    return tokenizer.encode(f"\n\n[{number}: {value[:LONGEST_VALUE]}]\nQuestion:")


def question_target(tokenizer: FactTokenizer, written: GeneratedQuestion) -> list[int]:
    """Make the tokens that the model is to write after a suffix."""
    lines = f" {' '.join(written.question.split())}\nAnswer: {' '.join(written.answer.split())}"
    return [*tokenizer.encode(lines), tokenizer.end_of_text]


def parse_question(written: str) -> GeneratedQuestion | None:
    """Read the question and the answer that the model wrote; give None unless both are there, on their lines."""
    match = _WRITTEN.match(written)
    if match is None or unstorable_characters(match.group()) is not None:
        return None
    return GeneratedQuestion(" ".join(match["question"].split()), " ".join(match["answer"].split()))


def cut_prefixes(marked: MarkedDocument, size: int) -> Iterator[Prefix]:
    """Yield the prefixes of at most `size` tokens in which a document's spans ask; there is mostly one.

    Windows begin at multiples of half a window, and a span asks in the first that reaches its stop, so it sees at least
    half a window of the text before it.
    """
    lead = marked.lead[: size // 4]
    room = size - len(lead)
    half = max(1, room // 2)
    chosen: dict[int, list[int]] = {}
    for span, stop in enumerate(marked.stops):
        start = (stop - room + half) // half * half if stop > room else 0
        chosen.setdefault(start, []).append(span)
    for start, spans in chosen.items():
        stops = [len(lead) + marked.stops[span] - start for span in spans]
        ids = lead + marked.ids[start : max(marked.stops[span] for span in spans)]
        yield Prefix(ids, spans, stops)


def prefix_for_each(prefix: Prefix) -> list[Prefix]:
    """Split a prefix into one for each span, as it would be read without sharing."""
    return [
        Prefix(prefix.ids[:stop], [span], [stop])
        for span, stop in zip(prefix.spans, prefix.stops, strict=True)
    ]


def sentence_stops(text: str, spans: Sequence[Span]) -> list[int]:
    """Find where the sentence that holds each span ends, without the blanks that follow.

    In a long sentence it is `LONGEST_SENTENCE` code points after the span. A stop within another span moves before it.
    """
    ends, starts = sentence_ends(text), [start for start, _ in spans]
    stops: list[int] = []
    for start, end in spans:
        _, sentence = sentence_around(ends, start, end)
        last = min(sentence, end + LONGEST_SENTENCE)
        if last < sentence and " " in text[end:last]:
            last = text.rindex(" ", end, last)
        stop = end + len(text[end:last].rstrip())
        before, other = spans[bisect_left(starts, stop) - 1]
        stops.append(before if stop < other else stop)
    return stops
