"""Training on the tiny base learns, resumes without any difference, and changes only the weights that it may."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.lm.checkpoint import ADAPTER, load
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit
from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.logs import LOSS_FILE, read_log
from colmlm.model.training.state import STATE_FILE, release_adapter, write_state
from colmlm.model.training.task import StepMetrics
from colmlm.model.training.trainer import Trainer
from tests.disks import files_limited_to
from tests.kb.corpora import numbered
from tests.tiny import states_of, tiny_base

DOCUMENTS = numbered(24)


@pytest.fixture(scope="module")
def config(base: Path) -> TrainConfig:
    return TrainConfig(
        init=str(base), steps=8, batch_documents=8, block=4, max_length=128, learning_rate=1e-2, warmup_steps=2,
        lora_rank=4, lora_alpha=8, precision="fp32", title_fraction=0.0,
    )  # fmt: skip


def trainer(
    config: TrainConfig, directory: Path, documents: Sequence[AnnotatedDocument] = DOCUMENTS
) -> Trainer:
    return Trainer(config, documents, directory, directory, "tiny")


def losses(metrics: Sequence[StepMetrics]) -> list[tuple[float, ...]]:
    return [(m.step, m.tokens, m.loss, m.gradient_norm, *m.parts.values()) for m in metrics]


@pytest.fixture(scope="module")
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, list[StepMetrics]]:
    """A run of eight steps without an interruption, with the metrics it yielded."""
    run = trainer(config, tmp_path_factory.mktemp("run"))
    return run, list(run.run())


@pytest.fixture(scope="module")
def finished(whole: tuple[Trainer, list[StepMetrics]]) -> Trainer:
    return whole[0]


@pytest.fixture(scope="module")
def curve(whole: tuple[Trainer, list[StepMetrics]]) -> list[StepMetrics]:
    assert len(whole[1]) == 8
    return whole[1]


def saved(directory: Path) -> dict[str, bytes]:
    """Reads the files of a run except its log, which grows with each step."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file() and p.name != LOSS_FILE}


def live_keys(run: Trainer) -> list[np.ndarray]:
    run.lm.eval()
    encoded = [run.tokenizer.document(d, close=False) for d in DOCUMENTS]
    with torch.inference_mode():
        states = states_of(run.lm, encoded, keep=[e.fact_positions for e in encoded])
    return [unit(s).numpy() for s in states]


def test_both_losses_fall_and_questions_come_nearer_to_their_facts(config: TrainConfig, tmp_path: Path):
    metrics = list(trainer(replace(config, steps=60), tmp_path).run())
    first, last = metrics[:5], metrics[-5:]
    for name, most in (("loss", 0.9), ("next_token", 0.95), ("contrastive", 0.85)):
        before, after = (sum(m.row()[name] for m in some) for some in (first, last))
        assert after < most * before, name
    assert sum(m.parts["accuracy"] for m in metrics[-10:]) > sum(m.parts["accuracy"] for m in metrics[:10])


def test_the_rate_warms_up_stays_and_cools_down(curve: list[StepMetrics]):
    rates = [m.learning_rate for m in curve]
    assert rates[0] == pytest.approx(5e-3) and rates[1:6] == [1e-2] * 5
    assert rates[5] > rates[6] > rates[7] > 0


@pytest.mark.parametrize("done", [1, 3, 7])
def test_a_resumed_run_goes_on_to_the_bit(
    finished: Trainer, curve: list[StepMetrics], config: TrainConfig, tmp_path: Path, done: int
):
    cut = trainer(config, tmp_path)
    before = list(islice(cut.run(), done))
    cut.loop.save()
    torch.rand(5)  # another process has another random state
    after = list(trainer(config, tmp_path).run())
    assert losses(before + after) == losses(curve)
    ours, theirs = load_file(tmp_path / ADAPTER), load_file(finished.directory / ADAPTER)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_steps_after_the_last_save_are_done_again_the_same(
    curve: list[StepMetrics], config: TrainConfig, tmp_path: Path
):
    cut = trainer(config, tmp_path)
    steps = cut.run()
    list(islice(steps, 2))
    cut.loop.save()
    list(islice(steps, 3))  # and then the process is killed, while it saves
    (tmp_path / ".saving-half").mkdir()
    (tmp_path / ".saving-half" / ADAPTER).write_bytes(b"half")
    assert losses(list(trainer(config, tmp_path).run())) == losses(curve[2:])
    assert not list(tmp_path.glob(".saving-*"))
    assert read_log(tmp_path / LOSS_FILE)["step"] == list(range(1, 9))


def test_a_finished_run_does_nothing_more(finished: Trainer, config: TrainConfig):
    before = (finished.directory / ADAPTER).read_bytes()
    assert list(trainer(config, finished.directory).run()) == []
    assert (finished.directory / ADAPTER).read_bytes() == before


def test_other_data_and_another_base_are_refused(finished: Trainer, config: TrainConfig, tmp_path: Path):
    with pytest.raises(TrainingRefused, match=r"another data; name another --out"):
        next(trainer(config, finished.directory, DOCUMENTS[1:]).run())
    other = replace(config, init=str(tiny_base(tmp_path / "base", seed=4)))
    with pytest.raises(TrainingRefused, match=r"another base; name another --out"):
        next(trainer(other, finished.directory).run())
    other = replace(config, seed=18, batch_documents=4)
    with pytest.raises(
        TrainingRefused, match=r"another batch documents \(8 there, 4 here\), seed \(17 there, 18 here\);"
    ):
        next(trainer(other, finished.directory).run())


def test_a_run_ends_with_its_time_and_has_cooled_down_by_then(config: TrainConfig, tmp_path: Path):
    run = trainer(replace(config, steps=100_000, max_seconds=1.0, cooldown=0.5), tmp_path)
    metrics = list(run.run())
    assert run.loop.is_over and 0 < run.progress.step < 100_000
    assert metrics[-1].learning_rate < 0.7 * max(m.learning_rate for m in metrics) or len(metrics) < 6
    assert all(a.seconds <= b.seconds for a, b in pairwise(metrics))


def test_only_the_adapter_and_the_three_rows_change(finished: Trainer, base: Path):
    trained = [name for name, p in finished.lm.named_parameters() if p.requires_grad]
    assert all("lora_" in name or "trainable_tokens" in name for name in trained)
    assert any("lora_B" in name for name in trained) and any("trainable_tokens" in name for name in trained)
    merged = load(finished.directory, finished.directory, precision="fp32").lm.causal.state_dict()
    original = load_file(base / "model.safetensors")
    rows = original["model.embed_tokens.weight"]
    embedded = merged["model.embed_tokens.weight"]
    assert torch.equal(embedded[:-3], rows)
    assert not torch.isclose(embedded[-3:], rows.mean(dim=0).expand(3, -1), atol=1e-4).all(dim=1).any()
    assert torch.equal(merged["lm_head.weight"], embedded)
    changed = {
        k
        for k, v in original.items()
        if k in merged and v.shape == merged[k].shape and not torch.equal(v, merged[k])
    }
    assert changed and all(k.endswith("proj.weight") for k in changed)


def test_the_saved_adapter_gives_the_keys_of_the_live_model(finished: Trainer):
    loaded = load(finished.directory, finished.directory, precision="fp32")
    assert (loaded.config.name, loaded.config.kind) == ("tiny", "adapter")
    for ours, theirs in zip(KeyEncoder(loaded).encode_documents(DOCUMENTS), live_keys(finished), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_run_writes_its_log_and_what_it_was(
    finished: Trainer, curve: list[StepMetrics], config: TrainConfig
):
    with (finished.directory / LOSS_FILE).open() as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["step"]) for row in rows] == list(range(1, 9))
    assert [float(row["contrastive"]) for row in rows] == [m.parts["contrastive"] for m in curve]
    record = json.loads((finished.directory / "colmlm.json").read_text())["training"]
    assert record["steps"] == 8 and record["documents"] == 24 and record["config"]["seed"] == config.seed
    assert record["epochs"] == pytest.approx(8 / 3, abs=0.01)
    assert not [p for p in finished.directory.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("size", [100, 20_000], ids=["before the weights", "within the weights"])
def test_a_save_that_is_cut_off_leaves_the_one_before(
    curve: list[StepMetrics], config: TrainConfig, tmp_path: Path, size: int
):
    run = trainer(config, tmp_path)
    steps = run.run()
    list(islice(steps, 2))
    run.loop.save()
    before = saved(tmp_path)
    next(steps)

    with files_limited_to(size), pytest.raises((OSError, SafetensorError), match="File too large"):
        run.loop.save()
    assert saved(tmp_path) == before
    assert losses(list(trainer(config, tmp_path).run())) == losses(curve[2:])


def test_a_state_that_the_disk_has_no_room_for_says_so(tmp_path: Path):
    with files_limited_to(100_000), pytest.raises(OSError, match="File too large"):
        write_state(tmp_path, {"weights": torch.zeros(1_000_000)})


def test_a_step_without_pairs_still_trains(config: TrainConfig, tmp_path: Path):
    bare = [AnnotatedDocument(f"bare{n}", f"Nothing is asked of {n}.") for n in range(30)]
    run = trainer(replace(config, batch_documents=4, steps=3), tmp_path, [*bare, DOCUMENTS[0]])
    without = [m for m in run.run() if not m.parts["pairs"]]
    assert without and all(m.parts["contrastive"] == 0.0 for m in without)
    assert all(m.loss == m.parts["next_token"] > 0 for m in without)


def test_without_scored_positions_only_the_contrastive_loss_is_left(config: TrainConfig, tmp_path: Path):
    run = trainer(replace(config, ntp_fraction=0.0, steps=2), tmp_path)
    for metrics in run.run():
        assert metrics.parts["next_token"] == 0.0
        assert metrics.loss == pytest.approx(0.25 * metrics.parts["contrastive"]) and metrics.loss > 0


def test_a_release_is_small_and_gives_nearly_the_same_keys(finished: Trainer, tmp_path: Path):
    release_adapter(finished.directory, tmp_path)
    assert not (tmp_path / STATE_FILE).exists()
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
        == finished.config.init
    )
    released, own = (load(path, path, precision="fp32") for path in (tmp_path, finished.directory))
    assert released.checkpoint_id != own.checkpoint_id
    for ours, theirs in zip(
        KeyEncoder(released).encode_documents(DOCUMENTS),
        KeyEncoder(own).encode_documents(DOCUMENTS),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-2)
    assert (tmp_path / ADAPTER).stat().st_size < (finished.directory / ADAPTER).stat().st_size
