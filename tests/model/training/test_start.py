"""The start of a run: existing weights are kept, missing ones added, and a checkpoint that does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from colmlm.model.lm.checkpoint import load
from colmlm.model.lm.config import CheckpointConfig, CheckpointError
from colmlm.model.lm.export import export_plain
from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.markup import ASKER, CO_LMLM, STANDARD
from colmlm.model.training.config import RANDOM, Architecture, TrainConfig
from colmlm.model.training.start import Start, start
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import numbered
from tests.tiny import bare_tokenizer, tiny_checkpoint, tiny_llama

TINY = Architecture(layers=2, width=32, heads=4, kv_heads=2, ffn=48, context=128)
LORA = TrainConfig(steps=2, batch_documents=4, max_length=128, lora_rank=2, lora_alpha=4, precision="fp32")
FULL = replace(LORA, adapt="full")


def randomly(base: Path, **changes: Any) -> TrainConfig:
    return replace(FULL, init=RANDOM, architecture=TINY, tokenizer=str(base), **changes)


def begun(config: TrainConfig) -> Start:
    return start(config, Path())


def trained(lm: FactLM) -> dict[str, torch.Tensor]:
    return {name: p for name, p in lm.named_parameters() if p.requires_grad}


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained adapter over `base`."""
    target = tmp_path_factory.mktemp("adapter") / "run"
    config = replace(LORA, init=str(base), learning_rate=1e-2, warmup_steps=0)
    list(Trainer(config, numbered(8), target, target, "small").run())
    return target


@pytest.mark.parametrize("method, rows", [("co-lmlm", 3), ("standard", 0), ("asker", 3), ("rel-lmlm", 4)])
def test_random_weights_have_the_architecture_and_a_row_for_every_token(base: Path, method: str, rows: int):
    begin = begun(randomly(base, method=method))
    llama = begin.lm.causal
    config = llama.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (2, 32, 48)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.max_position_embeddings == 128 and config.rope_parameters["rope_theta"] == 100_000
    assert config.vocab_size == begin.tokenizer.vocabulary_size == bare_tokenizer().get_vocab_size() + rows
    assert llama.lm_head.weight is llama.model.embed_tokens.weight
    assert (begin.kind, begin.base, begin.base_sha256) == ("full", None, None)
    assert len(trained(begin.lm)) == len(list(llama.parameters()))
    assert all(p.dtype is torch.float32 for p in llama.parameters())


def test_random_weights_are_the_seeds(base: Path):
    one, same, other = (begun(randomly(base, seed=seed)).lm.causal.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_precision_is_of_the_arithmetic_and_not_of_the_weights_trained(base: Path, adapter: Path):
    for config in (
        randomly(base, precision="bf16"),
        replace(FULL, init=str(base), precision="bf16"),
        replace(LORA, init=str(base), precision="bf16"),
        replace(LORA, init=str(adapter), precision="bf16"),
    ):
        begin = begun(config)
        assert begin.lm.compute is torch.bfloat16
        assert {p.dtype for p in trained(begin.lm).values()} == {torch.float32}


def test_all_weights_of_a_base_are_trained_and_the_fresh_rows_are_its_mean(base: Path):
    begin = begun(replace(FULL, init=str(base)))
    original = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    table = begin.lm.causal.model.embed_tokens.weight
    assert torch.equal(table[:-3], original)
    torch.testing.assert_close(table[-3:], original.mean(dim=0).expand(3, -1))
    assert begin.kind == "full" and len(trained(begin.lm)) == len(list(begin.lm.causal.parameters()))


def test_an_adapter_on_the_top_layers_leaves_the_others_alone(base: Path):
    begin = begun(replace(LORA, init=str(base), lora_layers=1))
    names = [name for name in trained(begin.lm) if "lora_" in name]
    assert names and all(".layers.1." in name for name in names)
    every = begun(replace(LORA, init=str(base), lora_layers=9))
    assert any(".layers.0." in name for name in trained(every.lm))


def test_an_adapter_is_trained_further(base: Path, adapter: Path):
    begin = begun(replace(LORA, init=str(adapter)))
    assert (begin.kind, begin.base) == ("adapter", str(base))
    stored = load_file(adapter / "adapter_model.safetensors")
    ours = trained(begin.lm)
    assert len(ours) == len(stored)
    fresh = trained(begun(replace(LORA, init=str(base))).lm)
    assert ours.keys() == fresh.keys()
    moved = [name for name in ours if "lora_B" in name and ours[name].abs().sum() > 0]
    assert moved and not any(fresh[name].abs().sum() > 0 for name in moved)


def test_an_adapter_is_merged_where_all_weights_are_trained(adapter: Path):
    begin = begun(replace(FULL, init=str(adapter)))
    merged = load(adapter, adapter, precision="fp32").lm.causal.state_dict()
    ours = begin.lm.causal.state_dict()
    assert ours.keys() == merged.keys() and all(torch.equal(ours[k], merged[k]) for k in merged)
    assert len(trained(begin.lm)) == len(list(begin.lm.causal.parameters()))


@pytest.mark.parametrize("changes", [{"lora_rank": 4}, {"lora_alpha": 8}, {"lora_layers": 1}])
def test_an_adapter_of_another_shape_is_refused(adapter: Path, changes: dict[str, int]):
    with pytest.raises(CheckpointError, match="rank 2, alpha 4 and all layers"):
        begun(replace(LORA, init=str(adapter), **changes))


@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_a_full_checkpoint_keeps_its_token_rows(tmp_path: Path, adapt: str):
    path = tiny_checkpoint(tmp_path, space_inside=False)
    begin = begun(replace(FULL, adapt=adapt, init=str(path)))
    original = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    weights = begin.lm.causal.get_input_embeddings().state_dict()
    table = next(w for name, w in weights.items() if w.shape == original.shape)
    assert torch.equal(table, original) and len(begin.tokenizer.added) == 3
    assert not begin.tokenizer.space_inside


def test_an_adapter_over_a_full_checkpoint_is_loaded_with_its_rows(tmp_path: Path):
    path = tiny_checkpoint(tmp_path / "full")
    target = tmp_path / "run"
    list(Trainer(replace(LORA, init=str(path)), numbered(8), target, target, "over").run())
    loaded = load(target, target, precision="fp32")
    assert loaded.lm.causal.config.vocab_size == loaded.tokenizer.vocabulary_size


def test_the_papers_released_form_is_gone_on_from_with_its_spacing(checkpoint: Any, tmp_path: Path):
    export_plain(checkpoint, tmp_path)
    (tmp_path / "colmlm.json").unlink()
    begin = begun(replace(FULL, init=str(tmp_path)))
    assert not begin.tokenizer.space_inside and begin.tokenizer.num_fresh == 0
    assert begin.lm.causal.config.vocab_size == begin.tokenizer.vocabulary_size


def saved(path: Path, method: str, rows: int) -> Path:
    tokenizer = bare_tokenizer()
    tiny_llama(tokenizer.get_vocab_size() + rows).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    CheckpointConfig(name=method, kind="full", base=None, dim=64, method=method).save(path)
    return path


def test_a_standard_model_becomes_any_other_with_fresh_rows(tmp_path: Path):
    path = saved(tmp_path, STANDARD.method, 0)
    for markup in (CO_LMLM, ASKER):
        begin = begun(replace(FULL, init=str(path), method=markup.method))
        assert begin.tokenizer.num_fresh == len(markup.tokens) == len(begin.tokenizer.added)
        assert begin.lm.causal.config.vocab_size == begin.tokenizer.vocabulary_size


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path):
    path = tiny_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="trained as co-lmlm"):
        begun(replace(FULL, init=str(path), method="asker"))


def test_a_standard_adapter_lies_under_no_other_methods_adapter(base: Path, tmp_path: Path):
    target = tmp_path / "run"
    config = replace(LORA, init=str(base), method="standard", contrastive_weight=0.0)
    run = Trainer(config, numbered(8), target, target, "plain")
    list(run.run())
    record = CheckpointConfig.load(target)
    replace(record, method="standard").save(target)
    with pytest.raises(CheckpointError, match="pass --adapt full"):
        begun(replace(LORA, init=str(target)))
    begin = begun(replace(FULL, init=str(target)))
    assert begin.kind == "full" and begin.tokenizer.num_fresh == 3
    assert begin.lm.causal.config.vocab_size == begin.tokenizer.vocabulary_size
    assert begin.tokenizer.end_of_text == bare_tokenizer().token_to_id("<|endoftext|>")
