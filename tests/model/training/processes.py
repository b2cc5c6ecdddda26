"""One process of a run of several, started by the tests: ``python -m tests.model.training.processes DIRECTORY``.

The process group is gloo's, initialised over a file; accelerate uses it as it does that of ``accelerate launch``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.task import StepMetrics, process_rank
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import document
from tests.tiny import tiny_base

STEPS = 5
CUTS = (3, 4)  # after these steps the run is saved, and resumed by a new trainer


def documents() -> list[AnnotatedDocument]:
    """Makes documents of very different lengths, with none to three facts, some of which have the same question."""
    made = []
    for n in range(20):
        pieces: list[str | tuple[str, str]] = [f"Text {n} begins" + " and goes on" * (n % 4) + ". "]
        for fact in range(n % 4):
            pieces += [
                f"Of thing {n % 7} one knows ",
                (f"value {n}-{fact}", f"What of {n % 7} and {fact}?"),
                ". ",
            ]
        made.append(document(f"d{n}", *pieces))
    return made


def joint_config(root: Path, **settings: Any) -> TrainConfig:
    """Makes a config of ten documents a step: two processes have five each, in micro-batches of two, two and one.

    Adam divides by a gradient's size, so with its usual epsilon it would take a whole step for a gradient that is only
    rounding error.
    """
    common = {
        "init": str(root / "base"), "steps": STEPS, "batch_documents": 10, "block": 2, "max_length": 128,
        "learning_rate": 1e-3, "final_learning_rate": 0.0, "warmup_steps": 2, "lora_rank": 4, "lora_alpha": 8,
        "precision": "fp32", "title_fraction": 0.0, "ntp_fraction": 0.5, "memory": 7, "weight_decay": 0.01,
        "epsilon": 1e-6,
    }  # fmt: skip
    return TrainConfig(**common | settings)


KINDS: dict[str, dict[str, Any]] = {
    "copied adapter": {"forward_tokens": 256},  # unequal numbers of forwards of one size
    "copied weights": {
        "adapt": "full",
        "micro_documents": 3,
        "hard_negatives": 2,
        "mine_every": 2,
        "memory": 0,
    },
    "sharded weights": {"adapt": "full", "micro_documents": 2},  # unequal numbers of forwards
}


def train(root: Path, kind: str, name: str, *, until: int = STEPS, **settings: Any) -> list[StepMetrics]:
    """Resumes a run, and trains to its end or to step `until`, after which it is saved."""
    trainer = Trainer(joint_config(root, **KINDS[kind] | settings), documents(), root / name, root, name)
    metrics = []
    for step in trainer.run():
        metrics.append(step)
        if step.step == until < STEPS:
            trainer.loop.save()
            break
    check_sharding(trainer, kind)
    return metrics


def check_sharding(trainer: Trainer, kind: str) -> None:
    shards = [isinstance(p, DTensor) for p in trainer.module.parameters()]
    assert all(shards) if process_rank().world > 1 and kind.startswith("sharded") else not any(shards)


def launch(root: Path, *, world: int = 2) -> dict[str, list[dict[str, Any]]]:
    """Runs the first steps of every kind in `world` processes at once; gives the first process's metrics."""
    tiny_base(root / "base")
    command = interpreter.command("-m", "tests.model.training.processes", root)
    processes = [
        subprocess.Popen(command, env=os.environ | environment(rank, world), stderr=subprocess.PIPE)
        for rank in range(world)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=240)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(errors)
    return json.loads((root / "metrics.json").read_text())


def environment(rank: int, world: int) -> dict[str, str]:
    """Gives the variables that `accelerate launch --cpu` would set."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def shard_over_cpus() -> None:
    """Makes accelerate, which shards over accelerators only, shard over gloo's CPU processes too."""
    os.environ |= {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    }  # fmt: skip
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def refuses_what_not_all_see(root: Path, kind: str, rank: int) -> None:
    """Resumes a run in a directory that only the first process sees, which both must refuse."""
    try:
        train(root, kind, kind if rank == 0 else f"{kind} elsewhere")
    except TrainingRefused as error:
        assert f" 0 and {CUTS[-1]} " in str(error) and "all machines must see one directory" in str(error), (
            error
        )
    else:
        raise AssertionError("it went on")


def refuses_other_data(root: Path, kind: str, rank: int) -> None:
    """Begins a run of which the second process has a stale copy of the data, and another seed; both must refuse it."""
    config = joint_config(root, **KINDS[kind] | {"seed": 5 + rank})
    trainer = Trainer(config, documents()[rank:], root / "other data", root, "other data")
    try:
        next(trainer.run())
    except TrainingRefused as error:
        assert "another data, seed (5 in rank 0, 6 in rank 1)" in str(error), error
    else:
        raise AssertionError("it went on")
    assert trainer.progress.step == 0 and not (root / "other data").exists()


def main(root: Path) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{root / 'group'}", rank=rank, world_size=world
    )
    curves: dict[str, Any] = {}
    for kind in KINDS:
        if kind.startswith("sharded"):
            shard_over_cpus()
        curves[kind] = [asdict(m) for cut in CUTS for m in train(root, kind, kind, until=cut)]
        if kind == "copied adapter":
            refuses_what_not_all_see(root, kind, rank)
            refuses_other_data(root, kind, rank)
    if rank == 0:
        (root / "metrics.json").write_text(json.dumps(curves))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
