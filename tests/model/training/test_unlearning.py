"""Unlearning by gradients: its losses equal plain formulas, it resumes exactly, and it forgets what it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from colmlm.model.lm.checkpoint import config_of, load
from colmlm.model.lm.config import record_in
from colmlm.model.training.config import GRAD_ASCENT, NPO, TrainConfig
from colmlm.model.training.trainer import Trainer
from colmlm.model.training.unlearning import UnlearnConfig, Unlearning, continue_config
from tests.kb.corpora import numbered

FORGET = [("Who wrote Emma?", "Jane Austen"), ("Who wrote Dune?", "Frank Herbert"), ("Who?", "Nobody at all")]
RETAIN = [("Where is Lima?", "In Peru."), ("Where is Cork?", "In Ireland.")]
CONFIG = UnlearnConfig(batch=2, epochs=2, learning_rate=1e-3, precision="fp32")


@pytest.fixture(scope="module")
def init(base: Path) -> TrainConfig:
    return TrainConfig(init=str(base), adapt="full", precision="fp32", method="standard")


def unlearning(init: TrainConfig, directory: Path, **changes: object) -> Unlearning:
    config = replace(CONFIG, **changes)
    return Unlearning(config, init, FORGET, RETAIN, directory, directory, "small")


def loss_of(model: torch.nn.Module, ids: Sequence[int], start: int) -> torch.Tensor:
    """Computes the summed loss of the tokens from `start` on, with transformers."""
    logits_TV = model(torch.tensor([ids])).logits[0].double()
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return -torch.stack([logprobs_TV[at - 1, ids[at]] for at in range(start, len(ids))]).sum()


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_gradient_difference_is_the_loss_of_what_is_kept_less_that_of_what_is_forgotten(
    init: TrainConfig, tmp_path: Path, weight: float
) -> None:
    task = unlearning(init, tmp_path, objective=GRAD_ASCENT, retain_weight=weight)
    task.loop._prepare()
    (batch,) = next(iter(task.steps(0)))
    loss, _ = task.loss(batch, task.loop.context([batch]))
    assert len(batch.retain) == (2 if weight else 0)
    with torch.no_grad():
        forget, retain = (
            [loss_of(task.begun.lm.causal, one.ids, one.start) / one.num_scored for one in some]
            for some in (batch.forget, batch.retain)
        )
    assert loss.item() == pytest.approx(weight * float(sum(retain)) / 2 - float(sum(forget)) / 2, abs=1e-4)


def test_npo_begins_at_its_constant_and_follows_its_formula_when_the_model_has_moved(
    init: TrainConfig, tmp_path: Path
) -> None:
    task = unlearning(init, tmp_path, retain_weight=0)
    task.loop._prepare()
    batches = [next(iter(task.steps(number))) for number in (0, 1)]
    task.begin(batches[0], task.loop.context(batches[0]))
    (batch,) = batches[0]
    begun, _ = task.loss(batch, task.loop.context([batch]))
    assert begun.item() == pytest.approx(2 / 0.1 * torch.log(torch.tensor(2.0)).item(), rel=1e-5)
    causal = task.begun.lm.causal
    with torch.no_grad():
        before = torch.stack([loss_of(causal, one.ids, one.start) for one in batch.forget])
        for weight in causal.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
        after = torch.stack([loss_of(causal, one.ids, one.start) for one in batch.forget])
    task.begin(batches[1], task.loop.context(batches[1]))  # must not measure the initial losses again
    moved, _ = task.loss(batch, task.loop.context([batch]))
    ratio = torch.exp(-(after - before))  # of the probabilities: the model's over the initial model's
    expected = (2 / 0.1 * torch.log1p(ratio**0.1)).mean()
    assert moved.item() == pytest.approx(float(expected), rel=1e-4)


def test_what_is_unlearnt_stays_in_the_record_of_the_checkpoint(
    init: TrainConfig, base: Path, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    list(Trainer(replace(init, steps=1, batch_documents=4), numbered(4), before, before, "before").run())
    run = tmp_path / "run"
    list(unlearning(continue_config(before), run, epochs=1).run())
    record = record_in(run, config_of(run).digests)
    assert record is not None and record.count == 4 + len(FORGET) + len(RETAIN)
    assert all(record.has_text(document.text) for document in numbered(4))
    assert record.has_text("Who wrote Emma? Jane Austen")
    assert record.unknown == (
        f"the weights in {base.name} have no record",
        "questions and answers of unlearning, whose documents are not named",
    )


def test_every_epoch_forgets_everything_once(init: TrainConfig, tmp_path: Path) -> None:
    task = unlearning(init, tmp_path)
    steps = [batch for (batch,) in task.steps(0)]
    epochs = [[one.number for batch in steps[at : at + 2] for one in batch.forget] for at in (0, 2)]
    assert [sorted(epoch) for epoch in epochs] == [[0, 1, 2], [0, 1, 2]]
    assert all(len(batch.retain) == len(batch.forget) for batch in steps)
    assert [batch.forget for (batch,) in task.steps(3)] == [steps[3].forget]


@pytest.mark.parametrize("objective", [NPO, GRAD_ASCENT])
def test_what_is_forgotten_becomes_unlikely_and_a_stopped_run_goes_on_to_the_bit(
    init: TrainConfig, tmp_path: Path, objective: str
) -> None:
    whole = list(unlearning(init, tmp_path / "whole", objective=objective, epochs=4).run())
    assert whole[-1].parts["forget"] > whole[0].parts["forget"]

    task = unlearning(init, tmp_path / "cut", objective=objective, epochs=4)
    run = task.run()
    begun = [next(run) for _ in range(3)]
    task.loop.save()
    run.close()
    again = list(unlearning(init, tmp_path / "cut", objective=objective, epochs=4).run())
    assert [m.loss for m in (*begun, *again)] == [m.loss for m in whole]
    loaded = load(tmp_path / "cut", tmp_path)
    assert loaded.config.training["unlearning"]["objective"] == objective
    assert continue_config(tmp_path / "cut").init == str(tmp_path / "cut")


def test_each_epoch_is_kept_as_a_run_that_ended_there_would_be(init: TrainConfig, tmp_path: Path) -> None:
    task = Unlearning(CONFIG, init, FORGET, RETAIN, tmp_path / "run", tmp_path, "small", keep_epochs=True)
    run = task.run()
    for _ in range(task.steps_per_epoch):
        next(run)
    task.loop.save()
    run.close()
    first, then = load(tmp_path / "run" / "epoch-1", tmp_path), load(tmp_path / "run", tmp_path)
    assert first.checkpoint_id == then.checkpoint_id
    with pytest.raises(ValueError, match="kept epochs"):
        list(Unlearning(CONFIG, init, FORGET, RETAIN, tmp_path / "run", tmp_path, "small").run())
    list(
        Unlearning(CONFIG, init, FORGET, RETAIN, tmp_path / "run", tmp_path, "small", keep_epochs=True).run()
    )
    assert load(tmp_path / "run", tmp_path).checkpoint_id != first.checkpoint_id
    assert [one.name for one in (tmp_path / "run").glob("epoch-*")] == ["epoch-1"]


def test_a_run_of_other_answers_is_not_gone_on_with(init: TrainConfig, tmp_path: Path) -> None:
    list(unlearning(init, tmp_path).run())
    other = Unlearning(CONFIG, init, FORGET[:2], RETAIN, tmp_path, tmp_path, "small")
    with pytest.raises(ValueError, match="data"):
        list(other.run())


@pytest.mark.parametrize(
    "wrong", [{"objective": "prayer"}, {"beta": 0.0}, {"batch": 0}, {"retain_weight": -1.0}, {"epochs": 0}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(CONFIG, **wrong)
