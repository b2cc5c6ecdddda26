"""An adapter that is merged once a step learns what peft's own computes, and costs a layer one product."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from colmlm.model.lm.language_model import FactLM
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.forward import MergedAdapters, MergedLinear, TokenRows
from colmlm.model.training.start import start
from colmlm.model.training.state import put_weights, trainable, whole_weights

IDS = torch.tensor([[5, 9, 257, 30, 258, 7, 259, 11]])  # with the added tokens


@pytest.fixture
def begun(base: Path, tmp_path: Path) -> Callable[[], FactLM]:
    """Makes a model under an adapter whose matrices are all drawn, since a new one adds nothing."""

    def make(layers: int | None = None) -> FactLM:
        lm = start(
            TrainConfig(init=str(base), lora_rank=4, precision="fp32", lora_layers=layers), tmp_path
        ).lm
        drawn = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in trainable(lm).values():
                parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.03)
        return lm

    return make


def loss_of(lm: FactLM) -> Tensor:
    states = lm.hidden(IDS)
    return lm.logits(states[0]).square().mean() + states.sin().square().mean()


def gradients(lm: FactLM) -> dict[str, Tensor]:
    lm.zero_grad()
    loss_of(lm).backward()
    return {name: p.grad.clone() for name, p in trainable(lm).items() if p.grad is not None}


@pytest.mark.parametrize("layers", [None, 1])
def test_loss_and_gradients_are_those_of_peft_over_several_steps(
    begun: Callable[..., FactLM], layers: int | None
):
    ours, theirs = begun(layers), begun(layers)
    merged = MergedAdapters(ours.model)
    assert len(merged.layers) == 7 * (layers or 2)
    optimizers = [
        torch.optim.AdamW(list(trainable(lm).values()), lr=1e-3, fused=True) for lm in (ours, theirs)
    ]
    for _ in range(4):
        assert loss_of(ours).item() == pytest.approx(loss_of(theirs).item(), rel=1e-5)
        got, expected = gradients(ours), gradients(theirs)
        assert got.keys() == expected.keys() and len(got) == 14 * (layers or 2) + 1
        for name in got:
            atol = 1e-4 * float(expected[name].abs().max())
            torch.testing.assert_close(got[name], expected[name], rtol=1e-3, atol=atol)
        for optimizer in optimizers:
            optimizer.step()
    assert all(layer.parts is not None for layer in merged.layers)


def test_a_forward_sees_weights_that_were_put_there(begun: Callable[..., FactLM]):
    ours, theirs = begun(), begun()
    MergedAdapters(ours.model)
    before = loss_of(ours).item()
    weights = {name: weight * 2 for name, weight in whole_weights(theirs).items()}
    put_weights(ours, weights)
    put_weights(theirs, weights)
    assert loss_of(ours).item() == pytest.approx(loss_of(theirs).item(), rel=1e-5)
    assert abs(loss_of(ours).item() - before) > 1e-3


def test_names_and_the_saved_adapter_stay_pefts(begun: Callable[..., FactLM], tmp_path: Path):
    ours, theirs = begun(), begun()
    MergedAdapters(ours.model)
    loss_of(ours)
    assert list(trainable(ours)) == list(trainable(theirs))
    assert isinstance(ours.model, PeftModel)
    for lm, name in ((ours, "ours"), (theirs, "theirs")):
        lm.model.save_pretrained(str(tmp_path / name), save_embedding_layers=False)
    files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("ours", "theirs")]
    assert files[0] == files[1]


def test_in_half_precision_the_gradient_is_pefts_but_for_rounding(begun: Callable[..., FactLM]):
    ours = begun().model.get_base_model().to(torch.float32)
    layer = next(
        module for module in ours.modules() if "Linear" in type(module).__name__ and hasattr(module, "lora_A")
    )
    half = deepcopy(layer)
    half.base_layer.to(torch.bfloat16)
    half.__class__ = MergedLinear
    down, up, scale = half.small
    half.merge_into((half.base_layer.weight + scale * up @ down).detach().to(torch.bfloat16))
    x = torch.randn(50, down.shape[1], generator=torch.Generator().manual_seed(1))
    for one in (layer, half):
        one(x).float().sin().sum().backward()
    for ours_p, theirs_p in zip(
        half.small[:2], (layer.lora_A.default.weight, layer.lora_B.default.weight), strict=True
    ):
        assert ours_p.grad.dtype is torch.float32
        torch.testing.assert_close(
            ours_p.grad, theirs_p.grad, rtol=0.1, atol=0.05 * float(theirs_p.grad.abs().max())
        )


def test_no_gradient_is_kept_for_the_rows_of_other_tokens(begun: Callable[..., FactLM]):
    lm = begun()
    MergedAdapters(lm.model)
    gradients(lm)
    rows = [module for module in lm.modules() if isinstance(module, TokenRows)]
    assert len(rows) == 2 and all(module.is_fast for module in rows)
    saved: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        lm.logits(lm.hidden(IDS)[0])
    assert torch.Size([260, 64]) in saved  # the head itself, and no copy with a gradient
    assert lm.causal.lm_head(lm.hidden(IDS)[0]).grad_fn.name() == "_HeadProductBackward"
