"""The annotators as tasks of the training loop: the trained module, its examples, and the files that a run saves."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.base import QUESTIONS, SPANS, bare, base_directory, with_adapter
from colmlm.model.annotate.batches import LengthBatches
from colmlm.model.annotate.checkpoint import AnnotatorConfig
from colmlm.model.annotate.config import QuestionConfig, SpanConfig, TunerConfig
from colmlm.model.annotate.question_training import QuestionNet, QuestionSequence, examples, question_loss
from colmlm.model.annotate.span_training import Annotated, TaggedWindow, tag_loss, tagged_windows
from colmlm.model.annotate.windows import WordTokenizer
from colmlm.model.lm.adapters import ADAPTER
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.lm.checkpoint import compute_dtype
from colmlm.model.lm.files import file_digest
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.gather import here, micro_batches
from colmlm.model.training.loop import Loop, LoopConfig, Progress
from colmlm.model.training.schedule import COSINE, Schedule
from colmlm.model.training.task import StepContext, StepMetrics, Task
from colmlm.model.training.trainer import hardware

Example = TypeVar("Example", TaggedWindow, QuestionSequence)
DEFAULT_THRESHOLD = 0.5


class _AnnotatorTask(Task[Sequence[Example]]):
    """The part that both annotators share: the base under its adapter, batches of similar length, saved files."""

    role: str
    prefix = ""  # the prefix that the module adds to the model's own names

    def __init__(self, config: TunerConfig, cache: Path, name: str) -> None:
        torch.manual_seed(config.seed)  # for the initial weights of the adapter and the head
        self.config, self.name = config, name
        self.source = base_directory(config.base, cache)
        self.base_sha256 = file_digest(self.source / WEIGHTS)
        # A frozen base is kept in the precision of the arithmetic; trained weights are kept in float32.
        frozen = config.lora_rank is not None
        model = bare(self.role, self.source, compute_dtype(config.precision) if frozen else torch.float32)
        self.model = with_adapter(self.role, model, config) if frozen else model

    def _take(self, examples: Sequence[Example], documents: int) -> None:
        self.examples: Sequence[Example] = examples
        self.num_documents = documents
        self.data_sha256 = _digest(examples)
        lengths = [len(example.ids) for example in examples]
        self.batches = LengthBatches(lengths, self.config.batch, self.config.seed)

    @property
    def num_steps(self) -> int:
        """The number of steps of the whole run."""
        return max(1, math.ceil(self.config.epochs * self.batches.per_epoch))

    def run(self, directory: Path, *, save_seconds: float = 180.0) -> Iterator[StepMetrics]:
        """Trains in `directory`, which is a loadable annotator from the first save on; resumes a run that is there."""
        self.loop: Loop[Sequence[Example]] = Loop(self, self._loop_config(save_seconds), directory)
        yield from self.loop.run()

    @property
    def progress(self) -> Progress:
        """How far the run has got."""
        return self.loop.progress

    def _loop_config(self, save_seconds: float) -> LoopConfig:
        config = self.config
        schedule = Schedule(
            kind=COSINE,
            steps=self.num_steps,
            max_seconds=config.max_seconds,
            peak=config.learning_rate,
            final=config.final_learning_rate,
            warmup_steps=round(config.warmup * self.num_steps),
        )
        return LoopConfig(
            schedule=schedule,
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            seed=config.seed,
            precision=config.precision,
            save_seconds=save_seconds,
        )

    def steps(self, start: int) -> Iterator[Sequence[Sequence[Example]]]:
        for chosen in self.batches.starting_at(start):
            yield micro_batches([self.examples[i] for i in chosen], self.config.micro_batch, here())

    def tokens(self, micro_batch: Sequence[Example]) -> int:
        return sum(len(example.ids) for example in micro_batch)

    def fingerprint(self) -> dict[str, str]:
        return {
            "annotator": self.role,
            "data": self.data_sha256,
            "base": self.base_sha256,
            "config": str(asdict(self.config)),
        }

    @abstractmethod
    def reading(self) -> dict[str, Any]:
        """Gives the settings with which the finished annotator reads texts."""

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the adapter, or all weights with their tokenizer, and the description last."""
        peft = self.model if isinstance(self.model, PeftModel) else None
        plain = {name.removeprefix(self.prefix): tensor.contiguous() for name, tensor in weights.items()}
        if peft is not None:
            state = get_peft_model_state_dict(peft, state_dict=plain, save_embedding_layers=False)
            save_file({k: v.contiguous() for k, v in state.items()}, directory / ADAPTER)
            peft.peft_config["default"].save_pretrained(str(directory))
        else:
            self.model.save_pretrained(directory, state_dict=plain)
            (directory / "tokenizer.json").write_bytes((self.source / "tokenizer.json").read_bytes())
        progress = self.progress
        training = {
            "config": asdict(self.config),
            "base_sha256": self.base_sha256,
            "data_sha256": self.data_sha256,
            "documents": self.num_documents,
            "examples": len(self.examples),
            "steps": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds),
            "epochs": round(progress.step / self.batches.per_epoch, 2),
            "hardware": hardware(),
            "torch": torch.__version__,
        }
        AnnotatorConfig(
            name=self.name,
            role=self.role,
            kind="full" if peft is None else "adapter",
            base=self.config.base,
            reading=self.reading(),
            training=training,
        ).save(directory)


class SpanTask(_AnnotatorTask[TaggedWindow]):
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


class QuestionTask(_AnnotatorTask[QuestionSequence]):
    """Trains the question generator (section 3.3, appendix A.2)."""

    role = QUESTIONS
    prefix = "model."
    config: QuestionConfig

    def __init__(
        self, config: QuestionConfig, documents: Sequence[AnnotatedDocument], cache: Path, name: str
    ) -> None:
        super().__init__(config, cache, name)
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


def _digest(examples: Iterable[TaggedWindow | QuestionSequence]) -> str:
    """Computes the SHA-256 of the examples' contents."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()
