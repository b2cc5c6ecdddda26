"""A step cut into micro-batches has the same gradient as the whole, with dropout and memory, for every method."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from colmlm.model.lm.checkpoint import WEIGHTS, load
from colmlm.model.training.contrast import PairMemory, Pairs, contrast_pairs, info_nce, same_question
from colmlm.model.training.task import StepContext, StepMetrics
from colmlm.model.training.trainer import JointBatch, Trainer
from tests.model.training.processes import documents, joint_config
from tests.tiny import tiny_base


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accumulation")
    tiny_base(path / "base")
    return path


def trainer(root: Path, name: str, **settings: Any) -> Trainer:
    config = joint_config(root, **{"adapt": "full", "qa_fraction": 0.4} | settings)
    return Trainer(config, documents(), root / name, root, name)


def gradients(run: Trainer) -> tuple[list[JointBatch], list[Tensor]]:
    """Gives the micro-batches of the first step, and the gradient before it is clipped."""
    list(islice(run.run(), 0))
    run.loop._prepare()
    (batches,) = islice(run.steps(0), 1)
    context = run.loop.context(batches)
    torch.manual_seed(8)
    run.begin(batches, context)
    run.loop._backward(batches, context)
    return batches, [p.grad.clone() for p in run.module.parameters()]


def losses(metrics: list[StepMetrics]) -> list[tuple[float, ...]]:
    return [(m.step, m.loss, m.gradient_norm, *m.parts.values()) for m in metrics]


@pytest.mark.parametrize("micro", [1, 3, 10])
def test_the_gradient_of_micro_batches_is_that_of_the_batch(root: Path, micro: int):
    _, whole = gradients(trainer(root, "a"))
    batches, cut = gradients(trainer(root, "b", micro_documents=micro))
    assert len(batches) == -(-10 // micro)
    for ours, theirs in zip(cut, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert max(g.abs().max() for g in whole) > 1e-2


def test_caching_gives_the_gradient_of_the_plain_loss_over_all_pairs_at_once(root: Path):
    """The plain loss is one graph: the whole batch in one forward, and InfoNCE over all of its pairs."""
    settings = {"batch_documents": 20, "memory": 0, "ntp_fraction": 1.0, "max_length": 512}
    batches, cached = gradients(trainer(root, "cached", micro_documents=2, **settings))
    assert len(batches) == 10 and sum(b.num_pairs for b in batches) == 30
    plain = trainer(root, "plain", **settings)
    ((whole,),) = islice(plain.steps(0), 1)
    plain.module.train()
    summed, facts, queries = plain.module(
        whole.rows, whole.scored_N, whole.targets_N, whole.facts_P, whole.queries_P
    )
    same = same_question(whole.questions_P, whole.questions_P, 0)
    pairs = info_nce(facts, queries, facts, queries, 0, plain.config.temperature, same)
    (summed / len(whole.targets_N) + 0.25 * pairs.mean()).backward()
    for gradient, parameter in zip(cached, plain.module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def with_dropout(run: Trainer) -> Trainer:
    for layer in run.lm.causal.model.layers:
        layer.self_attn.attention_dropout = 0.5
    return run


def test_the_second_pass_sees_the_dropout_of_the_first(root: Path):
    """Compares with one graph over all micro-batches, whose forwards draw their dropout in the same order."""
    batches, ours = gradients(with_dropout(trainer(root, "c", micro_documents=4, ntp_fraction=0.0)))
    assert len(batches) == 3
    plain = with_dropout(trainer(root, "d", micro_documents=4, ntp_fraction=0.0))
    plain.module.train()
    torch.manual_seed(8)
    made = [plain.module(b.rows, b.scored_N, b.targets_N, b.facts_P, b.queries_P) for b in batches]
    facts, queries = (torch.cat([out[side] for out in made]) for side in (1, 2))
    ids = torch.cat([b.questions_P for b in batches])
    pull = contrast_pairs(
        Pairs(facts.detach(), queries.detach(), ids), plain.config.temperature, PairMemory(0)
    )
    (0.25 * pull.surrogate(facts, queries) + sum(out[0] for out in made)).backward()
    for gradient, parameter in zip(ours, plain.module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)
    _, still = gradients(trainer(root, "e", micro_documents=4, ntp_fraction=0.0))
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, still, strict=True))


@pytest.mark.slow(reason="trains a model several times")
def test_a_run_with_memory_and_hard_negatives_goes_on_to_the_bit_amid_an_epoch(root: Path):
    settings = {
        "memory": 5,
        "hard_negatives": 2,
        "mine_every": 4,
        "micro_documents": 4,
        "batch_documents": 4,
        "steps": 9,
    }
    unbroken = trainer(root, "whole", **settings)
    curve = list(unbroken.run())
    assert unbroken.source.epochs(7) > 1 > unbroken.source.epochs(3)
    for cut in (3, 7):
        first = trainer(root, f"cut {cut}", **settings)
        before = list(islice(first.run(), cut))
        first.loop.save()
        again = trainer(root, f"cut {cut}", **settings)
        assert losses(before + list(again.run())) == losses(curve)
        ours, theirs = (load_file(root / name / WEIGHTS) for name in (f"cut {cut}", "whole"))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    forgetful = trainer(root, "forgetful", **settings | {"memory": 0})
    assert [m.loss for m in forgetful.run()][1:] != [m.loss for m in curve][1:]


@pytest.mark.parametrize("method", ["standard", "asker", "rel-lmlm", "co-lmlm"])
def test_every_method_learns_and_is_loaded_again(root: Path, method: str):
    run = trainer(
        root, method, method=method, steps=12, learning_rate=5e-3, ntp_fraction=1.0, micro_documents=4
    )
    metrics = list(run.run())
    assert set(metrics[0].parts) == (
        {"next_token", "contrastive", "accuracy", "pairs"} if method == "co-lmlm" else {"next_token"}
    )
    assert metrics[-1].parts["next_token"] < 0.9 * metrics[0].parts["next_token"]
    if method != "co-lmlm":
        assert all(m.loss == m.parts["next_token"] for m in metrics)
    loaded = load(root / method, root, precision="fp32")
    assert (loaded.config.method, loaded.config.kind) == (method, "full")
    (batches,) = islice(run.steps(0), 1)
    b = batches[0]
    run.module.eval()
    with torch.no_grad():
        ours = run.module(b.rows, b.scored_N, b.targets_N, b.facts_P, b.queries_P)
        run.module.lm = loaded.lm
        theirs = run.module(b.rows, b.scored_N, b.targets_N, b.facts_P, b.queries_P)
    assert ours[0].item() == pytest.approx(theirs[0].item(), rel=1e-5)


@pytest.mark.slow(reason="trains a model several times")
def test_bf16_computes_in_bf16_over_float32_weights(root: Path):
    fine, coarse = (
        trainer(root, precision, precision=precision, micro_documents=4) for precision in ("fp32", "bf16")
    )
    ours, theirs = ([m.loss for m in run.run()] for run in (coarse, fine))
    assert ours == pytest.approx(theirs, rel=0.02) and ours != pytest.approx(theirs, rel=1e-5)
    assert {p.dtype for p in coarse.module.parameters()} == {torch.float32}
    assert {w.dtype for w in load_file(root / "bf16" / WEIGHTS).values()} == {torch.float32}


def test_without_a_weight_there_is_no_contrastive_part(root: Path):
    metrics = next(trainer(root, "light", contrastive_weight=0.0, micro_documents=3).run())
    assert set(metrics.parts) == {"next_token"}


def test_activations_made_again_give_the_same_gradient(root: Path):
    _, kept = gradients(trainer(root, "kept", micro_documents=4))
    _, again = gradients(trainer(root, "again", micro_documents=4, checkpointing=True))
    for ours, theirs in zip(again, kept, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_the_context_tells_the_size_of_the_whole_step(root: Path):
    run = trainer(root, "size", micro_documents=3)
    run.loop._prepare()
    (batches,) = islice(run.steps(0), 1)
    context: StepContext = run.loop.context(batches)
    assert context.total == sum(len(b.targets_N) for b in batches) > 0
    assert (context.place.world, context.sharded, context.number) == (1, False, 0)
