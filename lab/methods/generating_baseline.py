"""The baseline of retrieval-augmented generation: a language model writes an answer below passages that BM25 finds.

The base model is asked in the form of its chats, once plainly and once told to refuse where the passages do not say;
another checkpoint in the form of the paper, which has no way to say that nothing answers. What is written cites
nothing, so it is compared with the gold answer alone, and as a *score*, by which it may abstain too, it has the mean
probability of its tokens. A wrong answer that none of the passages says is *made up*.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.calibration import outcome_of_answer
from colmlm.kb.answers.reading import Reader
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.records import Source
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.lab.methods.answer_shares import RawAnswer, RawQuestion, says
from colmlm.model.lm.checkpoint import WHEEL_BASE, Checkpoint, base_checkpoint, load
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.passages import PassageIndex, import_bm25s, passages_of, prompt_with_passages
from colmlm.model.text.tokens import FactTokenizer

MAX_TOKENS = 24
_LINE = re.compile(r"\n|\.\s")
TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
_REFUSES = re.compile(
    r"\b(not|no answer|unanswerable|unknown|none|cannot|can't|don't|doesn't|isn't|aren't)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PromptForm:
    """A form of asking: the text, or the ids, that begin with the passages, and what comes behind them."""

    instruction: str
    is_chat: bool = True
    may_refuse: bool = False

    def prompt(
        self, tokenizer: FactTokenizer, question: str, passages: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Give the ids up to the end of the passages, and the others."""
        if not self.is_chat:
            return tokenizer.prompt(prompt_with_passages(f"Question: {question}\nAnswer:", passages)), []
        turn, end = tokenizer.id_of(TURN), tokenizer.id_of(END_OF_TURN)
        head = [turn, *tokenizer.encode("user\n" + "\n\n".join(passages))]
        asked = tokenizer.encode(f"\n\nQuestion: {question}\n{self.instruction}")
        return tokenizer.prompt(head), [
            *asked,
            end,
            *tokenizer.encode("\n"),
            turn,
            *tokenizer.encode("assistant\n"),
        ]


_PLAIN = "Answer in a few words, taken from the text above."
CHATS = {
    "rag": PromptForm(_PLAIN),
    "rag_refusing": PromptForm(
        f'{_PLAIN} If the text does not say, write "Not in the text".', may_refuse=True
    ),
}
AS_THE_PAPER = PromptForm("", is_chat=False)


def generator(runtime: Runtime, path: Path | None) -> Checkpoint:
    """Load the checkpoint at `path`, or the base model without any adapter."""
    cache = runtime.settings.home / "models"
    return load(path, cache) if path else base_checkpoint(WHEEL_BASE, cache, markup=STANDARD)


class Generating:
    """A language model with the four best passages of 100 words before the question, decoded greedily."""

    def __init__(
        self, checkpoint: Checkpoint, documents: Sequence[AnnotatedDocument], forms: Mapping[str, PromptForm]
    ) -> None:
        self.checkpoint, self.forms = checkpoint, forms
        self.passages = PassageIndex(passages_of(documents))

    def ask_all(
        self, questions: Sequence[RawQuestion], advance: Callable[[int, int | None], None]
    ) -> dict[str, list[RawAnswer]]:
        """Ask every question in each form; those that begin alike share the reading of the passages."""
        done: dict[str, list[RawAnswer]] = {name: [] for name in self.forms}
        for number, question in enumerate(questions, start=1):
            (passages,) = self.passages.search([question.text])
            reading = _Reading(self.checkpoint)
            for name, form in self.forms.items():
                begun = perf_counter()
                said, score = reading.answer(*form.prompt(self.checkpoint.tokenizer, question.text, passages))
                said, found = judge_output(said, question.answers, passages, may_refuse=form.may_refuse)
                done[name].append(RawAnswer(question, said, score, found, perf_counter() - begun))
            advance(number, len(questions))
        return done


class _Reading:
    """Record what a model has read for one question."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.forward = checkpoint, checkpoint.lm.inference
        self.cache, self.head = self.forward.cache(1), list[int]()

    def answer(self, head: list[int], tail: list[int]) -> tuple[str | None, float]:
        """Give the first line or sentence that the model goes on with, and the mean probability of its tokens."""
        tokenizer = self.checkpoint.tokenizer
        head = head[-(self.forward.context - MAX_TOKENS - len(tail)) :]
        tokens, logprobs = self._greedy(head, tail)
        said = _LINE.split(tokenizer.decode(tokens).lstrip(": \n"), maxsplit=1)[0].strip().rstrip(".")
        return said or None, math.exp(sum(logprobs) / max(1, len(logprobs)))

    def _greedy(self, head: list[int], tail: list[int]) -> tuple[list[int], list[float]]:
        """Give the likeliest tokens up to the end of a text, and the logarithms of their probabilities."""
        known = len(head) if head == self.head and tail else 0
        fed, at, self.head = [*head, *tail][known:], known, head
        tokens, logprobs = list[int](), list[float]()
        ends = self.checkpoint.end_tokens
        while len(tokens) < MAX_TOKENS:
            token, logprob = self._next(fed, at)
            if token in ends:
                break
            at += len(fed)
            fed = [token]
            tokens.append(token)
            logprobs.append(logprob)
        return tokens, logprobs

    def _next(self, fed: list[int], at: int) -> tuple[int, float]:
        tokenizer = self.checkpoint.tokenizer
        with torch.inference_mode():
            logits_V = self.forward.logits(
                self.forward.advance(torch.tensor([fed]), [at], self.cache)[:, -1]
            )[0]
            logits_V[[*tokenizer.added, *tokenizer.unsayable]] = -math.inf
            best = torch.log_softmax(logits_V, dim=-1).max(dim=-1)
        return int(best.indices), float(best.values)


def judge_output(
    said: str | None, golds: Sequence[str], passages: Sequence[str], *, may_refuse: bool
) -> tuple[str | None, str]:
    """Give what counts as said, and its outcome. Only what is not right anyway is read as a refusal."""
    found = outcome_of_answer(said, golds)
    if said is None or found != "wrong":
        return said, found
    if may_refuse and _REFUSES.search(said):
        return None, "abstained"
    stands = any(any(says(passage, [said])) for passage in passages)
    return said, "wrong" if stands else "made_up"


# A baseline for answers from raw texts: an extractive reader over BM25.

WINDOWS = 4


class BM25Reading:
    """The same reader over the four windows (a sentence and the one before) that BM25 finds, without facts or keys."""

    def __init__(self, reader: Reader, documents: Sequence[AnnotatedDocument]) -> None:
        bm25s = import_bm25s()
        self.reader = reader
        self.windows: list[tuple[AnnotatedDocument, int, int]] = []
        sentences: list[str] = []
        for document in documents:
            starts = [0, *sentence_ends(document.text)]
            for number, end in enumerate(starts[1:], start=1):
                self.windows.append((document, starts[max(0, number - 2)], end))
                sentences.append(f"{document.title or ''} {document.text[starts[number - 1] : end]}")
        self._bm25 = bm25s.BM25()
        self._bm25.index(bm25s.tokenize(sentences, stopwords="en", show_progress=False), show_progress=False)

    def ask(self, question: str) -> Answer:
        from colmlm.kb.answers.reading import Passage

        tokens = import_bm25s().tokenize([question], stopwords="en", return_ids=False, show_progress=False)
        found, _ = self._bm25.retrieve(tokens, k=min(WINDOWS, len(self.windows)), show_progress=False)
        chosen = [self.windows[n] for n in found[0].tolist()]
        readings = self.reader.read(question, [Passage(d.title or "", d.text[a:b]) for d, a, b in chosen])
        best: tuple[float, str | None, Source | None] = (-math.inf, None, None)
        for (document, start, _), reading in zip(chosen, readings, strict=True):
            for a, b, logit in reading.spans[:1]:
                place = Source(
                    0, "", document.external_id, document.title, None, None, None, start + a, start + b
                )
                best = max(
                    best,
                    (logit - reading.none, document.text[start + a : start + b], place),
                    key=lambda one: one[0],
                )
        score = 1 / (1 + math.exp(-max(-60.0, min(60.0, best[0]))))
        return Answer(question, best[1], score, 0.0, (), best[2], False, (), 0)
