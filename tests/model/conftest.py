"""Tiny real checkpoints, made once per run, and one thread, since another process may be using the other core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.text.tokens import FactTokenizer
from tests.tiny import byte_tokenizer, merging_tokenizer, tiny_base, tiny_checkpoint

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Ignores a warning that peft 0.21 causes with transformers 5.23 by using a deprecated name; neither is ours."""
    config.addinivalue_line(
        "filterwarnings", "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
    )


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint with random weights that almost never look anything up."""
    path = tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    return load(path, path, precision="fp32")


@pytest.fixture(scope="session")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint with random weights that look something up again and again.

    It is in double precision, so that no two tokens are so close that the order of a sum decides between them.
    """
    path = tiny_checkpoint(tmp_path_factory.mktemp("eager"), eagerness=5.0)
    loaded = load(path, path, precision="fp32")
    loaded.lm.model.double()
    return loaded


@pytest.fixture(scope="session", params=[True, False], ids=["space inside", "space outside"])
def either(request: pytest.FixtureRequest) -> FactTokenizer:
    """The byte tokenizer, with the space before a span on either side of the tag."""
    return byte_tokenizer(space_inside=request.param)


@pytest.fixture(scope="session", params=[True, False], ids=["space inside", "space outside"])
def merging(request: pytest.FixtureRequest) -> FactTokenizer:
    return merging_tokenizer(space_inside=request.param)
