"""Training with the joint objective (section 3.2), for each of the four methods.

Only a method whose query is a hidden state has the contrastive loss; the others ask in words, or not at all, and learn
to predict the next token only. The contrastive loss covers the whole batch, however many micro-batches and processes it
is cut into.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.training_record import TrainingRecord
from colmlm.model.lm.config import CONFIG_FILE, CheckpointConfig
from colmlm.model.lm.language_model import FactLM, unit
from colmlm.model.text.tokens import EncodedText, FactTokenizer
from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.contrast import (
    FIXED_TARGETS,
    HEAD_POSITIONS,
    NO_TARGET,
    PairGradient,
    PairMemory,
    Pairs,
    contrast_pairs,
    next_token_sum,
    question_ids,
)
from colmlm.model.training.corpora import Corpus, apportion, tokenise
from colmlm.model.training.forward import (
    CPU_TOKENS,
    GPU_TOKENS,
    PACKED,
    MergedAdapters,
    Rows,
    compile_layers,
    lay_out,
)
from colmlm.model.training.loop import Loop, LoopConfig, Progress, Schedule
from colmlm.model.training.start import keep_only_layer_inputs, start
from colmlm.model.training.state import STATE_FILE, restore_torch, torch_state
from colmlm.model.training.steps import DrawnDocument, Step, Steps
from colmlm.model.training.task import (
    StepContext,
    StepMetrics,
    Task,
    accumulation,
    gather_rows,
    largest_of_ranks,
    micro_batches,
    process_rank,
)

# Micro-batches as tensors: the input of one forward of the joint objective (section 3.2).


@dataclass(frozen=True, slots=True)
class JointBatch:
    """Sequences laid out in `rows` (`model.training.forward`), and the positions where their losses apply.

    Positions are numbered consecutively over all rows. `scored_N` are the positions whose states predict `targets_N`:
    all tokens outside lookups, or a sample of them. Entries after the first `num_targets` are padding without a loss.
    `facts_P` and `queries_P` are the positions of the pairs, and `questions_P` numbers the question of each.
    """

    rows: tuple[Rows, ...]
    scored_N: Tensor
    targets_N: Tensor
    facts_P: Tensor
    queries_P: Tensor
    questions_P: Tensor
    num_tokens: int
    num_targets: int

    @property
    def num_pairs(self) -> int:
        return len(self.facts_P)

    def to(self, device: torch.device) -> JointBatch:
        """Copy the batch to `device`; a pinned batch is copied while the GPU computes."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True), lambda row: row.to(device))

    def pin(self) -> JointBatch:
        return self._map(Tensor.pin_memory, Rows.pin)

    def without_targets(self) -> JointBatch:
        """Give the batch without targets of the next-token loss, for its pairs alone."""
        return replace(self, scored_N=self.scored_N[:0], targets_N=self.targets_N[:0])

    def with_rows(self, count: int) -> JointBatch:
        """Add rows of one token until there are `count`, so that all processes make equally many forwards."""
        filler = lay_out((), 1, is_fixed=False)[0] * (count - len(self.rows))
        return replace(self, rows=self.rows + filler)

    def _map(self, of_tensor: Callable[[Tensor], Tensor], of_row: Callable[[Rows], Rows]) -> JointBatch:
        names = ("scored_N", "targets_N", "facts_P", "queries_P", "questions_P")
        made = {name: of_tensor(getattr(self, name)) for name in names}
        return replace(self, rows=tuple(map(of_row, self.rows)), **made)


def joint_batch(
    step: Step,
    *,
    pairs: bool,
    fraction: float,
    salt: int,
    most_tokens: int = CPU_TOKENS,
    is_fixed: bool = False,
) -> JointBatch:
    """Make the tensors of a step, or of a part of one. `pairs` False leaves the contrastive part out.

    `most_tokens` and `is_fixed` are those of `lay_out`; `is_fixed` also pads the targets to a multiple of
    `FIXED_TARGETS`. A share `fraction` of the unmasked tokens are targets. Which ones depends on `salt` and on the
    sequence alone, not on the rest of the batch or on the hardware.
    """
    rows, starts = lay_out(step.sequences, most_tokens, is_fixed=is_fixed)
    scored, targets = [], []
    for sequence, first_token, is_scored in zip(step.sequences, starts, step.scored, strict=True):
        if is_scored:
            kept_N = _kept_positions(sequence, fraction, salt)
            scored.append(first_token + kept_N - 1)
            targets.append(torch.tensor(sequence.ids)[kept_N])
    chosen = step.pairs if pairs else ()
    num_targets = sum(map(len, targets))
    if is_fixed and num_targets:
        unused = -num_targets % FIXED_TARGETS
        scored.append(torch.zeros(unused, dtype=torch.long))
        targets.append(torch.full((unused,), NO_TARGET))
    return JointBatch(
        rows=rows,
        scored_N=_join_pieces(scored),
        targets_N=_join_pieces(targets),
        facts_P=torch.tensor([starts[p.fact_sequence] + p.fact_position for p in chosen], dtype=torch.long),
        queries_P=torch.tensor([starts[p.query_sequence] + p.query_position for p in chosen], dtype=torch.long),
        questions_P=question_ids([p.question for p in chosen]),
        num_tokens=step.num_tokens,
        num_targets=num_targets,
    )  # fmt: skip


def lookups_batch(
    sequences: Sequence[EncodedText], most_tokens: int = CPU_TOKENS, *, is_fixed: bool = False
) -> JointBatch:
    """Make the batch of sequences without a loss; `facts_P` are the positions of all their lookups, in order."""
    rows, starts = lay_out(sequences, most_tokens, is_fixed=is_fixed)
    nothing = torch.zeros(0, dtype=torch.long)
    lookups = [
        first_token + at for first_token, s in zip(starts, sequences, strict=True) for at in s.fact_positions
    ]
    at_P = torch.tensor(lookups, dtype=torch.long)
    return JointBatch(rows, nothing, nothing, at_P, nothing, nothing, sum(map(len, sequences)), 0)


def _kept_positions(sequence: EncodedText, fraction: float, salt: int) -> Tensor:
    """Give the positions of the tokens with a next-token loss: a share `fraction` of a sequence's unmasked tokens."""
    outside = ~torch.tensor(sequence.masked)
    outside[:1] = False  # no token before it predicts it
    if fraction < 1.0:
        digest = zlib.crc32(array("q", sequence.ids).tobytes(), salt & 0xFFFFFFFF)
        outside &= torch.rand(len(outside), generator=torch.Generator().manual_seed(digest)) < fraction
    return outside.nonzero().flatten()


def _join_pieces(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(pieces)) if pieces else torch.zeros(0, dtype=torch.long)


# A run may be resumed with other values of these settings, which do not change what is learnt.
_FREE = (
    "preset", "init", "precision", "checkpointing", "micro_documents", "micro_rows", "forward_tokens",
    "compile", "save_seconds",
)  # fmt: skip
# The loop itself checks these.
_OF_THE_LOOP = (
    "steps", "max_seconds", "warmup_steps", "cooldown_steps", "cooldown", "learning_rate", "final_learning_rate",
    "beta1", "beta2", "epsilon", "clip_norm", "weight_decay", "seed",
)  # fmt: skip
KEYS_AT_ONCE = 64

Data = Sequence[AnnotatedDocument] | Callable[[FactTokenizer], Sequence[Corpus]]


class JointModule(nn.Module):
    """A module that computes all parts of the joint loss in one forward, so that DDP and FSDP see a single call."""

    _no_split_modules = ("LlamaDecoderLayer",)  # the unit by which FSDP shards

    def __init__(self, lm: FactLM, head_positions: int = HEAD_POSITIONS) -> None:
        super().__init__()
        self.lm, self.head_positions = lm, head_positions

    def forward(
        self, rows: Sequence[Rows], scored_N: Tensor, targets_N: Tensor, facts_P: Tensor, queries_P: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the sum of -log p over the targets, and the unit vectors [P, D] at the facts and at the questions."""
        states_TD = torch.cat([self.lm.hidden(*some).flatten(0, 1) for some in rows])
        next_token = next_token_sum(
            self.lm, states_TD.index_select(0, scored_N), targets_N, self.head_positions
        )
        facts_PD, queries_PD = (unit(states_TD.index_select(0, at_P)) for at_P in (facts_P, queries_P))
        return next_token, facts_PD, queries_PD


@dataclass(frozen=True, slots=True)
class _FirstPass:
    """The results of the first pass over a micro-batch (`Trainer.begin`) that the second pass needs."""

    num_rows: int
    random: dict[str, Tensor] | None = None
    pull: PairGradient | None = None


class Trainer(Task[JointBatch]):
    """One training run: build it, then iterate over `run()`, which trains and yields the metrics of each step.

    `data` are documents, or a function that makes corpora with the run's tokenizer. `tell` is called with messages on
    the size of the run's steps.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: Data,
        directory: Path,
        cache: Path,
        name: str,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        config, self.asked_steps = resumed_steps(config, directory)
        self.config, self.directory, self.name, self._tell = config, directory, name, tell
        self.begun = start(config, cache)
        self.lm, self.tokenizer = self.begun.lm, self.begun.tokenizer
        if config.checkpointing:
            keep_only_layer_inputs(self.lm.causal)
        self.is_fixed = config.forward_tokens is not None or torch.cuda.is_available()
        self.most_tokens = config.forward_tokens or (GPU_TOKENS if self.is_fixed else CPU_TOKENS)
        self.lm.causal.set_attn_implementation(PACKED)
        self.adapters = MergedAdapters(self.lm.model)
        self.module = JointModule(self.lm, FIXED_TARGETS if self.is_fixed else HEAD_POSITIONS)
        if config.compile:
            compile_layers(self.lm.causal)
        self.corpora = data(self.tokenizer) if callable(data) else [tokenise(data, self.tokenizer, config)]
        self.source = Steps(self.corpora, self.tokenizer, config, keys=self._keys)
        self.memory = PairMemory(config.memory)
        self.loop = Loop(self, loop_config(config), directory)
        self._first_passes: deque[_FirstPass] = deque()

    def run(self) -> Iterator[StepMetrics]:
        """Train to the end, saving every few minutes and once more at the end; resume from the last save."""
        return self.loop.run()

    @cached_property
    def record(self) -> TrainingRecord:
        """The record of what the weights are trained on; made once, since every document takes milliseconds."""
        return self.source.add_to_record(self.begun.record)

    @property
    def progress(self) -> Progress:
        return self.loop.progress

    @property
    def is_contrastive(self) -> bool:
        """Tell whether the run has a contrastive loss: its method makes keys of questions, and it has a weight."""
        return self.config.markup.key is not None and self.config.contrastive_weight > 0

    def steps(self, start: int) -> Iterator[list[JointBatch]]:
        if self._tell is not None:
            size, most = StepSize.of(self.config), self.config.steps
            self._tell(f"step {start + 1} of at most {most}: {size} of {self.source.num_documents} a step")
        if self.config.hard_negatives:  # each step is mined with the model after the step before
            yield from map(self._add_empty_batches, map(self.batches, count(start)))
            return
        with ThreadPoolExecutor(max_workers=1) as ahead:
            made = ahead.submit(self.batches, start)
            for number in count(start + 1):
                following = ahead.submit(self.batches, number)
                yield self._add_empty_batches(made.result())
                made = following

    def size(self, micro_batch: JointBatch) -> int:
        return micro_batch.num_targets

    def tokens(self, micro_batch: JointBatch) -> int:
        return micro_batch.num_tokens

    def probes(self) -> Sequence[JointBatch]:
        """Make two probes of the first document's beginning, and one of all of it; with a fixed size, two full ones."""
        if self.is_fixed:
            return self.batches(0)[:1] * 2
        first = self.source.draw_documents(0)[0]
        place = replace(first.place, end=min(first.place.end, first.place.start + FIRST_TOKENS))
        documents = (*[replace(first, place=place)] * 2, first)
        return [self._batch(self.source.build([document]), 0) for document in documents]

    def fit(self, seconds_per_token: float, seconds: float) -> None:
        """Make steps smaller if too few of them fit into `seconds`. Raises TrainingRefused if not even one fits."""
        drawn = self.source.draw_documents(0)
        step, world = self.source.build(drawn), process_rank().world
        several = accumulation(len(drawn), self.source.most_per_forward(len(drawn)), world) > 1
        several |= self.is_fixed and step.num_tokens > self.most_tokens * world
        cost = seconds_per_token / world * (LOOK_AHEAD if several and self.is_contrastive else 1.0)
        tokens = step.num_tokens
        fitted = fitted_config(self.config, cost * tokens, seconds)
        self.source = Steps(self.corpora, self.tokenizer, fitted, keys=self._keys)
        self.memory = PairMemory(fitted.memory)
        if self._tell is not None:
            self._tell(describe_fit(self.config, fitted, cost * tokens, seconds))
        self.config = fitted

    def begin(self, micro_batches: Sequence[JointBatch], context: StepContext) -> None:
        """Compute the contrastive gradient over all micro-batches of a step beforehand, if there are several."""
        self._first_passes = deque(_FirstPass(count) for count in self._row_counts(micro_batches, context))
        if self.is_contrastive and len(micro_batches) > 1:
            self._first_passes = self._look_ahead(micro_batches, context)

    def loss(self, micro_batch: JointBatch, context: StepContext) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Compute L_NTP + weight * L_CL: this micro-batch's share of both sums (section 3.2)."""
        first = self._first_passes.popleft()
        if first.random is not None:
            restore_torch(first.random)
        batch = micro_batch.with_rows(first.num_rows).to(context.device)
        summed, facts_PD, queries_PD = _forward(batch, context)
        next_token = summed / max(1, context.total)
        parts: dict[str, float | Tensor] = {"next_token": next_token.detach()}
        if not self.is_contrastive:
            return next_token, parts
        pull = first.pull or self._pull(Pairs(facts_PD.detach(), queries_PD.detach(), batch.questions_P))
        contrastive = pull.surrogate(facts_PD, queries_PD)
        parts |= {
            "contrastive": contrastive.detach(),
            "accuracy": pull.nearest_N.sum(),
            "pairs": batch.num_pairs,
        }
        return next_token + self.config.contrastive_weight * contrastive, parts

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Save the trained weights as a checkpoint."""
        self.begun.save(directory, weights, self.record)
        self.checkpoint_config().save(directory)

    def resume_identity(self) -> dict[str, str]:
        settings = {
            name.replace("_", " "): str(value)
            for name, value in asdict(self.config).items()
            if name not in _FREE and name not in _OF_THE_LOOP
        }
        return settings | {"data": self.source.sha256, "base": str(self.begun.base_sha256)}

    def state(self) -> dict[str, Any]:
        return {"memory": self.memory.state(), "data": self.source.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.memory.load(state["memory"])
        self.source.restore(state["data"])

    def checkpoint_config(self) -> CheckpointConfig:
        training: dict[str, Any] = self.progress.record() | {
            "config": asdict(self.config),
            "asked_steps": asdict(self.asked_steps),
            "base_sha256": self.begun.base_sha256,
            "data_sha256": self.source.sha256,
            "documents": self.source.num_documents,
            "epochs": round(self.source.epochs(self.progress.step), 2),
            "precision": str(self.lm.compute).removeprefix("torch."),
        }
        return self.begun.checkpoint_config(self.name, self.config.method, training)

    def batches(self, number: int) -> list[JointBatch]:
        """Make this process's micro-batches of step `number`."""
        drawn = self.source.draw_documents(number)
        shares = micro_batches(drawn, self.source.most_per_forward(len(drawn)), process_rank())
        made = [self._batch(step, number) for share in shares for step in self._steps_of(share)]
        return [batch.pin() for batch in made] if torch.cuda.is_available() else made

    def _steps_of(self, share: Sequence[DrawnDocument]) -> list[Step]:
        """Build the sequences of a micro-batch; with a fixed size, in parts whose documents fill one forward each."""
        if not self.is_fixed:
            return [self.source.build(share)]
        parts: list[list[Step]] = [[]]
        room = self.most_tokens
        for document in share:
            step = self.source.build([document])
            if step.num_tokens > room and parts[-1]:
                parts.append([])
                room = self.most_tokens
            parts[-1].append(step)
            room -= step.num_tokens
        return [Step.of(part) for part in parts]

    def _batch(self, step: Step, number: int) -> JointBatch:
        return joint_batch(
            step,
            pairs=self.is_contrastive,
            fraction=self.config.ntp_fraction,
            salt=self.config.seed * 1_000_003 + number,
            most_tokens=self.most_tokens,
            is_fixed=self.is_fixed,
        )

    def _add_empty_batches(self, batches: list[JointBatch]) -> list[JointBatch]:
        """Add empty micro-batches until all processes have equally many, which only a fixed size makes necessary."""
        if self.is_fixed and process_rank().world > 1:
            (most,) = largest_of_ranks([len(batches)], self.loop.context().device)
            batches += [self._batch(Step.of([]), 0)] * (most - len(batches))
        return batches

    def _look_ahead(self, batches: Sequence[JointBatch], context: StepContext) -> deque[_FirstPass]:
        """Run the first pass of gradient caching: all vectors without gradients, then the loss's gradient at them.

        Both passes must have the same dropout, so the generators' states before each micro-batch are kept for the
        second.
        """
        randoms, seen = [], []
        for first, batch in zip(self._first_passes, batches, strict=True):
            randoms.append(torch_state())
            batch = batch.with_rows(first.num_rows).to(context.device)
            with torch.no_grad():
                _, facts_PD, queries_PD = _forward(batch.without_targets(), context)
            seen.append(Pairs(facts_PD, queries_PD, batch.questions_P))
        pulls = self._pull(Pairs.of(seen)).split([len(pairs) for pairs in seen])
        return deque(
            _FirstPass(first.num_rows, random, pull)
            for first, random, pull in zip(self._first_passes, randoms, pulls, strict=True)
        )

    def _keys(self, sequences: Sequence[EncodedText]) -> list[NDArray[np.float32]]:
        """Compute the unit vectors at each sequence's lookups with the current model; each process computes a share."""
        context = self.loop.context()
        shares = micro_batches(sequences, KEYS_AT_ONCE, process_rank())
        batches = [lookups_batch(some, self.most_tokens, is_fixed=self.is_fixed) for some in shares]
        counts = self._row_counts(batches, context)
        context.module.eval()
        with torch.no_grad():
            rows = [
                _forward(batch.with_rows(count).to(context.device), context)[1]
                for batch, count in zip(batches, counts, strict=True)
            ]
        context.module.train()
        gathered = gather_rows(torch.cat(rows))[0].cpu().numpy()
        ends = np.cumsum([len(sequence.fact_positions) for sequence in sequences])
        return list(np.split(gathered, ends[:-1]))

    def _row_counts(self, batches: Sequence[JointBatch], context: StepContext) -> list[int]:
        """Count the forwards of each batch; under FSDP all processes make as many as the one that needs most."""
        counts = [len(batch.rows) for batch in batches]
        return largest_of_ranks(counts, context.device) if context.sharded else counts

    def _pull(self, pairs: Pairs) -> PairGradient:
        config = self.config
        return contrast_pairs(pairs, config.temperature, self.memory, equal_negatives=config.equal_negatives)


def _forward(batch: JointBatch, context: StepContext) -> tuple[Tensor, Tensor, Tensor]:
    return context.module(batch.rows, batch.scored_N, batch.targets_N, batch.facts_P, batch.queries_P)


def loop_config(config: TrainConfig) -> LoopConfig:
    """Make the loop's settings from the config of the run."""
    schedule = Schedule(
        steps=config.steps,
        max_seconds=config.max_seconds,
        peak=config.learning_rate,
        final=config.final_learning_rate,
        warmup_steps=config.warmup_steps,
        cooldown=config.cooldown_share,
    )
    return LoopConfig(
        schedule=schedule, beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon, seed=config.seed,
        weight_decay=config.weight_decay, clip_norm=config.clip_norm, precision=config.precision,
        save_seconds=config.save_seconds,
    )  # fmt: skip


# Fitting of steps into the time of a run: a step takes fewer documents where too few of its size would fit.

FEWEST_STEPS = 10  # that a run makes in its time, unless a step of one document takes longer
FIRST_TOKENS = 32  # of a document, that are timed before all of it
LOOK_AHEAD = 4 / 3  # several micro-batches cost one more forward; a backward costs two


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """The settings of a run that determine the size of its steps."""

    batch_documents: int
    batch_rows: int | None
    block: int

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(batch_documents=config.batch_documents, batch_rows=config.batch_rows, block=config.block)

    def __str__(self) -> str:
        number, what = self.batch_rows or self.batch_documents, "row" if self.batch_rows else "document"
        return f"{number} {what}{'' if number == 1 else 's'}"


def resumed_steps(config: TrainConfig, directory: Path) -> tuple[TrainConfig, StepSize]:
    """Give the config with the step size of the run in `directory`, and the step size first asked for.

    That run keeps its fitted size if `config` names it or the size first asked for; otherwise `config` stays unchanged.
    """
    asked = StepSize.of(config)
    if not (directory / STATE_FILE).is_file() or not (directory / CONFIG_FILE).is_file():
        return config, asked
    training = json.loads((directory / CONFIG_FILE).read_text()).get("training", {})
    before = training.get("asked_steps")
    now = {name: training.get("config", {}).get(name) for name in asdict(asked)}
    if before is None or asdict(asked) not in (before, now):
        return config, asked
    return replace(config, **now), StepSize(**before)


def fitted_config(config: TrainConfig, step_seconds: float, seconds: float) -> TrainConfig:
    """Give the config with the largest steps, at most its own, of which `FEWEST_STEPS` fit into `seconds`.

    If no step is that small, the smallest is taken. Raises TrainingRefused if not even one of those fits.
    """
    most = config.batch_rows or config.batch_documents
    each = step_seconds / most
    fitted = (
        config
        if each * most * FEWEST_STEPS <= seconds
        else _smaller(config, int(seconds / FEWEST_STEPS / each))
    )
    size = StepSize.of(fitted)
    if (needed := each * (size.batch_rows or size.batch_documents)) > seconds:
        raise TrainingRefused(
            f"no step fits into the time of this run: one of {size} takes about {needed:.0f} s here, and "
            f"{max(0.0, seconds):.0f} s are left. Nothing was trained; allow at least "
            f"{needed * FEWEST_STEPS / 60:.1f} minutes (--max-minutes), or cut documents (--max-length)"
        )
    return fitted


def describe_fit(asked: TrainConfig, fitted: TrainConfig, step_seconds: float, seconds: float) -> str:
    """Describe in a sentence how long a fitted step takes, how many fit into the time, and if steps became smaller."""
    before, after = StepSize.of(asked), StepSize.of(fitted)
    share = (after.batch_rows or after.batch_documents) / (before.batch_rows or before.batch_documents)
    each = step_seconds * share
    number = min(fitted.steps, max(1, int(seconds / max(each, 1e-9))))
    taken = f"a step of {after} takes about {each:.2g} s here, so some {number} fit into {seconds / 60:.2g} minutes"
    return taken if before == after else f"{taken}; one of {before} would take {step_seconds:.2g} s"


def _smaller(config: TrainConfig, number: int) -> TrainConfig:
    """Give the config with steps of about `number` documents or rows, or of the next size that its mixes can share."""
    if config.batch_rows is not None:
        return replace(config, batch_rows=max(1, min(number, config.batch_rows)))
    for documents in range(max(1, number), config.batch_documents):
        block = min(config.block, documents)
        smaller = replace(config, batch_documents=documents // block * block, block=block)
        if _is_batch_divisible(smaller):
            return smaller
    return config


def _is_batch_divisible(config: TrainConfig) -> bool:
    """Tell whether a step has at least one document for each corpus to which either mix gives a weight."""
    try:
        for mix in (config.mix, config.cooldown_mix):
            apportion(config.batch_documents, mix or (1.0,))
    except TrainingRefused:
        return False
    return True
