"""The annotators' models: one finds the fact spans of texts, one writes a question for each (section 3.3)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.kb.corpus.format import unstorable_characters
from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from colmlm.model.annotate.checkpoint import QUESTIONS, SPANS, LoadedAnnotator, load_annotator
from colmlm.model.annotate.spans import SpannedText, Wholes, best_tags, spans_of, whole_spans
from colmlm.model.lm.language_model import FactLM
from colmlm.model.lm.past import FEWEST_ROWS, Cache, StaticSteps
from colmlm.model.text.markup import STANDARD, Span
from colmlm.model.text.tokens import (
    FactTokenizer,
    PaddedBatch,
    WordTokenizer,
    fixed_length,
    length_batches,
    pad_sequences,
    send,
    tokens_at_once,
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
        """Give the fact spans at a `threshold` in (0, 1) (`best_tags`): sorted, disjoint, completed to wholes."""
        tagged = spans_of(self.text, self.words, best_tags(self.log_probs_N3, threshold))
        return whole_spans(self.text, tagged, self.wholes)


class SpanAnnotator:
    """A finder of facts. `batch_tokens` bounds the padded tokens of a forward (None: what suits the device)."""

    def __init__(
        self, loaded: LoadedAnnotator, *, threshold: float | None = None, batch_tokens: int | None = None
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

        Raises `CheckpointError` if the directory is not usable, and `BaseNotFound` if its base is missing.
        """
        return cls(load_annotator(path, SPANS, cache or Path(), precision=precision), threshold=threshold)

    def spans(self, texts: Sequence[str]) -> list[list[Span]]:
        """Find the fact spans of each text, in code points: sorted, without overlap, never blank."""
        return [tagged.spans(self.threshold) for tagged in self.tag(texts)]

    @torch.inference_mode()
    def tag(self, texts: Sequence[str]) -> list[TaggedText]:
        """Compute the tag probabilities of every word of each text, from which spans at any threshold follow."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        tagged = [
            TaggedText(text, e.words, np.zeros((len(e.words), 3), dtype=np.float32), Wholes(text))
            for text, e in zip(texts, encoded, strict=True)
        ]
        reads = [(i, w) for i, e in enumerate(encoded) for w in windows(e, self.window, self.overlap)]
        framed = [self.tokenizer.frame_ids(encoded[i].ids[w.start : w.end]) for i, w in reads]
        for batch in length_batches(
            list(map(len, framed)), device=self.device, max_tokens=self.batch_tokens, longest=self.window + 2
        ):
            for n, log_probs_T3 in zip(batch.numbers, self._log_probs(framed, batch), strict=False):
                i, window = reads[n]
                at = [encoded[i].first[word] - window.start + 1 for word in window.words]
                tagged[i].log_probs_N3[window.words.start : window.words.stop] = log_probs_T3[at]
        return tagged

    def _log_probs(self, framed: Sequence[list[int]], batch: PaddedBatch) -> NDArray[np.float32]:
        """Compute the log-probabilities of the tags of each token of a batch, [rows, width, 3]."""
        logits_BT3 = self.model(
            input_ids=batch.pad(framed, self.tokenizer.pad, self.device),
            attention_mask=batch.mask(list(map(len, framed)), self.device),
        ).logits
        log_probs_BT3: NDArray[np.float32] = logits_BT3.float().log_softmax(dim=-1).cpu().numpy()
        return log_probs_BT3


# The question generator: a decoder that writes, for each marked span, a question that it answers.
#
# A document is encoded once. Its keys and values are copied for every span, up to that span's stop (see below), and
# questions are written side by side in the rows of one cache, whose size is fixed. A row whose question is finished
# takes the next span, so that spans of thousands of documents can be asked about in one go. The longest prefixes come
# first, so rows are of similar length.

BATCH_TOKENS = 16_384
BATCH_TOKENS_ON_DEVICE = 131_072
MOST_ROWS = 512
_ENTRY = 4  # spans enter together, once this part of the rows is free


def documents_together(device: torch.device) -> int:
    """Give the number of documents to ask about in one call: an accelerator takes hundreds of spans at once."""
    return 8 if device.type == "cpu" else 256


@dataclass(slots=True)
class _QuestionRow:
    """One span's question during decoding: its place in the results, and how much of its prefix it sees."""

    passage: int
    span: int
    stop: int
    suffix: list[int]
    written: list[int] = field(default_factory=list)
    breaks: int = 0
    finished: bool = False

    @property
    def position(self) -> int:
        """Give the position of the token written last."""
        return self.stop + len(self.suffix) + len(self.written) - 1


class QuestionGenerator:
    """A greedy writer of questions. `batch_tokens` bounds the tokens of a cache (None: as many as suit the device)."""

    def __init__(self, loaded: LoadedAnnotator, *, batch_tokens: int | None = None) -> None:
        reading = loaded.config.reading
        self.config, self.model, self.device = loaded.config, loaded.model, loaded.device
        self.lm = FactLM(loaded.model, compute=torch.float32)
        self.tokenizer = FactTokenizer.load(loaded.tokenizer_file, markup=STANDARD)
        self.window, self.max_new_tokens = int(reading["window"]), int(reading["max_new_tokens"])
        usual = BATCH_TOKENS if self.device.type == "cpu" else BATCH_TOKENS_ON_DEVICE
        self.batch_tokens = usual if batch_tokens is None else batch_tokens
        self._steps: StaticSteps | None = None
        eos = loaded.model.config.eos_token_id
        self.ends = {self.tokenizer.end_of_text, *(eos if isinstance(eos, list) else [eos])}
        self.breaks = {
            token: breaks
            for token in range(self.tokenizer.vocabulary_size)
            if (breaks := self.tokenizer.decode([token]).count("\n"))
        }

    @classmethod
    def load(
        cls, path: Path, cache: Path, *, precision: str = "auto", batch_tokens: int | None = None
    ) -> Self:
        """Load an annotator's directory; `cache` holds base models. Raises what `SpanAnnotator.load` raises."""
        return cls(load_annotator(path, QUESTIONS, cache, precision=precision), batch_tokens=batch_tokens)

    def questions(
        self, text: str, spans: Sequence[Span], title: str | None = None
    ) -> list[GeneratedQuestion | None]:
        """Write a question for each span (sorted, without overlap), or None where the model did not write one."""
        return self.annotate([SpannedText(text, spans, title)])[0]

    @torch.inference_mode()
    def annotate(
        self, passages: Sequence[SpannedText], *, share_prefix: bool = True
    ) -> list[list[GeneratedQuestion | None]]:
        """Write a question for each span of several documents, decoded together; None where the model wrote none.

        Without `share_prefix` each span's part of the document is read again, to measure what sharing the prefix gains.
        """
        found: list[list[GeneratedQuestion | None]] = [[None] * len(p.spans) for p in passages]
        read = [(i, prefix) for i, p in enumerate(passages) for prefix in self._prefixes(p, share_prefix)]
        if read:
            writing = QuestionsBeingWritten(self, self._suffixes(passages, read))
            for row in writing.run(self._read_prefixes(read)):
                found[row.passage][row.span] = parse_question(self.tokenizer.decode(row.written))
        return found

    def _prefixes(self, passage: SpannedText, share_prefix: bool) -> Iterator[Prefix]:
        if not passage.spans:
            return
        for prefix in cut_prefixes(
            mark_spans(self.tokenizer, passage.text, passage.spans, passage.title), self.window
        ):
            yield from [prefix] if share_prefix else prefix_for_each(prefix)

    def _suffixes(
        self, passages: Sequence[SpannedText], read: Sequence[tuple[int, Prefix]]
    ) -> list[list[_QuestionRow]]:
        """Make the rows of each prefix, one for each span whose question is asked after it."""
        asked: list[list[_QuestionRow]] = []
        for i, prefix in read:
            asked.append([])
            for span, stop in zip(prefix.spans, prefix.stops, strict=True):
                start, end = passages[i].spans[span]
                suffix = question_suffix(self.tokenizer, passages[i].text[start:end], span_number(span))
                asked[-1].append(_QuestionRow(i, span, stop, suffix))
        return asked

    def static_steps(self, slots: int, spans: int) -> StaticSteps:
        """Give the decoding steps over a cache of `slots` tokens a row; each step gives every row's likeliest token.

        On an accelerator the former call's steps are used again, with recorded graphs, if their cache is long enough.
        """
        forward, most = self.lm.inference, max(FEWEST_ROWS, min(MOST_ROWS, self.batch_tokens // slots))
        if self._steps is not None and self._steps.forward is forward and self._steps.cache.slots >= slots:
            return self._steps
        is_kept = self.device.type != "cpu"
        cache = forward.cache(most if is_kept else max(FEWEST_ROWS, min(most, spans)))
        cache.reserve(slots, spare=False)
        steps = StaticSteps(forward, cache, lambda states_RD: forward.logits(states_RD).argmax(dim=-1))
        if is_kept:
            self._steps = steps
        return steps

    def _read_prefixes(self, read: Sequence[tuple[int, Prefix]]) -> Iterator[tuple[int, Cache, int]]:
        """Read the prefixes, longest first; yield each one's number with the cache and the row that hold it."""
        forward, ids = self.lm.inference, [prefix.ids for _, prefix in read]
        for batch in length_batches(
            list(map(len, ids)), device=self.device,
            max_tokens=min(self.batch_tokens, tokens_at_once(self.device)), longest=forward.context,
        ):  # fmt: skip
            cache = forward.cache(batch.rows)
            cache.reserve(batch.width, spare=False)
            forward.advance(batch.pad(ids, 0, self.device), [0] * batch.rows, cache)
            yield from ((number, cache, row) for row, number in enumerate(batch.numbers))


class QuestionsBeingWritten:
    """The rows of one cache in which questions are written; `asked` are the rows of each prefix."""

    def __init__(self, generator: QuestionGenerator, asked: Sequence[Sequence[_QuestionRow]]) -> None:
        self.generator, self.asked, self.forward = generator, asked, generator.lm.inference
        longest = max(row.stop + len(row.suffix) for rows in asked for row in rows)
        slots = fixed_length(longest + generator.max_new_tokens)
        self.steps = generator.static_steps(slots, sum(map(len, asked)))
        self.cache = self.steps.cache
        self.live: list[_QuestionRow | None] = [None] * self.cache.rows
        self.done: list[_QuestionRow] = []

    def run(self, prefixes: Iterator[tuple[int, Cache, int]]) -> Iterator[_QuestionRow]:
        """Write all questions; yield each row whose question was finished within `max_new_tokens`."""
        waiting = ((row, cache, at) for number, cache, at in prefixes for row in self.asked[number])
        following = next(waiting, None)
        while following is not None or any(self.live):
            free = [place for place, row in enumerate(self.live) if row is None]
            if following is not None and len(free) * _ENTRY >= len(self.live):
                entering = []
                for place in free:
                    if following is not None:
                        row, cache, at = following
                        self.cache.copy_row(place, cache, at, row.stop)
                        entering.append((place, row))
                        following = next(waiting, None)
                self._enter(entering)
            if following is None:
                self._move_together()
            if any(self.live):
                self._step()
            yield from self.done
            self.done = []

    def _enter(self, entering: Sequence[tuple[int, _QuestionRow]]) -> None:
        """Feed the suffixes of the rows `entering`, and add the first token that the model writes to each."""
        ids_BT, _ = pad_sequences([row.suffix for _, row in entering], 0)
        lengths = [len(row.suffix) for _, row in entering]
        states_BTD = self.forward.advance(
            send(ids_BT, self.generator.device), [row.stop for _, row in entering], self.cache, lengths,
            [place for place, _ in entering],
        )  # fmt: skip
        last_2B = torch.tensor(
            [list(range(len(entering))), [length - 1 for length in lengths]], device=states_BTD.device
        )
        tokens_B = self.steps.finish(states_BTD[last_2B[0], last_2B[1]])
        for (place, row), token in zip(entering, tokens_B.tolist(), strict=True):
            self.live[place] = row
            self._add_token(place, row, token)

    def _step(self) -> None:
        """Feed each row the token that it wrote last, and add the next token to it."""
        ids = [row.written[-1] if row else 0 for row in self.live]
        positions = [row.position if row else 0 for row in self.live]
        end = min(self.cache.slots, fixed_length(max(positions) + 1))
        for (place, row), token in zip(
            enumerate(self.live), self.steps(ids, positions, end).tolist(), strict=True
        ):
            if row is not None:
                self._add_token(place, row, token)

    def _add_token(self, place: int, row: _QuestionRow, token: int) -> None:
        """Add a token to a row, unless it ends the text; free the place of a row that is finished or at its limit."""
        generator = self.generator
        if token in generator.ends:
            row.finished = True
        else:
            row.written.append(token)
            row.breaks += generator.breaks.get(token, 0)
            row.finished = row.breaks > 1
        if row.finished:
            self.done.append(row)
        if row.finished or len(row.written) >= generator.max_new_tokens:
            self.live[place] = None

    def _move_together(self) -> None:
        """Move the unfinished rows to the first places, so that a step computes half as many rows, or fewer."""
        size, left = len(self.live), sum(row is not None for row in self.live)
        while size // 2 >= max(FEWEST_ROWS, left):
            size //= 2
        free = (place for place in range(size) if self.live[place] is None)
        for place in range(size, len(self.live)):
            if (row := self.live[place]) is not None:
                into = next(free)
                self.cache.copy_row(into, self.cache, place, row.position + 1)
                self.live[into] = row
        del self.live[size:]


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
    """A question that a span answers, and its answer in few words, which may differ from the span's text."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class MarkedDocument:
    """A document's tokens: `lead`, which begins each window of it, and `ids`, its text with the spans marked.

    `stops[i]` counts the tokens of `ids` that span i may see, to about the end of its sentence (`sentence_stops`).
    """

    lead: list[int]
    ids: list[int]
    stops: list[int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that are read once, the spans (by index in the document) asked about after them, and the spans' stops."""

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
    """Give the number that marks span `index` of a document in a prompt, from 1 up to `NUMBERS` and again."""
    return (index + first - 1) % NUMBERS + 1


def question_suffix(tokenizer: FactTokenizer, value: str, number: int) -> list[int]:
    """Make the tokens of the suffix that asks about one span: its number and its value, cut at `LONGEST_VALUE`."""
    return tokenizer.encode(f"\n\n[{number}: {value[:LONGEST_VALUE]}]\nQuestion:")


def question_target(tokenizer: FactTokenizer, written: GeneratedQuestion) -> list[int]:
    """Make the tokens that the model is to write after a suffix."""
    lines = f" {' '.join(written.question.split())}\nAnswer: {' '.join(written.answer.split())}"
    return [*tokenizer.encode(lines), tokenizer.end_of_text]


def parse_question(written: str) -> GeneratedQuestion | None:
    """Parse the question and the answer that the model wrote; None unless each is on its line and can be stored."""
    match = _WRITTEN.match(written)
    if match is None or unstorable_characters(match.group()) is not None:
        return None
    return GeneratedQuestion(" ".join(match["question"].split()), " ".join(match["answer"].split()))


def cut_prefixes(marked: MarkedDocument, size: int) -> Iterator[Prefix]:
    """Yield the prefixes of at most `size` tokens after which a document's spans are asked about; there is mostly one.

    Windows begin at multiples of half a window. A span belongs to the first window that reaches its stop, so its
    question sees at least half a window of the text before it.
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
    """Split a prefix into one for each span up to its stop, as it is read without sharing."""
    return [
        Prefix(prefix.ids[:stop], [span], [stop])
        for span, stop in zip(prefix.spans, prefix.stops, strict=True)
    ]


def sentence_stops(text: str, spans: Sequence[Span]) -> list[int]:
    """Find each span's stop: the end of the sentence that holds it, without the blanks that follow.

    A long sentence stops `LONGEST_SENTENCE` code points after the span. A stop within another span moves before it.
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
