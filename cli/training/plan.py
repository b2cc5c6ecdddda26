"""`colmlm train --dry-run`: shows what a run will cost."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING

from colmlm.cli.output import print_json, print_table, say
from colmlm.model.training.gpus import GPUS

if TYPE_CHECKING:
    from colmlm.model.training.config import TrainConfig
    from colmlm.model.training.plan import TrainingPlan

GpuName = StrEnum("GpuName", list(GPUS))  # type: ignore[misc]
_GIB = 1 << 30


def show_plan(config: TrainConfig, plan: TrainingPlan, *, as_json: bool) -> None:
    """Prints a plan with its formulas."""
    if as_json:
        print_json({"config": asdict(config), "plan": asdict(plan)})
        return
    p = plan.parameters
    say(f"{config.preset}: {config.method}, from {config.init}, training {config.adapt}")
    say(f"parameters: {p.total:,}, of which {p.trained:,} are trained")
    say(
        f"a step: {plan.tokens_per_step:,} tokens of documents and {plan.question_tokens_per_step:,} of questions; "
        f"the run: {config.steps:,} steps, {plan.tokens:,} tokens of documents"
    )
    say(
        f"arithmetic: {plan.flop:.3g} FLOP; at {plan.mfu:.0%} of a {plan.gpu}'s peak {plan.gpu_hours:,.1f} GPU hours, "
        f"on {plan.gpus} of them {plan.days:,.2f} days"
    )
    say()
    say(f"GiB on each {plan.gpu}, with one row of {config.max_length} tokens and its questions in flight:")
    parts = ("weights", "gradients", "optimiser", "communication", "logits", "activations", "total")
    rows = [
        (name, *(f"{getattr(memory, part) / _GIB:.1f}" for part in parts), plan.most_rows[name])
        for name, memory in plan.memory.items()
    ]
    print_table(("", *parts, "rows that fit"), rows)
    say()
    for name, formula in plan.formulas.items():
        say(f"{name}: {formula}")
