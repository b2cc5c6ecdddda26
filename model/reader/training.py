"""Training of a reader: examples drawn from documents and what people asked about them, and the loss.

The loss is of the answer's first and last token among those of the passage and "none".
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from colmlm.kb.answers.reading import Passage, PassageReading, Reader
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.checkpoint import ANSWERS, AnnotatorConfig, LoadedAnnotator
from colmlm.model.annotate.checks import telling_words
from colmlm.model.annotate.config import ReaderConfig
from colmlm.model.annotate.training import FineTuningTask
from colmlm.model.reader.reader import (
    ExtractiveReader,
    JoinedText,
    join_sequence,
    last_tokens,
    reader_batch,
    reader_logits,
    sentences_of,
    usual_window,
    window_around,
    windows_of,
    words_of,
)
from colmlm.model.text.markup import Span
from colmlm.model.text.passages import PassageIndex, keywords_of, statement_of, stopped_sentence
from colmlm.model.text.tokens import TokenisedWords, WordTokenizer
from colmlm.model.training.task import StepContext, StepMetrics

Form = Literal["question", "keywords", "statement"]
_NO_MARK = 0.3  # the share of questions that come without a question mark
# Of the questions that their document does not answer: with its whole text; with the likeliest window.
_WHOLE, _LIKELIEST = 0.2, 0.7


@dataclass(frozen=True, slots=True)
class ReaderQuestion:
    """A question about the document with this index, and the span of its answer in the text; None if it has none."""

    document: int
    question: str
    answer: Span | None


@dataclass(frozen=True, slots=True)
class ReaderExample:
    """A question with a passage, and the span of the answer in the passage's text; None if it has no answer."""

    question: str
    form: Form
    title: str
    text: str
    answer: Span | None


class ReaderExamples:
    """Examples that are drawn from documents and the questions asked about them."""

    def __init__(
        self,
        documents: Sequence[AnnotatedDocument],
        asked: Sequence[ReaderQuestion],
        config: ReaderConfig,
        cache: Path | None = None,
    ) -> None:
        """Cut the documents into windows. `cache` is the folder that `nearest_windows` uses (None: none)."""
        self.documents, self.asked, self.config, self.cache = documents, asked, config, cache
        self.sentences = [sentences_of(document.text) for document in documents]
        windows = [windows_of(sentences) for sentences in self.sentences]
        self._windows = windows
        self._places = [(n, window) for n, own in enumerate(windows) for window in own]
        self._nearest: list[list[int]] | None = None

    def round(self, number: int) -> Iterator[ReaderExample]:
        """Yield a round's examples: each question, some also with a window without the answer (share `config.none`)."""
        also = self.config.none / (1 - self.config.none)
        for n, one in enumerate(self.asked):
            rng = random.Random(f"{self.config.seed}/{number}/{n}")
            text, sentences = self.documents[one.document].text, self.sentences[one.document]
            if one.answer is None:
                yield self._put_in_form(self._unanswered_example(one, rng), one, rng)
                continue
            window = window_around(text, sentences, one.answer, rng)
            yield self._put_in_form(self._with_answer(one, window), one, rng)
            if rng.random() < also and (empty := self._without_answer(n, rng)) is not None:
                yield self._put_in_form(empty, one, rng)

    def evaluation_examples(self) -> Iterator[ReaderExample]:
        """Yield each question as asked, with the window that answers it, and with one that does not; for measuring."""
        for n, one in enumerate(self.asked):
            if one.answer is None:
                continue
            yield self._with_answer(one, usual_window(self.sentences[one.document], one.answer))
            if (empty := self._without_answer(n, random.Random(f"{self.config.seed}/{n}"))) is not None:
                yield empty

    def whole(self) -> Iterator[ReaderExample]:
        """Yield each question with the whole text of its document, which answers it or not; for measuring."""
        for one in self.asked:
            yield self._with_answer(one, (0, len(self.documents[one.document].text)))

    def _with_answer(self, one: ReaderQuestion, window: Span) -> ReaderExample:
        """Give the question with this window, which holds the question's answer if it has one."""
        document, (start, end) = self.documents[one.document], window
        place = None if one.answer is None else (one.answer[0] - start, one.answer[1] - start)
        return ReaderExample(one.question, "question", document.title or "", document.text[start:end], place)

    def _unanswered_example(self, one: ReaderQuestion, rng: random.Random) -> ReaderExample:
        """Give an unanswered question with a window of its document, mostly that which shares most words with it."""
        text, windows = self.documents[one.document].text, self._windows[one.document]
        if not windows or rng.random() < _WHOLE:
            return self._with_answer(one, (0, len(text)))
        asked = telling_words(one.question)
        likeliest = max(windows, key=lambda window: len(asked & telling_words(text[slice(*window)])))
        return self._with_answer(one, likeliest if rng.random() < _LIKELIEST else rng.choice(windows))

    def _without_answer(self, number: int, rng: random.Random) -> ReaderExample | None:
        """Give a question with a window, of its document or a similar one, without its answer; None if all have it."""
        one = self.asked[number]
        own = [(one.document, window) for window in self._windows[one.document]]
        near = own if rng.random() < self.config.neighbours else self._neighbour_windows(number)
        assert one.answer is not None
        answer = self.documents[one.document].text[slice(*one.answer)]
        for chosen, (start, end) in rng.sample(near, len(near)):
            document = self.documents[chosen]
            text = document.text[start:end]
            if not says_answer(text, answer):
                return ReaderExample(one.question, "question", document.title or "", text, None)
        return None

    def _neighbour_windows(self, number: int) -> list[tuple[int, Span]]:
        """Give the windows of other documents that are nearest to a question, as pairs of document and span."""
        if self._nearest is None:
            titled = [
                f"{self.documents[n].title or ''} {self.documents[n].text[start:end]}"
                for n, (start, end) in self._places
            ]
            wanted = self.config.nearest + 10  # some are of the question's own document
            self._nearest = nearest_windows(titled, [one.question for one in self.asked], wanted, self.cache)
        own = self.asked[number].document
        found = [self._places[place] for place in self._nearest[number] if self._places[place][0] != own]
        return found[: self.config.nearest]

    def _put_in_form(self, example: ReaderExample, one: ReaderQuestion, rng: random.Random) -> ReaderExample:
        """Give the example in a form drawn at random: as a question, keywords or a statement, perhaps without title."""
        drawn, said, form = rng.random(), None, example.form
        if drawn < self.config.keywords:
            said, form = keywords_of(one.question), "keywords"
        elif drawn < self.config.keywords + self.config.statements:
            said, form = statement_of(one.question) or self._stopped_sentence(one, rng), "statement"
        if said is None:
            bare = rng.random() < _NO_MARK
            said, form = one.question.rstrip("? ") if bare else one.question, "question"
        title = "" if rng.random() < self.config.untitled else example.title
        return replace(example, question=said, form=form, title=title)

    def _stopped_sentence(self, one: ReaderQuestion, rng: random.Random) -> str | None:
        if one.answer is None:
            return None
        sentences, stop = self.sentences[one.document], one.answer[0]
        start = next((start for start, end in sentences if start <= stop < end), stop)
        return stopped_sentence(self.documents[one.document].text, start, stop, rng)


NEIGHBOURS = "neighbours"


def nearest_windows(
    texts: Sequence[str], questions: Sequence[str], k: int, cache: Path | None = None
) -> list[list[int]]:
    """Give for each question the indices of the k texts nearest to it by BM25, best first; fewer if few share a word.

    Thousands of questions take minutes of a core. So the indices are kept in the folder `cache`, without texts, under a
    digest of `k`, texts and questions. A file there that cannot be read is made anew.
    """
    if cache is None or not questions:
        return PassageIndex(texts).nearest(questions, k)
    made_of = hashlib.sha256(json.dumps([k, len(texts), *texts, *questions]).encode()).hexdigest()
    file = cache / NEIGHBOURS / f"{made_of}.npy"
    try:
        kept_QK = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        kept_QK = np.zeros((0, 0), np.int32)
    if kept_QK.shape != (len(questions), k):
        found = PassageIndex(texts).nearest(questions, k)
        kept_QK = np.array([[*row, *[-1] * (k - len(row))] for row in found], np.int32)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{os.getpid()}-{file.name}")
        with unfinished.open("wb") as target:
            np.save(target, kept_QK, allow_pickle=False)
        os.replace(unfinished, file)
    return [[n for n in row if n >= 0] for row in kept_QK.tolist()]


def says_answer(text: str, answer: str) -> bool:
    """Tell whether the text contains the answer as whole words, in any case."""
    return re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", text, re.IGNORECASE) is not None


# The task: cross-entropies of the answer's first and last token.

WINDOW = 320


@dataclass(frozen=True, slots=True)
class ReadingExample(JoinedText):
    """A question with a passage as tokens, and the first and last token of its answer; both 0 for none."""

    start: int
    end: int

    @property
    def is_none(self) -> bool:
        return self.end == 0


def reading_examples(
    tokenizer: WordTokenizer, examples: Iterable[ReaderExample], longest: int
) -> Iterator[ReadingExample]:
    """Yield the examples as tokens, without those whose answer has no word, or does not fit `longest` tokens."""
    for example in examples:
        text = tokenizer.encode(example.text)
        place = _answer_indices(text, example.answer, longest)
        if place is None:
            continue
        cut, answer = place
        sequence = join_sequence(
            tokenizer,
            tokenizer.encode(example.question),
            tokenizer.encode(example.title),
            text.ids[cut : cut + longest],
        )
        start, end = (sequence.text - cut + at for at in answer) if answer else (0, 0)
        yield ReadingExample(sequence.ids, sequence.second, sequence.text, start, end)


def _answer_indices(
    text: TokenisedWords, answer: Span | None, longest: int
) -> tuple[int, Span | None] | None:
    """Give the indices of the first token to read, and of the answer's first and last; None if it does not fit."""
    if answer is None:
        return 0, None
    covered = words_of(text, answer)
    if covered is None:
        return None
    start, end = text.first[covered[0]], last_tokens(text)[covered[1]]
    if end - start >= longest:
        return None
    least, most = max(0, end + 1 - longest), min(start, max(0, len(text.ids) - longest))
    return min(max(start - longest // 3, least), most), (start, end)


def reading_loss(
    module: Any, batch: Sequence[ReadingExample], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Give the batch's summed loss, and the number of examples whose start and end are both predicted rightly."""
    logits_BT2 = reader_logits(module, reader_batch(batch, pad), device)
    gold_B2 = torch.tensor([(example.start, example.end) for example in batch], device=device)
    loss = F.cross_entropy(logits_BT2, gold_B2, reduction="sum") / 2
    return loss, (logits_BT2.argmax(dim=1) == gold_B2).all(dim=1).sum()


class ReaderTask(FineTuningTask[ReadingExample]):
    """The task of training a reader: its examples, their loss, and the settings that its config records."""

    role = ANSWERS
    config: ReaderConfig

    def __init__(
        self, config: ReaderConfig, drawn: ReaderExamples, cache: Path, name: str, start: Path | None = None
    ) -> None:
        super().__init__(config, cache, name, start)
        if config.lora_rank is None and config.freeze_embeddings:
            tokens = getattr(self.model.base_model, "embeddings", None) or self.model.get_input_embeddings()
            tokens.requires_grad_(False)
        for layer in self.model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = config.dropout
        self.module = self.model
        tokenizer = WordTokenizer.load(self.source / "tokenizer.json")
        self.pad = tokenizer.pad
        examples = (example for number in range(config.rounds) for example in drawn.round(number))
        self._set_examples(list(reading_examples(tokenizer, examples, config.max_length)), drawn.documents)

    def size(self, micro_batch: Sequence[ReadingExample]) -> int:
        return len(micro_batch)

    def loss(
        self, micro_batch: Sequence[ReadingExample], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        loss, right = reading_loss(context.module, micro_batch, self.pad, context.device)
        total = max(1, context.total)
        return loss / total, {"right": right / total}

    def reading(self) -> dict[str, Any]:
        if self.config.first is None:
            return {"window": WINDOW}
        return {
            "window": WINDOW,
            "precision": "auto",
            "first": self.config.first,
            "read_on": self.config.read_on,
        }

    @contextmanager
    def reader(self) -> Iterator[ExtractiveReader]:
        """Give a reader with the weights as they are now; training goes on when the block is left."""
        config = AnnotatorConfig(
            name=self.name, role=self.role, kind="adapter", base=self.config.base, reading=self.reading()
        )
        device = next(self.model.parameters()).device
        self.model.eval()
        yield ExtractiveReader(LoadedAnnotator(config, self.model, self.source / "tokenizer.json", device))
        self.model.train()


# The quality of a reader: answers in the passage that holds them, and how well it tells that one holds none.

_KINDS = ("who", "when", "where", "why", "which", "what")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class RightShare:
    """The number of questions, the share that was answered exactly, and the mean F1 of the answers' words."""

    questions: int
    exact: float
    f1: float


@dataclass(frozen=True, slots=True)
class ReaderMeasures:
    """The quality of a reader on examples with and without an answer.

    `answered` is that on questions whose passage has their answer, `by_kind` the same by their question word.
    `none_auc` is the probability that such an example has a higher margin over "none" than one without an answer.
    """

    answered: RightShare
    by_kind: dict[str, RightShare]
    unanswered: int
    none_auc: float


EXAMPLES_TOGETHER = 512  # read in one call, between two reports of progress


def measure_reader(
    reader: Reader,
    examples: Sequence[ReaderExample],
    on_examples: Callable[[int, int | None], None] = lambda *_: None,
) -> ReaderMeasures:
    """Measure a reader on examples with and without an answer."""
    readings = _read_examples(reader, examples, on_examples)
    judged = [
        (question_kind(example.question), *_compare_reading(example, reading))
        for example, reading in zip(examples, readings, strict=True)
        if example.answer is not None
    ]
    kinds = sorted({kind for kind, *_ in judged})
    pairs = list(zip(examples, readings, strict=True))
    empty = [reading.margin for example, reading in pairs if example.answer is None]
    held = [reading.margin for example, reading in pairs if example.answer is not None]
    return ReaderMeasures(
        answered=_share_right(judged),
        by_kind={name: _share_right([one for one in judged if one[0] == name]) for name in kinds},
        unanswered=len(empty),
        none_auc=round(auc(held, empty), 4),
    )


def forms_of_asking(examples: Sequence[ReaderExample]) -> dict[str, list[ReaderExample]]:
    """Give the examples by form: as questions, without title, and where rules make one as keywords or statements."""
    made: dict[str, Callable[[str], str | None]] = {"keywords": keywords_of, "statements": statement_of}
    return {
        "questions": list(examples),
        "without title": [replace(example, title="") for example in examples],
        **{
            how: [replace(e, question=said) for e in examples if (said := form(e.question)) is not None]
            for how, form in made.items()
        },
    }


def question_kind(question: str) -> str:
    """Give the kind of a question: "how many", "how", the first question word of `_KINDS`, or "other"."""
    words = re.findall(r"[a-z]+", question.lower())
    if "how" in words:
        return "how many" if "how many" in " ".join(words) or "how much" in " ".join(words) else "how"
    return next((word for word in words if word in _KINDS), "other")


def normalise_answer(answer: str) -> str:
    """Give an answer as SQuAD's evaluation compares it: in lower case, without articles and punctuation."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def f1(said: str, gold: str) -> float:
    """Give the harmonic mean of precision and recall of the words of `said`, as SQuAD's evaluation does."""
    ours, theirs = normalise_answer(said).split(), normalise_answer(gold).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Give the probability that one of `higher` is above one of `lower`; equal ones count half."""
    if not higher or not lower:
        return float("nan")
    below = np.sort(np.asarray(lower))
    left, right = (np.searchsorted(below, np.asarray(higher), side=side) for side in ("left", "right"))
    return float((left + right).mean() / 2 / len(below))


def _read_examples(
    reader: Reader, examples: Sequence[ReaderExample], on_examples: Callable[[int, int | None], None]
) -> list[PassageReading]:
    readings: list[PassageReading] = []
    for at in range(0, len(examples), EXAMPLES_TOGETHER):
        some = examples[at : at + EXAMPLES_TOGETHER]
        asked = [(example.question, [Passage(example.title, example.text)]) for example in some]
        readings += [reading for (reading,) in reader.read_all(asked)]
        on_examples(len(readings), len(examples))
    return readings


def _compare_reading(example: ReaderExample, reading: PassageReading) -> tuple[bool, float]:
    assert example.answer is not None
    gold = example.text[slice(*example.answer)]
    said = example.text[slice(*reading.spans[0][:2])] if reading.spans else ""
    return normalise_answer(said) == normalise_answer(gold), f1(said, gold)


def _share_right(judged: Iterable[tuple[str, bool, float]]) -> RightShare:
    rows = list(judged)
    count = max(1, len(rows))
    return RightShare(
        len(rows),
        round(sum(exact for _, exact, _ in rows) / count, 4),
        round(sum(shared for *_, shared in rows) / count, 4),
    )


# The learning curve of a reader: its figures on held-out questions, by the examples it has seen.

CURVE_FILE = "held_out.csv"
_COLUMNS = ("examples", "exact", "f1", "none_auc")


def train_with_curve(
    task: ReaderTask, directory: Path, held_out: Sequence[ReaderExample], every: int
) -> Iterator[StepMetrics]:
    """Train in `directory`, and measure the reader after each `every` examples and at the end. Yield steps' metrics."""
    path, batch = directory / CURVE_FILE, task.config.batch
    for metrics in task.run(directory):
        seen = metrics.step * batch
        at_end = metrics.step == task.num_steps or metrics.done >= 1.0
        if held_out and (at_end or seen // every > (seen - batch) // every):
            _add_curve_row(path, seen, task, held_out)
        yield metrics


def _add_curve_row(path: Path, seen: int, task: ReaderTask, held_out: Sequence[ReaderExample]) -> None:
    """Measure the reader and add a line to the curve. Lines of later steps, lost in an interruption, are removed."""
    with task.reader() as reader:
        measured = measure_reader(reader, held_out)
    rows = [row for row in _read_curve(path) if int(row["examples"]) < seen]
    figures = (seen, measured.answered.exact, measured.answered.f1, measured.none_auc)
    rows.append(dict(zip(_COLUMNS, map(str, figures), strict=True)))
    with path.open("w", newline="") as target:
        writer = csv.DictWriter(target, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _read_curve(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as source:
        return list(csv.DictReader(source))
