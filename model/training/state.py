"""The state that a run resumes from: one file, replaced atomically, read without executing anything in it.

Weights and the optimiser's moments are saved whole and by name, however they are placed on devices during training (on
one, copied, or sharded by FSDP), so a run can resume with another number of processes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from colmlm.model.lm.checkpoint import ship_adapter
from colmlm.model.lm.config import CheckpointConfig, CheckpointError, copy_record
from colmlm.model.training.config import TrainingRefused
from colmlm.model.training.logs import LOSS_FILE
from colmlm.model.training.task import gather_equal, gather_lines, process_rank

STATE_FILE = "state.pt"
FORMAT = 2
_DIFFERS_AT_MOST = 40


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Give the parameters that training changes, by name, without the names of accelerate's wrappers."""
    return {
        name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Gather all trainable weights on the CPU of the first process; empty in the others. All processes must call it."""
    whole = {name: _gather_whole(p.detach()) for name, p in trainable(module).items()}
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write `weights` into the module's trainable parameters, by name. Raises TrainingRefused if their names differ."""
    parameters = trainable(module)
    if differing := sorted(parameters.keys() ^ weights.keys()):
        raise TrainingRefused(
            f"the saved run trains other weights: {len(differing)} differ, {differing[0]} for one; name another --out"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(_place_tensor(weights[name], parameter))


def whole_moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Gather the optimiser's state of each trainable weight, as `whole_weights` does the weights."""
    moments = {}
    for name, parameter in trainable(module).items():
        kept = {key: _gather_whole(value) for key, value in optimizer.state.get(parameter, {}).items()}
        moments[name] = {key: value for key, value in kept.items() if value is not None}
    return {name: kept for name, kept in moments.items() if kept}


def put_moments(
    module: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Restore the optimiser's state of each trainable weight. Adam's step count is on the CPU, unless Adam is fused."""
    is_fused = bool(optimizer.defaults.get("fused"))
    for name, parameter in trainable(module).items():
        optimizer.state[parameter] = {
            key: value.clone() if key == "step" and not is_fused else _place_tensor(value, parameter).clone()
            for key, value in moments.get(name, {}).items()
        }


def random_states() -> dict[str, Tensor]:
    """Gather the random generators' states of every process, by name: [world, ...]. All processes must call it."""
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    on_device = process_rank().world > 1
    return {
        name: gather_equal(state.to(device) if on_device else state).cpu()
        for name, state in all_states().items()
    }


def put_random_states(states: Mapping[str, Tensor], seed: int) -> None:
    """Restore this process's random generators, or seed them if another number of processes saved the states."""
    place = process_rank()
    if len(states["torch"]) == place.world:
        restore_all({name: state[place.rank] for name, state in states.items()})
    else:
        seed_all(seed + place.rank)


def check_resume_identity(saved: Mapping[str, str], now: Mapping[str, str], directory: Path) -> None:
    """Raise `TrainingRefused`, which names what differs, if the saved run has other data, another base or settings."""
    if listed := _differences(saved, now, "there", "here"):
        raise TrainingRefused(
            f"{directory} holds a run with another {listed}; name another --out, or give the same again"
        )


def require_same_run(resume_identity: Mapping[str, str], device: torch.device) -> None:
    """Refuse to train if the processes would train different runs, as with a stale copy of the data on one machine.

    Raises `TrainingRefused` in all processes. All processes must call it.
    """
    told = [json.loads(line) for line in gather_lines(json.dumps(resume_identity), device)]
    for rank, other in enumerate(told):
        if listed := _differences(told[0], other, "in rank 0", f"in rank {rank}"):
            raise TrainingRefused(
                f"the processes of this run were given another {listed}; give all machines the same data and settings"
            )


def require_same_save(state: Mapping[str, Any] | None, directory: Path, device: torch.device) -> None:
    """Raise `TrainingRefused` if the processes have read saves of different steps. All processes must call it."""
    step = torch.tensor(state["progress"]["step"] if state else 0, device=device)
    steps = sorted(set(gather_equal(step).tolist()))
    if len(steps) > 1:
        raise TrainingRefused(
            f"the processes of this run found saves of different steps in {directory}, {steps[0]} and {steps[-1]} (0 "
            "is none): all machines must see one directory there, or have a copy of it"
        )


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write the state file and replace the old one atomically. Raises `OSError`, such as when the disk is full."""
    unfinished = directory / f".{STATE_FILE}"
    with unfinished.open("wb") as target:
        try:
            torch.save({"format": FORMAT, **state}, target)
        except RuntimeError as error:  # torch covers the error of the file with one of its own
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        target.flush()
        os.fsync(target.fileno())
    os.replace(unfinished, directory / STATE_FILE)


def read_state(directory: Path) -> dict[str, Any] | None:
    """Read the state file; None if there is none. Raises TrainingRefused if it is damaged or of another version."""
    path = directory / STATE_FILE
    if not path.is_file():
        return None
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise TrainingRefused(
            f"{path} cannot be read: it is damaged, or not of this program; name another --out to train anew"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise TrainingRefused(
            f"{path} was written by another version of this program; name another --out to train anew"
        )
    return state


def _gather_whole(tensor: Any) -> Tensor | None:
    """Gather the tensor on the CPU in the first process; give None in the others."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.cpu() if process_rank().is_first else None


def _place_tensor(tensor: Tensor, like: Tensor) -> Tensor:
    """Place `tensor` on the devices as `like` is placed."""
    tensor = tensor.to(like.device)
    if isinstance(like, DTensor):
        return distribute_tensor(tensor, like.device_mesh, like.placements)
    return tensor


def _differences(one: Mapping[str, str], other: Mapping[str, str], of_one: str, of_other: str) -> str:
    """List the names that differ, with both values if they are short; digests are left out."""
    listed = []
    for name in sorted(one.keys() | other.keys()):
        if (ours := one.get(name)) != (theirs := other.get(name)):
            is_short = max(len(ours or ""), len(theirs or "")) < _DIFFERS_AT_MOST
            values = f" ({ours or 'none'} {of_one}, {theirs or 'none'} {of_other})"
            listed.append(f"{name}{values if is_short else ''}")
    return ", ".join(listed)


# The state of the random generators, as tensors that a checkpoint can hold.


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def torch_state() -> dict[str, Tensor]:
    """Give the states of torch's generators, on the CPU and on this process's GPU, from which dropout draws."""
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
    """Give the states of torch's, Python's and numpy's generators, each as one tensor of a fixed shape."""
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
    """Restore the generators of random numbers of torch, Python and numpy to the states that `all_states` gave."""
    restore_torch(state)
    has_gauss, gauss = state["python_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss if has_gauss else None))
    *key, position = state["numpy"].tolist()
    has_gauss, cached = state["numpy_gauss"].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, int(has_gauss), cached))


# The release of a finished run in a size that can be shipped: half-precision weights, no optimiser state.


def release_adapter(run: Path, target: Path) -> CheckpointConfig:
    """Write a run's adapter to `target` as a checkpoint of at most 16 MB, with training record and loss log."""
    config = CheckpointConfig.load(run)
    if config.kind != "adapter":
        raise CheckpointError(
            f"{run}: this run trained all weights, and `colmlm train release` writes adapters alone; use "
            f"`colmlm checkpoint export {target} --checkpoint {run}`"
        )
    ship_adapter(run, target, config.base)
    copy_record(run, target, config.digests)
    shutil.copyfile(run / LOSS_FILE, target / LOSS_FILE)
    config.save(target)
    return config
