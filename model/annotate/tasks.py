"""The annotators as tasks of the training loop: the trained module, its examples, and how it reads texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.base import QUESTIONS, SPANS
from colmlm.model.annotate.config import QuestionConfig, SpanConfig
from colmlm.model.annotate.question_training import QuestionNet, QuestionSequence, examples, question_loss
from colmlm.model.annotate.span_training import Annotated, TaggedWindow, tag_loss, tagged_windows
from colmlm.model.annotate.tuner import TunerTask
from colmlm.model.annotate.windows import WordTokenizer
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.task import StepContext

DEFAULT_THRESHOLD = 0.5


class SpanTask(TunerTask[TaggedWindow]):
    """Trains the fact-span annotator (section 3.3, appendix A.2)."""

    role = SPANS
    config: SpanConfig

    def __init__(self, config: SpanConfig, corpora: Sequence[Annotated], cache: Path, name: str) -> None:
        super().__init__(config, cache, name)
        self.module = self.model
        tokenizer = WordTokenizer.load(self.source / "tokenizer.json")
        self.pad = tokenizer.pad
        documents = sum(len(corpus.documents) for corpus in corpora)
        self._take(list(tagged_windows(tokenizer, corpora, config)), documents)

    def size(self, micro_batch: Sequence[TaggedWindow]) -> int:
        return sum(window.num_words for window in micro_batch)

    def loss(
        self, micro_batch: Sequence[TaggedWindow], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        return tag_loss(context.module, micro_batch, self.pad, context.device) / max(1, context.total), {}

    def reading(self) -> dict[str, Any]:
        return {
            "window": self.config.max_length,
            "overlap": self.config.overlap,
            "threshold": DEFAULT_THRESHOLD,
        }


class QuestionTask(TunerTask[QuestionSequence]):
    """Trains the question generator (section 3.3, appendix A.2)."""

    role = QUESTIONS
    prefix = "model."
    config: QuestionConfig

    def __init__(
        self,
        config: QuestionConfig,
        documents: Sequence[AnnotatedDocument],
        cache: Path,
        name: str,
        start: Path | None = None,
    ) -> None:
        super().__init__(config, cache, name, start)
        self.module = QuestionNet(self.model)
        tokenizer = FactTokenizer.load(self.source / "tokenizer.json", markup=STANDARD)
        self._take(list(examples(tokenizer, documents, config)), len(documents))

    def size(self, micro_batch: Sequence[QuestionSequence]) -> int:
        return sum(asked.num_learnt for asked in micro_batch)

    def loss(
        self, micro_batch: Sequence[QuestionSequence], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        return question_loss(context.module, micro_batch, context.device) / max(1, context.total), {}

    def reading(self) -> dict[str, Any]:
        return {"window": self.config.max_length, "max_new_tokens": self.config.max_new_tokens}
