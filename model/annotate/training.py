"""The training of annotators: the task of tuning a base, which the reader shares, and both annotators as such tasks."""

from __future__ import annotations

import hashlib
import math
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.training_record import TrainingRecord, text_digest
from colmlm.model.annotate.annotators import (
    NUMBERS,
    GeneratedQuestion,
    Prefix,
    cut_prefixes,
    mark_spans,
    question_suffix,
    question_target,
    span_number,
)
from colmlm.model.annotate.checkpoint import (
    QUESTIONS,
    SPANS,
    AnnotatorConfig,
    bare_model,
    base_directory,
    with_adapter,
    with_weights,
)
from colmlm.model.annotate.config import MINILM, QuestionConfig, SpanConfig, TunerConfig
from colmlm.model.annotate.spans import OUTSIDE, tags_of
from colmlm.model.lm.checkpoint import ADAPTER, WEIGHTS, compute_dtype, with_adapter_from
from colmlm.model.lm.config import CheckpointError, file_digest, record_in, record_over
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer, WordTokenizer, pad_sequences, windows
from colmlm.model.training.config import TrainingRefused
from colmlm.model.training.loop import COSINE, Loop, LoopConfig, Progress, Schedule
from colmlm.model.training.task import StepContext, StepMetrics, Task, micro_batches, process_rank


class _Sequence(Protocol):
    @property
    def ids(self) -> list[int]: ...


Example = TypeVar("Example", bound=_Sequence)


class FineTuningTask(Task[Sequence[Example]]):
    """The task of fine-tuning a pretrained model, by an adapter or whole, as an annotator or a reader."""

    role: str
    prefix = ""  # the prefix that the module adds to the model's own names

    def __init__(self, config: TunerConfig, cache: Path, name: str, start: Path | None = None) -> None:
        """Load the base from `cache`, or continue from the weights of the run in `start`, with a new schedule."""
        torch.manual_seed(config.seed)  # for the initial weights of the adapter and the head
        self.config, self.name = config, name
        self.source = base_directory(config.base, cache)
        self.base_sha256 = file_digest(self.source / WEIGHTS)
        self.before = None if start is None else _description_of(start, self.role, config, self.base_sha256)
        self._record_before = _record_before(start, self.before, config.base)
        # A frozen base is kept in the precision of the arithmetic; trained weights are kept in float32.
        if config.lora_rank is None:
            model = bare_model(self.role, self.source, torch.float32)
            self.model = model if start is None else with_weights(model, start)
            return
        model = bare_model(self.role, self.source, compute_dtype(config.precision))
        if start is None:
            self.model = with_adapter(self.role, model, config)
        else:
            self.model = with_adapter_from(model, start, trainable=True)

    def _set_examples(self, examples: Sequence[Example], documents: Sequence[AnnotatedDocument]) -> None:
        self.examples: Sequence[Example] = examples
        self.num_documents = len(documents)
        self._texts = {text_digest(document.text) for document in documents}
        self.data_sha256 = _digest(examples)
        lengths = [len(example.ids) for example in examples]
        self.batches = LengthBatches(lengths, self.config.batch, self.config.seed)

    @property
    def num_steps(self) -> int:
        """Compute the number of steps of the whole run."""
        return max(1, math.ceil(self.config.epochs * self.batches.per_epoch))

    def run(self, directory: Path, *, save_seconds: float = 180.0) -> Iterator[StepMetrics]:
        """Train in `directory`, which is a loadable annotator from the first save on; resume a run that is there."""
        self.loop: Loop[Sequence[Example]] = Loop(self, self._loop_config(save_seconds), directory)
        yield from self.loop.run()

    @cached_property
    def record(self) -> TrainingRecord:
        """The record of the texts that the weights are trained on, also before this run; made once."""
        return self._record_before.with_texts(self._texts)

    @property
    def progress(self) -> Progress:
        """Give the progress of the run: its steps, tokens and seconds so far."""
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
            yield micro_batches([self.examples[i] for i in chosen], self.config.micro_batch, process_rank())

    def tokens(self, micro_batch: Sequence[Example]) -> int:
        return sum(len(example.ids) for example in micro_batch)

    def resume_identity(self) -> dict[str, str]:
        """Give what a resumed run must share: role, data, base weights, settings and the weights to start from."""
        return {
            "annotator": self.role,
            "data": self.data_sha256,
            "base": self.base_sha256,
            "config": str(asdict(self.config)),
            "start": str(self.before.digests) if self.before else "",
        }

    @abstractmethod
    def reading(self) -> dict[str, Any]:
        """Give the settings with which the finished annotator reads texts."""

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the adapter, or all weights with their tokenizer, and the description last."""
        peft = self.model if isinstance(self.model, PeftModel) else None
        plain = {name.removeprefix(self.prefix): tensor.contiguous() for name, tensor in weights.items()}
        if peft is not None:
            state = get_peft_model_state_dict(peft, state_dict=plain, save_embedding_layers=False)
            save_file({k: v.contiguous() for k, v in state.items()}, directory / ADAPTER)
            peft.peft_config["default"].save_pretrained(str(directory))
        else:
            frozen = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
            self.model.save_pretrained(directory, state_dict=frozen | plain)
            (directory / "tokenizer.json").write_bytes((self.source / "tokenizer.json").read_bytes())
        self.record.save(directory)
        training = self.progress.record() | {
            "config": asdict(self.config),
            "base_sha256": self.base_sha256,
            "data_sha256": self.data_sha256,
            "documents": self.num_documents,
            "examples": len(self.examples),
            "epochs": round(self.progress.step / self.batches.per_epoch, 2),
            **({"before": self.before.training} if self.before else {}),
        }
        AnnotatorConfig(
            name=self.name,
            role=self.role,
            kind="full" if peft is None else "adapter",
            base=self.config.base,
            reading=self.reading(),
            training=training,
        ).save(directory)


def _description_of(start: Path, role: str, config: TunerConfig, base_sha256: str) -> AnnotatorConfig:
    """Read the description of the run in `start`. Raises CheckpointError if role, kind or base are not as asked for."""
    before = AnnotatorConfig.load(start, role)
    if (before.kind == "adapter") != (config.lora_rank is not None):
        rank = before.training.get("config", {}).get("lora_rank") if before.kind == "adapter" else "none"
        was = "an adapter" if before.kind == "adapter" else "all weights"
        now = "none" if config.lora_rank is None else config.lora_rank
        raise CheckpointError(
            f"{start} trained {was}, and lora_rank is {now}; pass --set lora_rank={rank or 'N'}"
        )
    if before.training.get("base_sha256") != base_sha256:
        raise CheckpointError(
            f"{start}: no weights to go on from, of base {before.base}; pass --set base={before.base}"
        )
    return before


def _record_before(start: Path | None, before: AnnotatorConfig | None, base: str) -> TrainingRecord:
    """Give the training record of the weights that a run starts from; if they have none, a new one that says so."""
    if start is None or before is None:
        return TrainingRecord.begin(base=base) if base == MINILM else record_over(base)
    known = record_in(start, before.digests)
    return known or TrainingRecord.begin(unknown=f"{before.name}, which it goes on from, has no record")


def _digest(examples: Iterable[_Sequence]) -> str:
    """Compute the SHA-256 of the contents of all examples, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()


# The order in which an annotator is trained on its examples: seeded, endless, and with little padding.

POOL = 16  # the number of steps whose examples are sorted by length together


class LengthBatches:
    """Batches of examples of similar length; batch n is the same in every run.

    Each epoch is shuffled, then cut into pools of a few steps each. Within a pool examples are sorted by length, so
    that a step needs little padding; then the steps of the epoch are shuffled again. Examples that do not fill the last
    batch are left out of this epoch.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        if not lengths:
            raise TrainingRefused(
                "no examples to train on, so nothing was trained; name documents with facts that this annotator needs"
            )
        self.lengths = lengths
        self.batch = min(batch, len(lengths))
        self.seed = seed
        self.per_epoch = len(lengths) // self.batch

    def starting_at(self, step: int) -> Iterator[list[int]]:
        """Yield the batches from step number `step` on, each a list of indices of examples."""
        while True:
            epoch, within = divmod(step, self.per_epoch)
            yield from self._epoch(epoch)[within:]
            step = (epoch + 1) * self.per_epoch

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        order = order[: self.per_epoch * self.batch]
        size = POOL * self.batch
        pools = (
            sorted(order[at : at + size], key=lambda i: -self.lengths[i]) for at in range(0, len(order), size)
        )
        batches = [pool[at : at + self.batch] for pool in pools for at in range(0, len(pool), self.batch)]
        rng.shuffle(batches)
        return batches


# The annotators as tasks: the trained module, its examples, and how it reads texts.

# Training of the span annotator: BIO tags of words, with a lower weight for words that may be unmarked facts.
#
# A set of questions such as SQuAD's marks the few spans of a paragraph that somebody asked about. A word
# outside them may be a fact all the same, so it has a lower weight there (`SpanConfig.outside_weight`); in
# documents whose facts are all marked the weight is 1. If the asked-about facts are a random part of all,
# lowering that weight shifts the odds of "outside" by a constant, so it only shifts the threshold, which can
# be set to undo it.

_NO_TAG = -100


@dataclass(frozen=True, slots=True)
class TaggedWindow:
    """A window of a document: its tokens, and the tag and weight of each (only words' first tokens have one)."""

    ids: list[int]
    tags: list[int]
    weights: list[float]

    @property
    def num_words(self) -> int:
        return sum(tag != _NO_TAG for tag in self.tags)


@dataclass(frozen=True, slots=True)
class TrainingDocuments:
    """Documents to learn from; `dense` if every fact of each is marked."""

    documents: Sequence[AnnotatedDocument]
    dense: bool


def tagged_windows(
    tokenizer: WordTokenizer, corpora: Sequence[TrainingDocuments], config: SpanConfig
) -> Iterator[TaggedWindow]:
    """Yield each document's overlapping windows with BIO tags; a word is tagged only in the window that reads it."""
    for corpus in corpora:
        outside = 1.0 if corpus.dense else config.outside_weight
        for document in corpus.documents:
            encoded = tokenizer.encode(document.text)
            tags = tags_of(encoded.words, [(span.start, span.end) for span in document.facts])
            for window in windows(encoded, config.max_length - 2, config.overlap):
                ids = tokenizer.frame_ids(encoded.ids[window.start : window.end])
                placed, weights = [_NO_TAG] * len(ids), [0.0] * len(ids)
                for word in window.words:
                    at = encoded.first[word] - window.start + 1
                    placed[at] = tags[word]
                    weights[at] = outside if tags[word] == OUTSIDE else 1.0
                yield TaggedWindow(ids, placed, weights)


def tag_loss(module: Any, batch: Sequence[TaggedWindow], pad: int, device: torch.device) -> Tensor:
    """Sum the weighted cross-entropies of the batch's words."""
    ids_BT, mask_BT = pad_sequences([window.ids for window in batch], pad)
    logits_BT3 = module(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
    tags_BT = torch.full(ids_BT.shape, _NO_TAG)
    weights_BT = torch.zeros(ids_BT.shape)
    for row, window in enumerate(batch):
        tags_BT[row, : len(window.ids)] = torch.tensor(window.tags)
        weights_BT[row, : len(window.ids)] = torch.tensor(window.weights)
    losses_N = F.cross_entropy(
        logits_BT3.float().flatten(0, 1), tags_BT.flatten().to(device), ignore_index=_NO_TAG, reduction="none"
    )
    return (losses_N * weights_BT.flatten().to(device)).sum()


# Training of the question generator on one sequence per document: its prefix, then every question after its
# suffix.
#
# The attention mask lets each question see what it sees when it is generated: the prefix up to its stop, its
# own suffix and its own words so far, but no other question. So one pass over a document trains all its
# questions.


@dataclass(frozen=True, slots=True)
class QuestionSequence:
    """A prefix with its questions after it, as one sequence.

    For token t: `segments[t]` is 0 in the prefix and n in question n; `stops[t]` is the number of prefix tokens it
    sees; `positions[t]` is its position if its question were alone; `learnt[t]` says whether the loss counts it.
    """

    ids: list[int]
    segments: list[int]
    stops: list[int]
    positions: list[int]
    learnt: list[bool]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_learnt(self) -> int:
        return sum(self.learnt)


def question_sequences(
    tokenizer: FactTokenizer, documents: Sequence[AnnotatedDocument], config: QuestionConfig
) -> Iterator[QuestionSequence]:
    """Yield a sequence for each window of each document in which at least one span has a question.

    A document's spans are numbered from a random number on, since a short document would never show a high one.
    """
    for ordinal, document in enumerate(documents):
        first = random.Random(f"{config.seed}/{ordinal}").randrange(1, NUMBERS + 1)
        spans = [(span.start, span.end) for span in document.facts]
        marked = mark_spans(tokenizer, document.text, spans, document.title, first=first)
        for prefix in cut_prefixes(marked, config.max_length):
            asked = _question_sequence(tokenizer, document, prefix, first)
            if asked.num_learnt:
                yield asked


def _question_sequence(
    tokenizer: FactTokenizer, document: AnnotatedDocument, prefix: Prefix, first: int
) -> QuestionSequence:
    length = len(prefix.ids)
    asked = QuestionSequence(
        list(prefix.ids), [0] * length, [length] * length, list(range(length)), [False] * length
    )
    for segment, (index, stop) in enumerate(zip(prefix.spans, prefix.stops, strict=True), start=1):
        span = document.facts[index]
        if not span.question:
            continue
        lead = question_suffix(tokenizer, span.value, span_number(index, first))
        written = question_target(tokenizer, GeneratedQuestion(span.question, span.answer or span.value))
        count = len(lead) + len(written)
        asked.ids.extend([*lead, *written])
        asked.segments.extend([segment] * count)
        asked.stops.extend([stop] * count)
        asked.positions.extend(range(stop, stop + count))
        asked.learnt.extend([False] * len(lead) + [True] * len(written))
    return asked


def visibility_mask(asked: QuestionSequence, length: int) -> Tensor:
    """Make the [T, T] mask, True where token i may look at token j; indices from the sequence's end on are padding.

    A padding row looks at itself, since a row that sees nothing has no softmax.
    """
    segments_T = torch.full((length,), -1)
    stops_T = torch.zeros(length, dtype=torch.long)
    segments_T[: len(asked)] = torch.tensor(asked.segments)
    stops_T[: len(asked)] = torch.tensor(asked.stops)
    at_T = torch.arange(length)
    own_TT = segments_T[:, None] == segments_T[None, :]
    prefix_TT = (segments_T[None, :] == 0) & (at_T[None, :] < stops_T[:, None])
    return (own_TT | prefix_TT) & (at_T[None, :] <= at_T[:, None])


class QuestionNet(nn.Module):
    """A causal language model, bare or under an adapter, that computes logits only for the learnt tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor, visible_B1TT: Tensor, learnt_BT: Tensor
    ) -> Tensor:
        """Give [N, V] logits of the N learnt tokens, each read at the token before it, in float32."""
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        states_BTD = causal.model(
            input_ids=ids_BT, position_ids=positions_BT, attention_mask=visible_B1TT, use_cache=False
        ).last_hidden_state
        # The token before a learnt one is in the same question, since a suffix is never empty.
        return causal.lm_head(states_BTD[:, :-1][learnt_BT[:, 1:]]).float()


def question_loss(module: Any, batch: Sequence[QuestionSequence], device: torch.device) -> Tensor:
    """Sum the cross-entropies of the tokens of the batch's questions and answers."""
    ids_BT, _ = pad_sequences([asked.ids for asked in batch], 0)
    positions_BT, _ = pad_sequences([asked.positions for asked in batch], 0)
    learnt_BT = pad_sequences([[int(x) for x in asked.learnt] for asked in batch], 0)[0].bool()
    visible_B1TT = torch.stack([visibility_mask(asked, ids_BT.shape[1]) for asked in batch])[:, None]
    logits_NV = module(
        ids_BT.to(device), positions_BT.to(device), visible_B1TT.to(device), learnt_BT.to(device)
    )
    return F.cross_entropy(logits_NV, ids_BT[learnt_BT].to(device), reduction="sum")


DEFAULT_THRESHOLD = 0.5


class SpanTask(FineTuningTask[TaggedWindow]):
    """The task of training the fact-span annotator (section 3.3, appendix A.2)."""

    role = SPANS
    config: SpanConfig

    def __init__(
        self, config: SpanConfig, corpora: Sequence[TrainingDocuments], cache: Path, name: str
    ) -> None:
        super().__init__(config, cache, name)
        self.module = self.model
        tokenizer = WordTokenizer.load(self.source / "tokenizer.json")
        self.pad = tokenizer.pad
        documents = [document for corpus in corpora for document in corpus.documents]
        self._set_examples(list(tagged_windows(tokenizer, corpora, config)), documents)

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


class QuestionTask(FineTuningTask[QuestionSequence]):
    """The task of training the question generator (section 3.3, appendix A.2)."""

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
        self._set_examples(list(question_sequences(tokenizer, documents, config)), documents)

    def size(self, micro_batch: Sequence[QuestionSequence]) -> int:
        return sum(asked.num_learnt for asked in micro_batch)

    def loss(
        self, micro_batch: Sequence[QuestionSequence], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        return question_loss(context.module, micro_batch, context.device) / max(1, context.total), {}

    def reading(self) -> dict[str, Any]:
        return {"window": self.config.max_length, "max_new_tokens": self.config.max_new_tokens}
