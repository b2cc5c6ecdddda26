"""Unlearning by gradients: NPO and gradient ascent or difference (section 4, unlearning; Zhang et al., 2024).

These are the baselines for deletion from a knowledge base. They make no lookups: an answer is a text after its
question, and all its tokens are scored. With L the summed loss of an answer under the model, L0 that under the model it
starts from, and means over a batch:

- *npo*: ``-(2 / beta) * log sigmoid(beta * (L - L0))`` of the answers to forget. It is gradient ascent for a small
  beta, and its gradient vanishes as an answer becomes unlikely.
- *grad-ascent*: ``-L`` per token.

Both add `retain_weight` times the loss per token of equally many answers to keep: with it gradient ascent is known as
gradient difference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colmlm.kb.corpus.training_record import TrainingRecord, text_digest
from colmlm.model.lm.checkpoint import config_of
from colmlm.model.lm.config import require_fields
from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.tokens import FactTokenizer, pad_sequences
from colmlm.model.training.config import EXPERIMENTS, NPO, OBJECTIVES, SUFFIX, TrainConfig, read_config
from colmlm.model.training.loop import Loop, LoopConfig, Progress, Schedule
from colmlm.model.training.start import start
from colmlm.model.training.task import StepContext, StepMetrics, Task, micro_batches, process_rank

Pair = tuple[str, str]  # a question and its answer
_PAIRS = "questions and answers of unlearning, whose documents are not named"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnlearnConfig:
    """The settings of an unlearning run, which trains weights until they lose the answers to forget, and keep others.

    Each of `epochs` passes takes all answers to forget, `batch` a step. The rate rises in the first and then falls.
    """

    objective: str = NPO
    beta: float = 0.1
    retain_weight: float = 1.0
    epochs: int = 5
    batch: int = 8
    learning_rate: float = 1e-5
    weight_decay: float = 0.01
    precision: str = "auto"
    seed: int = 17

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}"
            )
        require_fields(self, "positive", lambda value: value > 0, "beta", "learning_rate", "epochs", "batch")
        require_fields(self, "0 or more", lambda value: value >= 0, "retain_weight", "weight_decay")


def unlearning_config(preset: str | None, changes: Mapping[str, Any]) -> UnlearnConfig:
    """Give the settings of a file (``NAME.toml``), of the paper (`npo`) or the defaults (None), with `changes` applied.

    Raises ValueError if there is no such preset or a setting is invalid; it names the setting.
    """
    if preset not in (None, NPO) and not preset.endswith(SUFFIX):
        raise ValueError(f"there is no preset {preset!r}; pass --config {NPO}, or name a file ({SUFFIX})")
    file = EXPERIMENTS / "npo.toml" if preset == NPO else preset and Path(preset).expanduser()
    return replace(read_config(UnlearnConfig, file) if file else UnlearnConfig(), **changes)


@dataclass(frozen=True, slots=True)
class AnswerSequence:
    """A question and its answer as one sequence. Tokens from `start` on are scored: the answer and the end of text."""

    number: int
    ids: tuple[int, ...]
    start: int

    @classmethod
    def of(cls, number: int, pair: Pair, tokenizer: FactTokenizer) -> AnswerSequence:
        question, answer = pair
        prompt = [tokenizer.begin, *tokenizer.encode(f"Question: {question}\nAnswer:")]
        return cls(number, (*prompt, *tokenizer.encode(f" {answer}"), tokenizer.end_of_text), len(prompt))

    @property
    def num_scored(self) -> int:
        return len(self.ids) - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """The answers of one micro-batch to forget, and equally many to keep."""

    forget: Sequence[AnswerSequence]
    retain: Sequence[AnswerSequence]


class AnswerModule(nn.Module):
    """A module that computes the summed loss of each answer in one forward, so that DDP and FSDP see a single call."""

    _no_split_modules = ("LlamaDecoderLayer",)  # the unit by which FSDP shards

    def __init__(self, lm: FactLM) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, answers: Sequence[AnswerSequence]) -> Tensor:
        """Compute [B]: the loss of each answer, summed over its scored tokens, in nats."""
        if not answers:  # a process without answers must still take part in the forward
            return (
                self.lm.hidden(torch.zeros(1, 1, dtype=torch.long, device=self.lm.device))
                .sum()
                .reshape(1)[:0]
            )
        ids_BT = pad_sequences([one.ids for one in answers], 0)[0].to(self.lm.device)
        states_BTD = self.lm.hidden(ids_BT)
        scored = [(row, at) for row, one in enumerate(answers) for at in range(one.start, len(one.ids))]
        rows_N, at_N = torch.tensor(scored, device=ids_BT.device).T
        logits_NV = self.lm.logits(states_BTD[rows_N, at_N - 1])
        losses_N = F.cross_entropy(logits_NV, ids_BT[rows_N, at_N], reduction="none")
        return losses_N.new_zeros(len(answers)).index_add(0, rows_N, losses_N)


class Unlearning(Task[Batch]):
    """One unlearning run in `directory`: iterate over `run()`, which yields the metrics of each step."""

    def __init__(
        self,
        config: UnlearnConfig,
        init: TrainConfig,
        forget: Sequence[Pair],
        retain: Sequence[Pair],
        directory: Path,
        cache: Path,
        name: str,
        *,
        keep_epochs: bool = False,
    ) -> None:
        """Prepare the run. With `keep_epochs` the checkpoints after all epochs but the last are kept as `epoch-1` etc.

        Raises `CheckpointError` if training cannot start from `init`.
        """
        self.config, self.init, self.name = config, init, name
        self.directory, self.keep_epochs = directory, keep_epochs
        self.begun = start(init, cache)
        self.module = AnswerModule(self.begun.lm)
        of = partial(AnswerSequence.of, tokenizer=self.begun.tokenizer)
        self.forget, self.retain = ([of(*one) for one in enumerate(pairs)] for pairs in (forget, retain))
        self.data_sha256 = sha256(repr((self.forget, self.retain)).encode()).hexdigest()
        self._texts = {text_digest(f"{question} {answer}") for question, answer in (*forget, *retain)}
        self.before = torch.empty(0)
        self.loop = Loop(self, self._loop_config(), directory)

    def run(self) -> Iterator[StepMetrics]:
        for metrics in self.loop.run():
            epoch, more = divmod(metrics.step, self.steps_per_epoch)
            if self.keep_epochs and not more and epoch < self.config.epochs:
                self.loop.export(self.directory / f"epoch-{epoch}")
            yield metrics

    @cached_property
    def record(self) -> TrainingRecord:
        """The record of the texts that the weights are trained on; answers to forget, once learnt, are in it too."""
        return self.begun.record.with_texts(self._texts, _PAIRS)

    @property
    def progress(self) -> Progress:
        return self.loop.progress

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.forget) / self.config.batch)

    def steps(self, start: int) -> Iterator[Sequence[Batch]]:
        for number in range(start, self.config.epochs * self.steps_per_epoch):
            forget = self._answers_to_forget(number)
            drawn = random.Random(f"{self.config.seed}/{number}")
            retain = drawn.choices(self.retain, k=len(forget)) if self.config.retain_weight else []
            shares = micro_batches(list(range(len(forget))), None, process_rank())
            yield [Batch([forget[i] for i in some], [retain[i] for i in some if retain]) for some in shares]

    def size(self, micro_batch: Batch) -> int:
        return len(micro_batch.forget)

    def tokens(self, micro_batch: Batch) -> int:
        return sum(len(one.ids) for one in (*micro_batch.forget, *micro_batch.retain))

    def begin(self, micro_batches: Sequence[Batch], context: StepContext) -> None:
        """Measure, before the first step, the loss of each answer to forget under the initial model."""
        if len(self.before) or self.config.objective != NPO:
            return
        context.module.eval()
        with torch.no_grad():
            some = range(0, len(self.forget), self.config.batch)
            self.before = torch.cat(
                [context.module(self.forget[i : i + self.config.batch]).cpu() for i in some]
            )
        context.module.train()

    def loss(self, micro_batch: Batch, context: StepContext) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        forget_B = context.module(micro_batch.forget)
        total = self._forget_terms(micro_batch.forget, forget_B).sum() / context.total
        parts: dict[str, float | Tensor] = {
            "forget": (forget_B / _scored_counts(micro_batch.forget, forget_B)).detach().sum() / context.total
        }
        if micro_batch.retain:
            retain_B = context.module(micro_batch.retain)
            kept = (retain_B / _scored_counts(micro_batch.retain, retain_B)).sum() / context.total
            total = total + self.config.retain_weight * kept
            parts["retain"] = kept.detach()
        return total, parts

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        self.begun.save(directory, weights, self.record)
        training = self.progress.record() | {
            "unlearning": asdict(self.config),
            "config": asdict(self.init),
            "base_sha256": self.begun.base_sha256,
            "data_sha256": self.data_sha256,
        }
        self.begun.checkpoint_config(self.name, self.init.method, training).save(directory)

    def resume_identity(self) -> dict[str, str]:
        return {
            "data": self.data_sha256,
            "base": str(self.begun.base_sha256),
            "init": self.init.init,
            "settings": str(asdict(self.config)),
            "kept epochs": str(self.keep_epochs),
        }

    def state(self) -> dict[str, Any]:
        return {"before": self.before}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.before = state["before"]

    def _answers_to_forget(self, number: int) -> list[AnswerSequence]:
        """Choose the answers that a step forgets: each epoch goes through all of them in an order of its own."""
        epoch, place = divmod(number, self.steps_per_epoch)
        order = list(self.forget)
        random.Random(f"{self.config.seed}/epoch {epoch}").shuffle(order)
        return order[place * self.config.batch : (place + 1) * self.config.batch]

    def _forget_terms(self, answers: Sequence[AnswerSequence], losses_B: Tensor) -> Tensor:
        """Compute [B]: the term of each answer to forget in the loss of the run's objective."""
        if self.config.objective != NPO:
            return -losses_B / _scored_counts(answers, losses_B)
        before_B = self.before[[one.number for one in answers]].to(losses_B)
        return -2 / self.config.beta * F.logsigmoid(self.config.beta * (losses_B - before_B))

    def _loop_config(self) -> LoopConfig:
        config = self.config
        steps = config.epochs * self.steps_per_epoch
        warmup = min(self.steps_per_epoch, steps - 1)
        schedule = Schedule(
            steps=steps, peak=config.learning_rate, warmup_steps=warmup, cooldown=1 - warmup / steps
        )
        return LoopConfig(
            schedule=schedule, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=config.weight_decay,
            clip_norm=1.0, seed=config.seed, precision=config.precision,
        )  # fmt: skip


def _scored_counts(answers: Sequence[AnswerSequence], like: Tensor) -> Tensor:
    """Give [B]: how many tokens of each answer are scored."""
    return torch.tensor([one.num_scored for one in answers]).to(like)


def continue_config(path: Path) -> TrainConfig:
    """Give the config that trains the checkpoint in `path` further in the same way: its adapter, or all its weights."""
    known = config_of(path)
    record = known.training.get("config")
    config = TrainConfig.from_record(record) if isinstance(record, dict) else TrainConfig()
    adapt = "lora" if known.kind == "adapter" else "full"
    return replace(config, init=str(path), architecture=None, adapt=adapt, method=known.method)
