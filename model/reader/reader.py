"""Readers: they read a question in several passages at once, and score the spans of each that may answer it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from math import log
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from colmlm.kb.answers.reading import MOST_SPANS, Passage, PassageReading, Reader
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.model.annotate.checkpoint import ANSWERS, AnnotatorConfig, LoadedAnnotator, load_annotator
from colmlm.model.annotate.checks import Fault, telling_words
from colmlm.model.annotate.spans import trim_span
from colmlm.model.lm.language_model import FAMILIES
from colmlm.model.text.markup import Span
from colmlm.model.text.tokens import PaddedBatch, TokenisedWords, WordTokenizer, length_batches, send

T = TypeVar("T")

# A question with a passage as the encoder reads them, and the spans of a passage that may be an answer.
#
# The sequence is ``[CLS] question [SEP] title [SEP] text [SEP]``, without title ``[CLS] question [SEP] text [SEP]``.
# What follows the question is of the second token type. "None" is read at ``[CLS]``, starts and ends at the text's
# words.

LONGEST_QUESTION = 64
LONGEST_TITLE = 48
# Offsets strictly within these are no bounds of an answer: numbers with the sign or the short name of their unit,
# ranges and compounds of numbers ("6-week"), initials, what follows an apostrophe.
_NUMBER = r"\d+(?:[.,:]\d+)*"
_UNIT = r"%|‰|°(?:[CF]\b)?|[€£$¥]|(?:[kMGT]i?B|[kMG]?Hz|[kcm]?m|[mk]?g|m?l|ms|kWh?|MWh?|km/h|mph)\b"
_UNCUT = re.compile(
    rf"(?:[€£$¥]\s?)?{_NUMBER}(?:[-–][^\W_]+|\s?(?:{_UNIT}))?|(?:[^\W\d_]\.){{2,}}|(?<=\w)['’]\w+"
)


@dataclass(frozen=True, slots=True)
class JoinedText:
    """Question, title and text as one sequence. `second` is the index where token type 1 begins, `text` the text's."""

    ids: list[int]
    second: int
    text: int


@dataclass(frozen=True, slots=True)
class ReaderBatch:
    """Padded sequences: ids, mask, token types, and where a span may begin or end (``[CLS]`` and the text's tokens)."""

    ids_BT: Tensor
    mask_BT: Tensor
    types_BT: Tensor
    open_BT: Tensor


def join_sequence(
    tokenizer: WordTokenizer, question: TokenisedWords, title: TokenisedWords, text: Sequence[int]
) -> JoinedText:
    """Join question, title and text to one sequence; question and title are cut at their longest lengths."""
    head = tokenizer.frame_ids(question.ids[:LONGEST_QUESTION])
    named = [*title.ids[:LONGEST_TITLE], tokenizer.sep] if title.ids else []
    return JoinedText([*head, *named, *text, tokenizer.sep], len(head), len(head) + len(named))


def reader_batch(
    sequences: Sequence[JoinedText], pad: int, shape: tuple[int, int] | None = None
) -> ReaderBatch:
    """Pad the sequences on the right to one batch of `shape`, by default of their number and the longest length."""
    rows, width = shape or (len(sequences), max(len(sequence.ids) for sequence in sequences))
    ids_BT = np.full((rows, width), pad, dtype=np.int64)
    bounds_B3 = np.tile(np.array([0, 1, 1]), (rows, 1))  # a row of padding has one token
    for row, one in enumerate(sequences):
        ids_BT[row, : len(one.ids)] = one.ids
        bounds_B3[row] = one.second, one.text, len(one.ids)
    at_T, (second, text, length) = np.arange(width), np.split(bounds_B3, 3, axis=1)
    types_BT = ((at_T >= second) & (at_T < length)).astype(np.int64)
    open_BT = (at_T == 0) | ((at_T >= text) & (at_T < length - 1))
    mask_BT = (at_T < length).astype(np.int64)
    return ReaderBatch(*map(torch.from_numpy, (ids_BT, mask_BT, types_BT, open_BT)))


def reader_logits(module: torch.nn.Module, batch: ReaderBatch, device: torch.device) -> Tensor:
    """Compute the logits of a span's start and end, [B, T, 2] in float32; minus infinity where neither may be."""
    mask_BT = send(batch.mask_BT, device)
    inputs = {"input_ids": send(batch.ids_BT, device), "attention_mask": mask_BT}
    if module.config.model_type in FAMILIES:  # a decoder, which here sees what follows, too
        length = mask_BT.shape[1]
        inputs["attention_mask"] = mask_BT.bool()[:, None, None, :].expand(-1, 1, length, length)
    if getattr(module.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = send(batch.types_BT, device)
    logits_BT2: Tensor = module(**inputs).logits.float()
    return logits_BT2.masked_fill(~send(batch.open_BT, device)[..., None], float("-inf"))


def uncut_offsets(text: str) -> set[int]:
    """Give the offsets inside a number or a word, where an answer may neither begin nor end."""
    return {at for found in _UNCUT.finditer(text) for at in range(found.start() + 1, found.end())}


def last_tokens(words: TokenisedWords) -> list[int]:
    """Give the index of each word's last token."""
    return [after - 1 for after in (*words.first[1:], len(words.ids))] if words.words else []


def words_of(words: TokenisedWords, span: Span) -> tuple[int, int] | None:
    """Give the indices of the first and the last word that the span overlaps; None if it overlaps none."""
    covered = [n for n, (start, end) in enumerate(words.words) if start < span[1] and end > span[0]]
    return (covered[0], covered[-1]) if covered else None


# The readers: small, large, and one before the other.

_NO_POSITIONS = 2  # of an encoder's positions, which some families keep for padding
MOST_WORDS = 24  # of one answer, counting each punctuation mark as the tokenizer does
_SPARE = 3  # pairs of words looked at for each span that is given, since trimming makes some of them the same


class ExtractiveReader:
    """A reader that finds answers as spans. Of a longer passage it reads the first `window` tokens.

    `batch_tokens` bounds the padded tokens of a forward (None: what suits the device).
    """

    def __init__(self, loaded: LoadedAnnotator, *, batch_tokens: int | None = None) -> None:
        self.config, self.model, self.device = loaded.config, loaded.model, loaded.device
        self.tokenizer = WordTokenizer.load(loaded.tokenizer_file)
        self.window = int(loaded.config.reading["window"])
        self.batch_tokens = batch_tokens

    @classmethod
    def load(cls, path: Path, cache: Path | None = None) -> Self:
        """Load a reader's directory. `cache` holds base models. Raises `CheckpointError` and `BaseNotFound`."""
        return cls(load_annotator(path, ANSWERS, cache or Path(), precision=_precision(path)))

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        """Read the question in each of the windows, and give a reading of each."""
        return self.read_all([(question, windows)])[0]

    @torch.inference_mode()
    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        """Read several questions, each in windows of its own; pairs of similar length share a forward.

        While an accelerator reads a batch, the host takes the spans out of the batch before it.
        """
        pairs = [(question, window) for question, windows in asked for window in windows]
        words = {
            text: self.tokenizer.encode(text)
            for text in dict.fromkeys(chain.from_iterable((q, w.title, w.text) for q, w in pairs))
        }
        sequences = [
            join_sequence(
                self.tokenizer, words[question], words[window.title], words[window.text].ids[: self.window]
            )
            for question, window in pairs
        ]
        readings: dict[int, PassageReading] = {}
        for batch, logits_BT2 in _fetch_ahead(self._scores(sequences)):
            scores_BT2 = logits_BT2.cpu().numpy()
            for number, scores_T2 in zip(batch.numbers, scores_BT2, strict=False):
                text, sequence = pairs[number][1].text, sequences[number]
                spans = best_spans(text, words[text], scores_T2[sequence.text : len(sequence.ids) - 1])
                readings[number] = PassageReading(spans, float(scores_T2[0].sum()))
        in_order = (readings[number] for number in range(len(pairs)))
        return [list(islice(in_order, len(windows))) for _, windows in asked]

    def _scores(self, sequences: Sequence[JoinedText]) -> Iterator[tuple[PaddedBatch, Tensor]]:
        """Yield batches with the logits of their starts and ends, [rows, width, 2], on the device."""
        lengths = [len(sequence.ids) for sequence in sequences]
        longest = max([self.model.config.max_position_embeddings - _NO_POSITIONS, *lengths])
        for batch in length_batches(
            lengths, device=self.device, max_tokens=self.batch_tokens, longest=longest
        ):
            some = [sequences[number] for number in batch.numbers]
            padded = reader_batch(some, self.tokenizer.pad, (batch.rows, batch.width))
            yield batch, reader_logits(self.model, padded, self.device)


def _fetch_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after fetching the next one, so that the device computes ahead of the host."""
    for before, _ in pairwise(chain(items, [None])):
        assert before is not None
        yield before


class CascadeReader:
    """Read with a small model first, and the `most` passages that it likes best with a large one.

    Passages come in the order of a search. Each place further back counts against a passage as much as one logit of
    the small model. The readings are the large model's; that of a passage that it did not read has no span.
    """

    def __init__(self, first: ExtractiveReader, second: ExtractiveReader, most: int) -> None:
        self.first, self.second, self.most = first, second, most

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        """Read the question in each of the windows, and give a reading of each."""
        return self.read_all([(question, windows)])[0]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        """Read several questions, each in windows of its own, in as few forwards as memory allows."""
        chosen = [self._likeliest(readings) for readings in self.first.read_all(asked)]
        kept = [
            (question, [windows[n] for n in likely])
            for (question, windows), likely in zip(asked, chosen, strict=True)
        ]
        read = [[PassageReading((), 0.0)] * len(windows) for _, windows in asked]
        for row, likely, readings in zip(read, chosen, self.second.read_all(kept), strict=True):
            for number, reading in zip(likely, readings, strict=True):
                row[number] = reading
        return read

    def _likeliest(self, readings: Sequence[PassageReading]) -> list[int]:
        """Give the indices, in ascending order, of the passages that the large model reads."""
        best_first = sorted(range(len(readings)), key=lambda place: place - readings[place].margin)
        return sorted(best_first[: self.most])


def load_reader(path: Path, cache: Path | None = None) -> ExtractiveReader | CascadeReader:
    """Load a reader's directory, as a cascade if its config names a small reader beside it that reads first.

    Raises `CheckpointError` and `BaseNotFound`.
    """
    second = ExtractiveReader.load(path, cache)
    if (first := second.config.reading.get("first")) is None:
        return second
    small = ExtractiveReader.load(path.parent / Path(first).name, cache)
    return CascadeReader(small, second, int(second.config.reading["read_on"]))


def _precision(path: Path) -> str:
    return str(AnnotatorConfig.load(path, ANSWERS).reading.get("precision", "fp32"))


def best_spans(
    text: str, words: TokenisedWords, scores_T2: NDArray[np.float32]
) -> tuple[tuple[int, int, float], ...]:
    """Give the spans of words with the best sums of a start's and an end's score, trimmed, each once, best first.

    `scores_T2` are those of the text's tokens, or of its first ones; words beyond them are in no span.
    """
    lasts = last_tokens(words)
    num_words = sum(last < len(scores_T2) for last in lasts)
    if not num_words:
        return ()
    uncut, read = uncut_offsets(text), words.words[:num_words]
    is_start_N = np.array([start not in uncut for start, _ in read])
    is_end_N = np.array([end not in uncut for _, end in read])
    starts_N = np.where(is_start_N, scores_T2[words.first[:num_words], 0], -np.inf)
    ends_N = np.where(is_end_N, scores_T2[lasts[:num_words], 1], -np.inf)
    beyond = np.full(MOST_WORDS - 1, -np.inf, dtype=np.float32)
    sums_NW = starts_N[:, None] + sliding_window_view(np.append(ends_N, beyond), MOST_WORDS)
    spans: dict[Span, float] = {}
    for at in _largest(sums_NW.ravel(), _SPARE * MOST_SPANS):
        first, more = divmod(int(at), MOST_WORDS)
        last = first + more
        span = trim_span(text, read[first][0], read[last][1])
        if span is not None and not uncut.intersection(span):
            spans.setdefault(span, float(sums_NW[first, more]))
    return tuple((start, end, score) for (start, end), score in islice(spans.items(), MOST_SPANS))


def _largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Give the indices of the largest finite scores, largest first."""
    chosen = np.argpartition(-scores, min(count, len(scores)) - 1)[:count]
    chosen = chosen[np.isfinite(scores[chosen])]
    return chosen[np.argsort(-scores[chosen], kind="stable")]


# Verification of generated questions: one is kept where the reader comes back with it to the span it was written for.
#
# The reader gets the document as it gets it where questions are answered: sentences, each with the one before it. Of
# a long document it reads the windows that hold the span, and of the others those that share most words with the
# question, so that a question costs the same in a document of any length. Training draws its windows here, too.

# Windows of a text as they are read: a sentence with the one before it, and other cuts around a value.


def sentences_of(text: str) -> list[Span]:
    """Give the sentences of a text without outer blanks; blank ones are left out."""
    bounds = zip((0, *(ends := sentence_ends(text))), ends, strict=False)
    stripped = (_strip_blanks(text, start, end) for start, end in bounds)
    return [span for span in stripped if span[0] < span[1]]


def windows_of(sentences: Sequence[Span]) -> list[Span]:
    """Give the window of each sentence: from the beginning of the one before it to its own end."""
    return [(sentences[max(0, n - 1)][0], end) for n, (_, end) in enumerate(sentences)]


def usual_window(sentences: Sequence[Span], gold: Span) -> Span:
    """Give the offsets of the sentence or sentences that hold `gold`, with the sentence before them."""
    first, last = _sentences_holding(sentences, gold)
    return sentences[max(0, first - 1)][0], sentences[last][1]


def window_around(text: str, sentences: Sequence[Span], gold: Span, rng: random.Random) -> Span:
    """Draw a window that holds `gold`: mostly its sentence with the one before it.

    The others are cuts that a search may make as well: the sentence alone, with the one after it, with both, or a
    stretch that begins and ends at any word.
    """
    first, last = _sentences_holding(sentences, gold)
    before, after = max(0, first - 1), min(len(sentences) - 1, last + 1)
    drawn = rng.random()
    if drawn < 0.55:
        return usual_window(sentences, gold)
    if drawn < 0.70:
        return sentences[first][0], sentences[after][1]
    if drawn < 0.80:
        return sentences[first][0], sentences[last][1]
    if drawn < 0.90:
        return sentences[before][0], sentences[after][1]
    start = text.rfind(" ", 0, max(0, gold[0] - rng.randrange(300))) + 1
    end = text.find(" ", min(len(text), gold[1] + rng.randrange(300)))
    return start, len(text) if end < 0 else end


def _sentences_holding(sentences: Sequence[Span], gold: Span) -> tuple[int, int]:
    """Give the indices of the first and the last sentence that overlap `gold`."""
    held = [n for n, (start, end) in enumerate(sentences) if start < gold[1] and end > gold[0]]
    return held[0], held[-1]


def _strip_blanks(text: str, start: int, end: int) -> Span:
    said = text[start:end]
    return start + len(said) - len(said.lstrip()), end - len(said) + len(said.rstrip())


# The verification of a document's questions.

MARGIN = 4.0  # see docs/models/annotators.md
COMMON = 0.3  # of the mean length of answer and span: a whole sentence comes back to none of its facts
OTHERS = 4


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks that the reader, asked a fact's question in its document, finds that fact's span.

    `margin` is by how many logits an answer must be above "none".
    """

    reader: Reader
    margin: float = MARGIN

    def verify(
        self, asked: Sequence[tuple[AnnotatedDocument, Sequence[FactSpan]]]
    ) -> list[list[Fault | None]]:
        """Read each span's question in its document, all of them at once, and give the fault of each or None.

        It is a fault if the reader's answer is another than the span, or is not sure enough.
        """
        documents = [(_WindowedDocument.of(document), spans) for document, spans in asked if spans]
        chosen = [(one, span, one.choose_windows(span)) for one, spans in documents for span in spans]
        readings = self.reader.read_all(
            [(span.question or "", one.passages(windows)) for one, span, windows in chosen]
        )
        faults = iter(
            self._fault(one.document.text, span, windows, read)
            for (one, span, windows), read in zip(chosen, readings, strict=True)
        )
        return [list(islice(faults, len(spans))) for _, spans in asked]

    def _fault(
        self, text: str, span: FactSpan, chosen: Sequence[Span], readings: Sequence[PassageReading]
    ) -> Fault | None:
        found = [
            (reading.margin, start + reading.spans[0][0], start + reading.spans[0][1])
            for (start, _), reading in zip(chosen, readings, strict=True)
            if reading.spans
        ]
        margin, start, end = max(found, default=(float("-inf"), 0, 0))
        if margin < self.margin:
            return Fault(
                "unverified", "Read with this question, the text gives no answer that is sure enough."
            )
        common = min(end, span.end) - max(start, span.start)
        if common < COMMON * (end - start + span.end - span.start) / 2:
            return Fault("unverified", f"Read with this question, the text answers {text[start:end]!r}.")
        return None


@dataclass(frozen=True, slots=True)
class _WindowedDocument:
    """A document in windows. `said` are the telling words of each, by which the windows to read are chosen."""

    document: AnnotatedDocument
    windows: Sequence[Span]
    said: Sequence[frozenset[str]]

    @classmethod
    def of(cls, document: AnnotatedDocument) -> Self:
        windows = windows_of(sentences_of(document.text))
        return cls(document, windows, [telling_words(document.text[start:end]) for start, end in windows])

    def passages(self, windows: Sequence[Span]) -> list[Passage]:
        """Give these windows as passages under the document's title."""
        text, title = self.document.text, self.document.title or ""
        return [Passage(title, text[start:end]) for start, end in windows]

    def choose_windows(self, span: FactSpan) -> list[Span]:
        """Give the windows that hold a part of the span, and the `OTHERS` that share most with its question."""
        holding = [window for window in self.windows if window[0] < span.end and span.start < window[1]]
        asked = telling_words(span.question or "")
        weight = self._weights(asked)
        shared = sorted(
            (-sum(weight[word] for word in asked & said), window)
            for window, said in zip(self.windows, self.said, strict=True)
            if window not in holding
        )
        return holding + [window for _, window in shared[:OTHERS]]

    def _weights(self, asked: frozenset[str]) -> dict[str, float]:
        """Give the weight of each word of a question: the fewer windows contain it, the higher."""
        times = Counter(word for said in self.said for word in asked & said)
        return {word: log(1 + len(self.said) / (1 + times[word])) for word in asked}
