"""The state of the random generators, as tensors that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int) -> None:
    """Seeds Python's, numpy's and torch's generators, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def torch_state() -> dict[str, Tensor]:
    """Gives the states of torch's generators, on the CPU and on this process's GPU, from which dropout draws."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_torch(state: Mapping[str, Tensor]) -> None:
    # Cloned, since torch 2.13 crashes on a state that begins in the middle of another tensor's memory.
    torch.set_rng_state(state["torch"].cpu().clone())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu().clone())


def all_states() -> dict[str, Tensor]:
    """Gives the states of torch's, Python's and numpy's generators, each as one tensor of a fixed shape."""
    _, words, gauss = random.getstate()
    numbers = np.random.get_state(legacy=False)
    assert isinstance(numbers, dict)
    return torch_state() | {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*numbers["state"]["key"].tolist(), numbers["state"]["pos"]]),
        "numpy_gauss": torch.tensor([numbers["has_gauss"], numbers["gauss"]], dtype=torch.float64),
    }


def restore_all(state: Mapping[str, Tensor]) -> None:
    """Sets every generator to the state that `all_states` gave."""
    restore_torch(state)
    has_gauss, gauss = state["python_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss if has_gauss else None))
    *key, position = state["numpy"].tolist()
    has_gauss, cached = state["numpy_gauss"].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, int(has_gauss), cached))
