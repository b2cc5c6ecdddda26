"""Every step runs to its end, on the results of those before it, and its results are small enough to come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.lab.half_hour.parcels import bring_back
from colmlm.lab.half_hour.places import Place
from colmlm.lab.half_hour.steps import STEPS
from colmlm.model.lm.config import CheckpointConfig
from tests.lab.half_hour.tiny_store import tiny_store

pytestmark = [
    pytest.mark.slow(reason="runs every step of a half hour on an accelerator, at test size"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return tiny_store(tmp_path_factory.mktemp("store"))


def test_the_steps_after_the_reader_run_to_the_end_one_after_the_other(place: Place, tmp_path: Path):
    figures = {}
    for name in ("generator", "questions", "train", "measure", "scratch"):
        made, figures[name] = STEPS[name](place)
        assert bring_back(made, tmp_path / name) == []
        assert json.loads(json.dumps(figures[name])) == figures[name]
    assert figures["generator"]["steps"] == 1
    assert figures["questions"]["documents"] == 2 and figures["questions"]["questions"] >= 2
    assert figures["train"]["steps"] == 2 and figures["train"]["tokens"] > 0
    assert CheckpointConfig.load(place.run("released/co-lmlm")).kind == "adapter"
    measured = figures["measure"]["figures"]
    assert set(measured) == {"before", "trained", "released"}
    for one in measured.values():
        assert set(one["recall"]) == {"question", "decoder"}
        assert {"static", "dynamic", "normalised"} <= one["perplexity"].keys()
        assert 0 < one["opening_probability"]["at_spans"] < 1
    speeds = figures["scratch"]["speeds"]
    assert [one["steps"] for one in speeds.values()] == [2, 2]
    assert {"static", "scratch-standard, same tokens"} <= figures["scratch"]["figures"]["perplexity"].keys()
