"""Training with the joint objective (section 3.2): resumable, logged, bounded by steps or by time.

A run directory holds ``colmlm.json`` and the adapter (a loadable checkpoint at any time),
``state.pt`` (optimiser, random state, progress; read with ``weights_only``) and ``loss.csv``.
"""

from __future__ import annotations

import csv
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from torch.nn import functional as F

from kb.corpus import AnnotatedDocument
from model.config import CheckpointConfig
from model.lm import unit
from model.training.config import TrainConfig
from model.training.corpora import tokenise
from model.training.losses import info_nce, joint, same_question
from model.training.start import start
from model.training.steps import Step, Steps

STATE_FILE, LOSS_FILE = "state.pt", "loss.csv"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one step cost and gave. `accuracy` is the share of in-batch questions whose own fact is nearest."""

    step: int
    tokens: int
    seconds: float
    loss: float
    next_token: float
    contrastive: float
    accuracy: float
    pairs: int
    learning_rate: float


@dataclass(slots=True)
class Progress:
    """How far a run is: what a resumed run goes on from."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    log: list[Metrics] = field(default_factory=list)


class Trainer:
    """One run: build it, then iterate over `run()`, which yields the metrics of each step."""

    def __init__(
        self,
        config: TrainConfig,
        documents: Sequence[AnnotatedDocument],
        directory: Path,
        cache: Path,
        name: str,
    ) -> None:
        self.config, self.directory, self.name = config, directory, name
        begin = start(config, cache)
        self.lm, self.tokenizer, self.base, self.base_sha256 = (
            begin.lm, begin.tokenizer, begin.base, begin.base_sha256,
        )  # fmt: skip
        self.steps = Steps([tokenise(documents, self.tokenizer, config)], self.tokenizer, config)
        self.data_sha256 = self.steps.sha256
        self.progress = Progress()
        trainable = [p for p in self.lm.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trainable,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.trainable = trainable

    def run(self, save_every_seconds: float = 300.0) -> Iterator[Metrics]:
        """Train to the end, saving every few minutes and once more at the end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if (self.directory / STATE_FILE).is_file():
            self.resume()
        self.lm.train()
        saved = time.monotonic()
        for step in self.steps.starting_at(self.progress.step):
            if self.share_done >= 1.0:
                break
            yield self.step(step)
            if time.monotonic() - saved >= save_every_seconds:
                self.save()
                saved = time.monotonic()
        self.save()

    @property
    def share_done(self) -> float:
        """Progress in [0, 1]: by steps or by time, whichever is further."""
        by_steps = self.progress.step / self.config.steps
        by_time = self.progress.seconds / self.config.max_seconds if self.config.max_seconds else 0.0
        return max(by_steps, by_time)

    def learning_rate(self) -> float:
        """Warmup, stable, decay (appendix A): linear up, level, linear down to a hundredth."""
        config = self.config
        up = min(1.0, (self.progress.step + 1) / max(1, config.warmup_steps))
        left = 1.0 - self.share_done
        down = min(1.0, left / config.cooldown) if config.cooldown else 1.0
        return config.learning_rate * up * max(0.01, down)

    def step(self, step: Step) -> Metrics:
        started, rate = time.monotonic(), self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        states = self.lm.forward_sequences(step.sequences)
        next_token = self.next_token_loss(step, states)
        contrastive, accuracy = self.contrastive_loss(step, states)
        loss = joint(next_token, contrastive, self.config.contrastive_weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trainable, self.config.clip_norm)
        self.optimizer.step()
        progress = self.progress
        progress.step += 1
        progress.tokens += step.num_tokens
        progress.seconds += time.monotonic() - started
        metrics = Metrics(
            progress.step, progress.tokens, round(progress.seconds, 1), loss.item(), next_token.item(),
            contrastive.item(), accuracy, len(step.pairs), rate,
        )  # fmt: skip
        progress.log.append(metrics)
        return metrics

    def next_token_loss(self, step: Step, states: Sequence[Tensor]) -> Tensor:
        """Mean cross-entropy over a sample of the positions outside M, of the scored sequences."""
        hidden, targets = [], []
        for sequence, state, scored in zip(step.sequences, states, step.scored, strict=True):
            if not scored:
                continue
            keep = ~torch.tensor(sequence.masked[1:])
            keep &= torch.rand(len(keep)) < self.config.ntp_fraction
            hidden.append(state[:-1][keep.to(state.device)])
            targets.append(torch.tensor(sequence.ids[1:])[keep])
        if not sum(map(len, targets)):
            return states[0].sum() * 0.0
        logits_NV = self.lm.logits(torch.cat(hidden))
        return F.cross_entropy(logits_NV, torch.cat(targets).to(logits_NV.device))

    def contrastive_loss(self, step: Step, states: Sequence[Tensor]) -> tuple[Tensor, float]:
        """InfoNCE over the step's pairs and its accuracy; zeros where every fact lies beyond the cut."""
        if not step.pairs:
            return states[0].sum() * 0.0, 0.0
        facts_ND = unit(torch.stack([states[p.fact_sequence][p.fact_position] for p in step.pairs]))
        queries_ND = unit(torch.stack([states[p.query_sequence][p.query_position] for p in step.pairs]))
        same_NN = same_question([p.question for p in step.pairs]).to(facts_ND.device)
        with torch.no_grad():
            nearest = (queries_ND @ facts_ND.T).masked_fill(same_NN, -2.0).argmax(dim=1).cpu()
            accuracy = float((nearest == torch.arange(len(nearest))).float().mean())
        return info_nce(facts_ND, queries_ND, self.config.temperature, same_NN), accuracy

    def save(self) -> None:
        """Write adapter, config, log and state; each file is replaced whole."""
        peft = self._peft()
        with tempfile.TemporaryDirectory(dir=self.directory, prefix=".saving-") as scratch:
            peft.save_pretrained(scratch, save_embedding_layers=False)
            self.checkpoint_config().save(Path(scratch))
            for written in sorted(Path(scratch).iterdir()):
                os.replace(written, self.directory / written.name)
        state = {
            "adapter": {
                k: v.clone() for k, v in get_peft_model_state_dict(peft, save_embedding_layers=False).items()
            },
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "progress": {
                "step": self.progress.step,
                "tokens": self.progress.tokens,
                "seconds": self.progress.seconds,
            },
            "log": [asdict(m) for m in self.progress.log],
            "data_sha256": self.data_sha256,
            "base_sha256": self.base_sha256,
        }
        unfinished = self.directory / f".{STATE_FILE}"
        torch.save(state, unfinished)
        os.replace(unfinished, self.directory / STATE_FILE)
        self._write_log()

    def resume(self) -> None:
        """Go on from the saved state. Refuses another data set (the order of steps would be another) or base."""
        state = torch.load(self.directory / STATE_FILE, weights_only=True)
        if state["data_sha256"] != self.data_sha256:
            raise ValueError(
                f"{self.directory} was trained on other data; name another --out or the same corpora"
            )
        if state.get("base_sha256", self.base_sha256) != self.base_sha256:
            raise ValueError(
                f"{self.directory} was trained on another base; name another --out or the same base"
            )
        set_peft_model_state_dict(self._peft(), state["adapter"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.progress = Progress(**state["progress"], log=[Metrics(**m) for m in state["log"]])

    def checkpoint_config(self) -> CheckpointConfig:
        training: dict[str, Any] = {
            "config": asdict(self.config),
            "base_sha256": self.base_sha256,
            "data_sha256": self.data_sha256,
            "documents": self.steps.num_documents,
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds),
            "epochs": round(self.steps.epochs(self.progress.step), 2),
            "hardware": hardware(),
            "torch": torch.__version__,
            "precision": str(self.lm.compute).removeprefix("torch."),
        }
        return CheckpointConfig(
            name=self.name, kind="adapter", base=self.base, dim=self.lm.dim, training=training
        )

    def _peft(self) -> PeftModel:
        assert isinstance(self.lm.model, PeftModel)
        return self.lm.model

    def _write_log(self) -> None:
        with (self.directory / LOSS_FILE).open("w", newline="") as target:
            writer = csv.DictWriter(target, fieldnames=list(Metrics.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(m) for m in self.progress.log)


def hardware() -> str:
    """What trained it, in a line."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    return f"{torch.get_num_threads()} cores of {cpu}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []
