"""The loop on a small task: it resumes without any difference, keeps the batch size, and refuses another run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from colmlm.model.training.config import TrainingBroken, TrainingRefused
from colmlm.model.training.loop import COSINE, Loop, Schedule
from colmlm.model.training.state import STATE_FILE
from colmlm.model.training.task import StepMetrics
from tests.model.training.toys import Noisy, Toy, toy_config


def curve(metrics: Sequence[StepMetrics]) -> list[tuple[float, ...]]:
    return [(m.step, m.tokens, m.loss, m.gradient_norm, m.learning_rate) for m in metrics]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "toy.safetensors")


def disturb() -> None:
    """Disturbs the generators as another process would."""
    torch.rand(3), random.random(), np.random.random()


@pytest.mark.parametrize("done", [1, 4])
def test_a_run_goes_on_to_the_bit_with_every_random_generator(tmp_path: Path, done: int):
    noisy = {"noise": 0.3, "dropout": 0.4, "micro": 5}
    unbroken = curve(list(Loop(Toy(**noisy), toy_config(), tmp_path / "a").run()))
    assert len({loss for _, _, loss, _, _ in unbroken}) == 6
    first = Loop(Toy(**noisy), toy_config(), tmp_path / "b")
    steps = first.run()
    before = curve(list(islice(steps, done)))
    first.save()
    next(steps)  # done after the save, and so lost
    disturb()
    after = curve(list(Loop(Toy(**noisy), toy_config(), tmp_path / "b").run()))
    assert before + after == unbroken
    ours, theirs = weights(tmp_path / "b"), weights(tmp_path / "a")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_the_loop_is_plain_adamw_with_clipping(tmp_path: Path):
    ours = list(Loop(Toy(batch=12, micro=5), toy_config(), tmp_path).run())
    torch.manual_seed(5)
    plain = Noisy(0.0)
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    for step, metrics in enumerate(ours):
        inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        for group in adamw.param_groups:
            group["lr"] = metrics.learning_rate
        loss = F.mse_loss(plain(inputs), inputs.sum(dim=1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        assert metrics.loss == pytest.approx(loss.item(), rel=1e-5)
        assert metrics.gradient_norm == pytest.approx(float(norm), rel=1e-5)
        adamw.step()
        adamw.zero_grad()
    for name, weight in weights(tmp_path).items():
        torch.testing.assert_close(weight, plain.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_step_is_the_same_however_it_is_cut(tmp_path: Path):
    runs = {}
    for micro in (None, 5, 1):
        runs[micro] = list(Loop(Toy(micro=micro), toy_config(), tmp_path / str(micro)).run())
    for micro in (5, 1):
        for ours, theirs in zip(runs[micro], runs[None], strict=True):
            assert (ours.loss, ours.gradient_norm) == pytest.approx(
                (theirs.loss, theirs.gradient_norm), rel=1e-5
            )
            assert ours.parts["rows"] == theirs.parts["rows"] == 12
        for name, weight in weights(tmp_path / str(micro)).items():
            torch.testing.assert_close(weight, weights(tmp_path / "None")[name], rtol=1e-5, atol=1e-6)


def test_another_run_is_refused_and_told_apart(tmp_path: Path):
    loop = Loop(Toy(), toy_config(), tmp_path)
    next(loop.run())
    loop.save()
    with pytest.raises(
        TrainingRefused, match=r"holds a run with another data \(a there, b here\); name another"
    ):
        next(Loop(Toy(data="b"), toy_config(), tmp_path).run())
    with pytest.raises(
        TrainingRefused, match=r"another peak rate \(0.01 there, 0.02 here\), seed \(17 there, 3 here\);"
    ):
        next(Loop(Toy(), replace(toy_config(peak=2e-2), seed=3), tmp_path).run())
    other = Toy()
    other.module = torch.nn.Linear(4, 1)
    with pytest.raises(TrainingRefused, match=r"trains other weights: 6 differ, bias for one"):
        next(Loop(other, toy_config(), tmp_path).run())


def test_a_state_that_would_run_code_is_not_read(tmp_path: Path):
    torch.save({"format": 2, "progress": Path("here")}, tmp_path / STATE_FILE)
    with pytest.raises(TrainingRefused, match=r"cannot be read") as refused:
        next(Loop(Toy(), toy_config(), tmp_path).run())
    assert "Weights only" in str(refused.value.__cause__) or "weights_only" in str(refused.value.__cause__)
    (tmp_path / STATE_FILE).write_bytes((tmp_path / STATE_FILE).read_bytes()[:100])
    with pytest.raises(TrainingRefused, match=r"cannot be read"):
        next(Loop(Toy(), toy_config(), tmp_path).run())
    torch.save({"adapter": {}}, tmp_path / STATE_FILE)
    with pytest.raises(TrainingRefused, match="another version"):
        next(Loop(Toy(), toy_config(), tmp_path).run())


def test_a_gradient_that_is_no_number_stops_the_run_and_harms_no_weight(tmp_path: Path):
    class Breaks(Toy):
        def loss(self, micro_batch, context):
            loss, parts = super().loss(micro_batch, context)
            return (loss * float("nan") if context.number == 3 else loss), parts

    loop = Loop(Breaks(), toy_config(), tmp_path)
    steps = loop.run()
    list(islice(steps, 3))
    with pytest.raises(TrainingBroken, match="step 4: the gradient is nan"):
        next(steps)
    assert all(p.isfinite().all() for p in loop.task.module.parameters())


def test_saves_come_every_so_many_seconds_of_training_and_at_the_end(tmp_path: Path):
    written: list[int] = []

    class Counts(Toy):
        def save(self, directory, weights):
            super().save(directory, weights)
            written.append(loop.progress.step)

    loop = Loop(Counts(), toy_config(save_seconds=1e-9), tmp_path)
    list(loop.run())
    assert written == [1, 2, 3, 4, 5, 6]
    written.clear()
    loop = Loop(Counts(), toy_config(), tmp_path / "rare")
    list(loop.run())
    assert written == [6]
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        "toy.safetensors",
        STATE_FILE,
        "loss.csv",
        "loss.png",
    }


def test_a_run_ends_where_its_data_do(tmp_path: Path):
    class Short(Toy):
        def steps(self, start):
            return islice(super().steps(start), 4 - start)

    metrics = list(Loop(Short(), toy_config(), tmp_path).run())
    assert [m.step for m in metrics] == [1, 2, 3, 4] and metrics[-1].done == pytest.approx(4 / 6)
    assert torch.load(tmp_path / STATE_FILE, weights_only=True)["progress"]["step"] == 4


def test_metrics_tell_how_far_the_run_is(tmp_path: Path):
    metrics = list(Loop(Toy(), toy_config(), tmp_path).run())
    assert [m.tokens for m in metrics] == [12, 24, 36, 48, 60, 72]
    assert [m.done for m in metrics] == pytest.approx([1 / 6, 2 / 6, 0.5, 4 / 6, 5 / 6, 1.0])
    assert metrics[2].seconds_left == pytest.approx(metrics[2].seconds)
    assert metrics[-1].seconds_left == 0.0 and all(m.tokens_per_second > 0 for m in metrics)


def test_the_cosine_of_the_annotators_tables(tmp_path: Path):
    schedule = Schedule(kind=COSINE, steps=40, peak=2e-4, final=2e-5, warmup_steps=2)
    config = replace(toy_config(), schedule=schedule)
    rates = [m.learning_rate for m in Loop(Toy(), config, tmp_path).run()]
    assert rates[:2] == pytest.approx([1e-4, 2e-4])
    assert rates[2] == pytest.approx(2e-4) and rates[21] == pytest.approx(1.1e-4)
    assert all(a > b for a, b in pairwise(rates[2:])) and 2e-5 < rates[-1] < 2.1e-5
