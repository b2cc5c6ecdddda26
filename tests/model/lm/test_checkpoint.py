"""Checkpoints: the loaded weights are the right ones, and damaged files are refused, never filled in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from colmlm import model
from colmlm.model.lm.checkpoint import (
    ADAPTER,
    PADDING,
    Checkpoint,
    CheckpointError,
    base_checkpoint,
    import_released,
    load,
)
from colmlm.model.lm.config import CONFIG_FILE, damaged_file
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.export import export_plain
from colmlm.model.lm.language_model import unit
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import PERU, numbered
from tests.strategies import HOSTILE
from tests.tiny import bare_tokenizer, tiny_base, tiny_checkpoint, tiny_llama

HOSTILE_TEXT = "".join(HOSTILE)
DOCUMENTS = [PERU, *numbered(3)]


def keys(checkpoint: Checkpoint) -> np.ndarray:
    return np.concatenate(KeyEncoder(checkpoint).encode_documents(DOCUMENTS))


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "full")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained adapter beside its base, `base`."""
    root = tmp_path_factory.mktemp("adapter")
    config = TrainConfig(
        init=str(tiny_base(root / "base")), steps=3, batch_documents=4, learning_rate=1e-2, warmup_steps=0, lora_rank=2,
        precision="fp32",
    )  # fmt: skip
    list(Trainer(config, numbered(8), root / "run", root, "small").run())
    return root


def copied(adapter: Path, target: Path) -> Path:
    """Copies the run and its base to another folder, and names that base in the run."""
    shutil.copytree(adapter, target)
    path = target / "run" / CONFIG_FILE
    record = json.loads(path.read_text())
    record["base"] = str(target / "base")
    path.write_text(json.dumps(record))
    return target


def unseal(directory: Path) -> Path:
    """Removes the digests, as in a checkpoint without any; other faults must be noticed all the same."""
    path = directory / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"digests": {}}))
    return directory


def opened(path: Path) -> Checkpoint:
    return load(path, path, precision="fp32")


def changed(path: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(path)
    for name, value in tensors.items():
        found = next(key for key in weights if name.replace("__", ".") in key)
        if value is None:
            del weights[found]
        else:
            weights[found] = weights[found] + value
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("source", ["full", "adapter"])
def test_an_export_is_loaded_by_transformers_alone(source: str, full: Path, adapter: Path, tmp_path: Path):
    checkpoint = opened(full if source == "full" else adapter / "run")
    export_plain(checkpoint, tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    base_rows = 257
    assert model.config.vocab_size == len(tokenizer) == base_rows + 3
    ours = checkpoint.tokenizer
    assert tokenizer.convert_tokens_to_ids(["<FACT>", "</FACT>", "<FACT-q>"]) == [
        ours.fact,
        ours.fact_end,
        ours.fact_q,
    ]
    marked = "Its capital is<FACT> Lima</FACT>. naïve 🏔️"
    document = ours.tokenizer
    document.encode_special_tokens = False
    try:
        ids = document.encode(marked, add_special_tokens=False).ids
    finally:
        document.encode_special_tokens = True
    assert tokenizer(marked, add_special_tokens=False)["input_ids"] == ids
    with torch.inference_mode():
        output = model(torch.tensor([ids]), output_hidden_states=True)
        states = checkpoint.lm.hidden(torch.tensor([ids]))
        torch.testing.assert_close(output.logits[0], checkpoint.lm.logits(states[0]), atol=1e-4, rtol=1e-4)
        at = ids.index(ours.fact)
        torch.testing.assert_close(
            unit(output.hidden_states[-1][0, at]), unit(states[0, at]), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("source", ["full", "adapter"])
def test_an_export_is_taken_back_with_the_same_keys_and_tokens(
    source: str, full: Path, adapter: Path, tmp_path: Path
):
    checkpoint = opened(full if source == "full" else adapter / "run")
    export_plain(checkpoint, tmp_path / "plain")
    again = opened(tmp_path / "plain")
    np.testing.assert_allclose(keys(again), keys(checkpoint), atol=1e-5)
    assert again.config.space_inside == checkpoint.config.space_inside
    assert again.config.name == checkpoint.config.name and again.config.kind == "full"
    assert again.tokenizer.encode(HOSTILE_TEXT) == checkpoint.tokenizer.encode(HOSTILE_TEXT)


def test_a_plain_model_without_our_file_is_the_papers_released_form(full: Path):
    expected = opened(full)
    (full / CONFIG_FILE).unlink()
    released = opened(full)
    assert released.config.kind == "full" and released.config.name == "full"
    assert not released.config.space_inside and not released.tokenizer.space_inside
    assert released.checkpoint_id != expected.checkpoint_id  # the key space differs, and so do the keys
    assert released.tokenizer_hash == expected.tokenizer_hash
    assert released.checkpoint_id == import_released(full, precision="fp32").checkpoint_id


def test_a_model_that_was_not_trained_with_the_tokens_is_refused(tmp_path: Path):
    base = tiny_base(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"257 rows and its tokenizer .* 260"):
        opened(base)
    (base / CONFIG_FILE).write_text(json.dumps({"name": "x", "kind": "full", "base": None, "dim": 64}))
    with pytest.raises(CheckpointError, match=r"257 rows and its tokenizer .* 260"):
        opened(base)


def test_a_base_with_many_more_rows_than_tokens_is_of_another_tokenizer(tmp_path: Path):
    """Fewer only fill its vocabulary up to a round number."""
    tiny_llama(257 + 3 + PADDING + 1).save_pretrained(tmp_path)
    bare_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"1285 rows and its tokenizer .* 260"):
        base_checkpoint(str(tmp_path), tmp_path)
    with pytest.raises(CheckpointError, match=r"1285 rows"):
        Trainer(TrainConfig(init=str(tmp_path)), numbered(4), tmp_path / "run", tmp_path, "x")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"neither colmlm.json nor config.json"):
        opened(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"name": "x"}', '{"name": "x", "flavour": 1}'])
def test_an_unreadable_description_is_refused(full: Path, content: str):
    (full / CONFIG_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"colmlm.json cannot be read"):
        opened(full)


@pytest.mark.parametrize("file", ["full", "base", "adapter"])
@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "a part"])
def test_damaged_weights_are_refused_and_never_made_up(
    full: Path, adapter: Path, tmp_path: Path, file: str, damage: str
):
    run = copied(adapter, tmp_path / "copy")
    weights, opens = {
        "full": (full / "model.safetensors", unseal(full)),
        "base": (run / "base" / "model.safetensors", run / "run"),
        "adapter": (run / "run" / ADAPTER, unseal(run / "run")),
    }[file]
    if damage == "gone":
        weights.unlink()
    elif damage == "a part":
        changed(weights, layers__1__mlp__down_proj=None)
    else:
        weights.write_bytes(weights.read_bytes()[:500] if damage == "cut" else b"")
    with pytest.raises((CheckpointError, LookupError)):
        opened(opens)


@pytest.mark.parametrize(
    "file", ["full/model.safetensors", "full/tokenizer.json", "run/" + ADAPTER, "run/adapter_config.json"]
)
def test_a_flipped_bit_is_refused_in_every_file_that_keys_depend_on(
    full: Path, adapter: Path, tmp_path: Path, file: str
):
    run = copied(adapter, tmp_path / "copy") / "run"
    folder, name = file.split("/")
    directory = {"full": full, "run": run}[folder]
    opened(directory)
    content = bytearray((directory / name).read_bytes())
    content[-9] ^= 1
    (directory / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} does not match its digest"):
        opened(directory)


def test_the_released_checkpoint_is_whole_and_sealed():
    released = Path(model.__file__).parent / "released" / "co-lmlm-135m"
    digests = json.loads((released / CONFIG_FILE).read_text())["digests"]
    assert set(digests) == {ADAPTER, "adapter_config.json", "trained_on.json"}
    assert damaged_file(released, digests) is None


def test_an_adapter_is_refused_over_another_base(adapter: Path, tmp_path: Path):
    run = copied(adapter, tmp_path / "copy")
    shutil.rmtree(run / "base")
    tiny_base(run / "base", seed=9)
    with pytest.raises(CheckpointError, match="trained on another"):
        opened(run / "run")


def test_the_id_stays_where_the_checkpoint_is_moved_and_renamed(full: Path, adapter: Path, tmp_path: Path):
    before = opened(full).checkpoint_id
    shutil.move(full, tmp_path / "elsewhere")
    record = json.loads((tmp_path / "elsewhere" / CONFIG_FILE).read_text())
    (tmp_path / "elsewhere" / CONFIG_FILE).write_text(json.dumps(record | {"name": "another"}))
    assert opened(tmp_path / "elsewhere").checkpoint_id == before
    assert len(before) == 16
    moved = copied(adapter, tmp_path / "moved")
    assert opened(moved / "run").checkpoint_id == opened(adapter / "run").checkpoint_id


def test_the_id_changes_with_everything_that_keys_depend_on(adapter: Path, tmp_path: Path):
    ids = [opened(adapter / "run").checkpoint_id, opened(tiny_checkpoint(tmp_path / "a")).checkpoint_id]
    ids += [opened(tiny_checkpoint(tmp_path / "b", seed=4)).checkpoint_id]
    ids += [opened(tiny_checkpoint(tmp_path / "c", space_inside=False)).checkpoint_id]
    one = unseal(copied(adapter, tmp_path / "one") / "run")
    changed(one / ADAPTER, lora_A=torch.tensor(1e-3))
    ids += [opened(one).checkpoint_id]
    two = unseal(copied(adapter, tmp_path / "two") / "run")
    record = json.loads((two / "adapter_config.json").read_text())
    (two / "adapter_config.json").write_text(json.dumps(record | {"lora_alpha": 2 * record["lora_alpha"]}))
    assert np.abs(keys(opened(two)) - keys(opened(adapter / "run"))).max() > 1e-3
    ids += [opened(two).checkpoint_id]
    assert len(set(ids)) == len(ids)


def test_a_checkpoint_is_ready_for_inference(adapter: Path):
    checkpoint = opened(adapter / "run")
    assert not checkpoint.lm.causal.training
    assert not any(p.requires_grad for p in checkpoint.lm.parameters())
    assert checkpoint.lm.causal.get_input_embeddings().weight.dtype is torch.float32
    assert checkpoint.lm.dim == checkpoint.config.dim == 64


def test_half_precision_gives_nearly_the_same_keys(adapter: Path):
    half = load(adapter / "run", adapter, precision="bf16")
    assert half.lm.causal.get_input_embeddings().weight.dtype is torch.bfloat16
    ours, theirs = keys(half), keys(opened(adapter / "run"))
    assert ours.dtype == np.float32 and float((ours * theirs).sum(axis=1).min()) > 0.99


def test_the_untrained_base_has_the_mean_of_its_rows_for_the_new_tokens(adapter: Path):
    checkpoint = base_checkpoint(str(adapter / "base"), adapter, precision="fp32")
    rows = checkpoint.lm.causal.get_input_embeddings().weight
    torch.testing.assert_close(rows[-3:], rows[:-3].mean(dim=0).expand(3, -1))
    assert checkpoint.path is None and "untrained" in checkpoint.config.name
    assert replace(checkpoint.config, name="x").kind == "full"
