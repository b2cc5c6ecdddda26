"""Runs in two real processes, copied (DDP) and sharded (FSDP), give the same as runs in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from colmlm.model.lm.checkpoint import ADAPTER, WEIGHTS
from tests.model.training.processes import CUTS, KINDS, STEPS, launch, train

pytestmark = [
    pytest.mark.slow(reason="trains in two processes, each of which imports torch"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def two(root: Path) -> dict[str, list[dict[str, Any]]]:
    return launch(root)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_learn_what_one_does_and_it_goes_on_alone(
    root: Path, two: dict[str, list[dict[str, Any]]], kind: str
):
    """Compares five documents per process in several micro-batches with ten documents in one forward."""
    alone = train(root, kind, f"{kind} alone", micro_documents=None, forward_tokens=None)
    curve = [(m["step"], m["tokens"], m["loss"], m["gradient_norm"], m["parts"]) for m in two[kind]]
    assert len(curve) == CUTS[-1]
    curve += [(m.step, m.tokens, m.loss, m.gradient_norm, m.parts) for m in train(root, kind, kind)]
    assert [step[0] for step in curve] == list(range(1, STEPS + 1))
    for ours, theirs in zip(curve, alone, strict=True):
        assert ours[1] == theirs.tokens
        assert ours[2:4] == pytest.approx((theirs.loss, theirs.gradient_norm), abs=1e-5)
        assert ours[4] == pytest.approx(dict(theirs.parts), abs=1e-5)
    file = ADAPTER if "adapter" in kind else WEIGHTS
    ours, theirs = load_file(root / kind / file), load_file(root / f"{kind} alone" / file)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=1e-5)
