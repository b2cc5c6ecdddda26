"""The optimisation loop: AdamW on one CPU or many GPUs, limited by steps or by time, resumable without any difference.

A `Task` says what is trained: a module, the micro-batches of each step and their loss. The loop does the rest, under
accelerate: placing the module (on one device, copied by DDP, sharded by FSDP), autocast, accumulating, clipping, the
learning rate, saving, resuming and the log. ``accelerate launch`` starts it in many processes (docs/models/train.md).

Losses add up: a task gives each micro-batch's share of the step's loss, and shares are summed over micro-batches and
processes. So a step is the same whatever the hardware, and its gradient is that of the whole batch.

At any time a run's directory holds a loadable checkpoint, ``state.pt`` to resume from, and the log.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, GradientAccumulationPlugin
from torch import Tensor
from torch.distributed.tensor import DTensor

from colmlm.model.lm.checkpoint import compute_dtype
from colmlm.model.lm.config import require_fields
from colmlm.model.training.config import TrainingBroken
from colmlm.model.training.logs import TrainingLog
from colmlm.model.training.state import (
    check_resume_identity,
    put_moments,
    put_random_states,
    put_weights,
    random_states,
    read_state,
    require_same_run,
    require_same_save,
    seed_all,
    trainable,
    whole_moments,
    whole_weights,
    write_state,
)
from colmlm.model.training.task import (
    MicroBatch,
    StepContext,
    StepMetrics,
    Task,
    add_up,
    process_rank,
    with_all_ranks,
)

_SAVING = ".saving-"  # directories in which a checkpoint is written before its files replace the old ones


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """The settings of the optimisation: AdamW, gradients clipped to a norm, and how often to save.

    `precision` is fp32, bf16 (autocast over float32 weights) or auto (bf16 where the hardware multiplies it).
    `tensorboard` None writes events if the package is installed; True requires it.
    """

    schedule: Schedule
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    seed: int
    precision: str = "auto"
    save_seconds: float = 300.0
    tensorboard: bool | None = None

    def resume_identity(self) -> dict[str, str]:
        """Give, by name, the settings that must be equal for a run to be resumed, as texts."""
        names = ("beta1", "beta2", "epsilon", "weight_decay", "clip_norm", "seed")
        values = asdict(self.schedule) | {name: getattr(self, name) for name in names}
        plain = {"kind": "schedule", "peak": "peak rate", "final": "final rate"}
        return {plain.get(name, name.replace("_", " ")): str(value) for name, value in values.items()}


@dataclass(slots=True)
class Progress:
    """The progress of a run: steps, tokens and seconds."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """Convert the progress to a checkpoint's record of its run: how far it got, and on which hardware."""
        return {
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds),
            "hardware": hardware(),
            "torch": torch.__version__,
        }


class Loop(Generic[MicroBatch]):
    """One run in `directory`: build it, then iterate over `run()`, which yields the metrics of each step.

    Every process of a launch does the same; only the first writes files.
    """

    _accelerator: Accelerator

    def __init__(self, task: Task[MicroBatch], config: LoopConfig, directory: Path) -> None:
        self.task, self.config, self.directory = task, config, directory
        self.progress = Progress()
        self._latest = 0.0  # seconds of the last step that this process made

    def run(self) -> Iterator[StepMetrics]:
        """Train to the end, saving every few minutes and at the end. Resumes from the last save, if there is one.

        Raises TrainingRefused where the directory holds another run, or another process has other data or settings, and
        TrainingBroken where a gradient is not finite or another process has ended.
        """
        with with_all_ranks():
            yield from self._run()

    def _run(self) -> Iterator[StepMetrics]:
        self._prepare()
        if self._accelerator.is_main_process:
            self.directory.mkdir(parents=True, exist_ok=True)
            for half_saved in self.directory.glob(f"{_SAVING}*"):  # by a process that was killed
                shutil.rmtree(half_saved)
        self._resume()
        if self.is_over:
            return
        self._fit_steps()
        log = self._open_log()
        try:
            yield from self._steps(log)
        finally:
            if log is not None:
                log.close()

    @property
    def share_done(self) -> float:
        """Give the share of the run that is done, by steps or by time, whichever is more."""
        return self.config.schedule.share_done(self.progress.step, self.progress.seconds)

    @property
    def is_over(self) -> bool:
        """Tell whether the run is done, or one more step as long as the last would end after `max_seconds`."""
        limit, progress = self.config.schedule.max_seconds, self.progress
        if self.share_done >= 1.0 or limit is None or not progress.step:
            return self.share_done >= 1.0
        return progress.seconds + (self._latest or progress.seconds / progress.step) > limit

    def resume_identity(self) -> dict[str, str]:
        """Give the settings and digests that a run must share to resume from this one's state."""
        return self.config.resume_identity() | self.task.resume_identity()

    def save(self) -> None:
        """Write the checkpoint and then the state, replacing each file atomically. All processes must call it."""
        module = self._accelerator.unwrap_model(self._module)
        weights = whole_weights(module)
        moments = whole_moments(module, self._adamw)
        states = random_states()
        if self._accelerator.is_main_process:
            self._write_checkpoint(self.directory, weights)
            progress = self.progress
            write_state(
                self.directory,
                {
                    "fingerprint": self.resume_identity(),
                    "progress": {"step": progress.step, "tokens": progress.tokens, "seconds": progress.seconds},
                    "weights": weights,
                    "optimizer": moments,
                    "random": states,
                    "task": self.task.state(),
                },
            )  # fmt: skip
        self._accelerator.wait_for_everyone()

    def export(self, directory: Path) -> None:
        """Write the current checkpoint into another directory. All processes must call it."""
        weights = whole_weights(self._accelerator.unwrap_model(self._module))
        if self._accelerator.is_main_process:
            directory.mkdir(parents=True, exist_ok=True)
            self._write_checkpoint(directory, weights)
        self._accelerator.wait_for_everyone()

    def _prepare(self) -> None:
        """Place the module as accelerate's configuration says, and make its optimiser."""
        config = self.config
        self._accelerator = make_accelerator(config.precision)
        require_same_run(self.resume_identity(), self._accelerator.device)
        self._is_fused = self._accelerator.distributed_type != DistributedType.FSDP
        self._adamw = torch.optim.AdamW(
            list(trainable(self.task.module).values()),
            lr=config.schedule.peak,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=self._is_fused,
        )
        self._module, self._optimizer = self._accelerator.prepare(self.task.module, self._adamw)
        self._module.train()
        seed_all(config.seed + process_rank().rank)

    def _resume(self) -> None:
        state = read_state(self.directory)
        require_same_save(state, self.directory, self._accelerator.device)
        if state is None:
            return
        check_resume_identity(state["fingerprint"], self.resume_identity(), self.directory)
        module = self._accelerator.unwrap_model(self._module)
        put_weights(module, state["weights"])
        put_moments(module, self._adamw, state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.task.load_state(state["task"])
        put_random_states(state["random"], self.config.seed + self.progress.step)

    def _fit_steps(self) -> None:
        """Time the task's probes before the first step of a run limited by time, and have the task fit its steps.

        The first probe's time includes one-time set-up. No probe runs that would take over half of the time left.
        """
        limit, each, spent = self.config.schedule.max_seconds, 0.0, 0.0
        if limit is None or self.progress.step or not (probes := self.task.probes()):
            return
        for probe in probes:
            tokens = max(1, self.task.tokens(probe))
            if each * tokens > (limit - spent) / 2:
                break
            seconds = self._time_probe(probe)
            each, spent = seconds / tokens, spent + seconds
        self.progress.seconds += spent
        self.task.fit(each, limit - spent)
        seed_all(self.config.seed + process_rank().rank)

    def _time_probe(self, probe: MicroBatch) -> float:
        """Compute a micro-batch's gradient and drop it; give to all processes the seconds that the first one took."""
        started = time.monotonic()
        _read_numbers(self._backward([probe], self._begin_step([probe])).values())
        self._optimizer.zero_grad()
        seconds = time.monotonic() - started if process_rank().is_first else 0.0
        return add_up([seconds], self._accelerator.device)[0]

    def _begin_step(self, micro_batches: Sequence[MicroBatch]) -> StepContext:
        context = self.context(micro_batches)
        self.task.begin(micro_batches, context)
        return context

    def _open_log(self) -> TrainingLog | None:
        if not self._accelerator.is_main_process:
            return None
        return TrainingLog(self.directory, self.progress.step, tensorboard=self.config.tensorboard)

    def _steps(self, log: TrainingLog | None) -> Iterator[StepMetrics]:
        unsaved = 0.0
        steps = iter(self.task.steps(self.progress.step))
        while not self.is_over:
            started, before = time.monotonic(), self.progress.seconds
            micro_batches = next(steps, None)
            if micro_batches is None:
                break
            metrics = self._step(micro_batches, started)
            if log is not None:
                log.write(metrics.step, metrics.row())
            yield metrics
            unsaved += self.progress.seconds - before
            if unsaved >= self.config.save_seconds and not self.is_over:
                self._save_and_plot(log)
                unsaved = 0.0
        self._save_and_plot(log)

    def _save_and_plot(self, log: TrainingLog | None) -> None:
        self.save()
        if log is not None:
            log.plot()

    def _step(self, micro_batches: Sequence[MicroBatch], started: float) -> StepMetrics:
        progress = self.progress
        rate = self.config.schedule.rate(progress.step, progress.seconds)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        sums = self._backward(micro_batches, self._begin_step(micro_batches))
        norm = self._accelerator.clip_grad_norm_(trainable(self._module).values(), self.config.clip_norm)
        self._update(norm)
        return self._finish_step(sums, micro_batches, rate, norm, started)

    def _update(self, norm: Tensor) -> None:
        """Update the weights, unless the gradient is not finite.

        A fused optimiser gets `found_inf`, as from amp's scaler: a number on the device; the host does not wait for it.
        """
        if self._is_fused:
            self._adamw.found_inf = norm.isfinite().logical_not().float()
        else:
            self._require_finite(*_read_numbers([norm]))
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _require_finite(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise TrainingBroken(
                f"step {self.progress.step + 1}: the gradient is {norm}; train on from {self.directory} with a "
                f"lower rate, as with --set learning_rate={self.config.schedule.peak / 2:g}"
            )

    def context(self, micro_batches: Sequence[MicroBatch] = ()) -> StepContext:
        """Make the context of a step of these micro-batches, or, without any, of a forward between steps."""
        device = self._accelerator.device
        (total,) = add_up([sum(map(self.task.size, micro_batches))], device)
        return StepContext(
            number=self.progress.step,
            module=self._module,
            device=device,
            place=process_rank(),
            total=int(total),
            sharded=self._accelerator.distributed_type == DistributedType.FSDP,
        )

    def _backward(
        self, micro_batches: Sequence[MicroBatch], context: StepContext
    ) -> dict[str, float | Tensor]:
        """Accumulate the gradient of the step's loss; give the loss and its parts, summed over these micro-batches."""
        sums: dict[str, float | Tensor] = {}
        for number, micro_batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            with nullcontext() if is_last else self._accelerator.no_sync(self._module):
                loss, parts = self.task.loss(micro_batch, context)
                # DDP and FSDP average the gradients over processes, but a loss is a sum of shares.
                self._accelerator.backward(loss * context.place.world)
            for name, value in ({"loss": loss.detach()} | dict(parts)).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _finish_step(
        self,
        sums: Mapping[str, float | Tensor],
        micro_batches: Sequence[MicroBatch],
        rate: float,
        norm: Tensor,
        started: float,
    ) -> StepMetrics:
        """Add the step to the progress and give its metrics, the same in every process; time is the first process's.

        A step waits for the device only here. Raises TrainingBroken if the gradient is not finite.
        """
        names = sorted(sums)
        tokens = sum(map(self.task.tokens, micro_batches))
        gradient_norm, *values = _read_numbers([norm, *(sums[name] for name in names)])
        self._require_finite(gradient_norm)
        seconds = time.monotonic() - started if process_rank().is_first else 0.0
        *values, all_tokens, seconds = add_up([*values, tokens, seconds], self._accelerator.device)
        progress = self.progress
        progress.step += 1
        progress.tokens += int(all_tokens)
        progress.seconds += seconds
        self._latest = seconds
        parts = dict(zip(names, values, strict=True))
        return StepMetrics(
            step=progress.step,
            tokens=progress.tokens,
            seconds=progress.seconds,
            loss=parts.pop("loss"),
            learning_rate=rate,
            gradient_norm=gradient_norm,
            tokens_per_second=all_tokens / max(seconds, 1e-9),
            done=min(1.0, self.share_done),
            parts=parts,
        )

    def _write_checkpoint(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        with tempfile.TemporaryDirectory(dir=directory, prefix=_SAVING) as scratch:
            self.task.save(Path(scratch), weights)
            for written in sorted(Path(scratch).iterdir()):
                os.replace(written, directory / written.name)


def _read_numbers(values: Iterable[float | Tensor]) -> list[float]:
    """Copy the numbers to the host in one transfer, which waits for all work of the device."""
    listed = [v.full_tensor() if isinstance(v, DTensor) else v for v in values]
    tensors = [value.float().reshape(()) for value in listed if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in listed]


def make_accelerator(precision: str) -> Accelerator:
    """Make an Accelerator of this precision, configured by the environment and by accelerate's configuration.

    Raises ValueError for FSDP's first version, whose flattened weights have no names of their own.
    """
    mixed = "bf16" if compute_dtype(precision) is torch.bfloat16 else "no"
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != mixed:
        AcceleratorState._reset_state()  # an earlier run of this process had another precision
    accelerator = Accelerator(
        mixed_precision=mixed,
        # Losses are summed here, so accelerate must not divide them again.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ValueError(
            "FSDP version 1 is not supported: set fsdp_version to 2 in accelerate's configuration"
        )
    return accelerator


def hardware() -> str:
    """Describe the run's hardware in one line: its processes, and the GPU or the CPU's cores and model."""
    processes = f"{process_rank().world} x " if process_rank().world > 1 else ""
    if torch.cuda.is_available():
        return processes + torch.cuda.get_device_name()
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo_lines() if line.startswith("model name")),
        platform.machine(),
    )
    return f"{processes}{torch.get_num_threads()} cores of {cpu}"


def _cpuinfo_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


# Learning rates: warm-up, stable, cooldown (appendix A, pre-training) and cosine (appendix A, annotators).

WSD, COSINE = "wsd", "cosine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The length of a run and its learning rate at each point.

    A run ends at `steps` or after `max_seconds`, whichever is first. The rate rises linearly to `peak` over
    `warmup_steps`. Then ``wsd`` keeps it there and lowers it linearly to `final` over the last `cooldown` share of the
    run; ``cosine`` lowers it along half a cosine from the end of the warm-up.
    """

    kind: str = WSD
    steps: int
    max_seconds: float | None = None
    peak: float
    final: float = 0.0
    warmup_steps: int = 0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in (WSD, COSINE):
            raise ValueError(f"schedule {self.kind!r} is none of {WSD}, {COSINE}; choose one of them")
        require_fields(self, "positive", lambda value: value > 0, "steps", "max_seconds")
        require_fields(self, f"from 0 to {self.peak} (peak)", lambda value: 0 <= value <= self.peak, "final")
        require_fields(self, "0 or more", lambda value: value >= 0, "warmup_steps")
        require_fields(self, "within [0, 1]", lambda value: 0 <= value <= 1, "cooldown")

    def share_done(self, step: int, seconds: float) -> float:
        """Give the share of the run that is done after `step` steps and `seconds`; 1 or more at its end."""
        by_time = seconds / self.max_seconds if self.max_seconds else 0.0
        return max(step / self.steps, by_time)

    def rate(self, step: int, seconds: float) -> float:
        """Give the learning rate of step number `step`, counted from 0, which begins after `seconds`."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.final + (self.peak - self.final) * self._height(self.share_done(step, seconds))

    def _height(self, done: float) -> float:
        """Give the learning rate after warm-up on a scale from `final` (0) to `peak` (1), at the share `done`."""
        if self.kind == COSINE:
            warmed = min(1.0, self.warmup_steps / self.steps)
            along = (done - warmed) / (1 - warmed) if warmed < 1 else 1.0
            return (1 + math.cos(math.pi * min(1.0, max(0.0, along)))) / 2
        left = max(0.0, 1.0 - done)
        return min(1.0, left / self.cooldown) if self.cooldown else 1.0
