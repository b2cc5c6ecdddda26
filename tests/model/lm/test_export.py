"""An exported checkpoint is what transformers, the hub and llama.cpp take as it is."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from colmlm.api.openai.fields import Message, as_text
from colmlm.kb.corpus.training_record import RECORD_FILE, TrainingRecord, text_digest
from colmlm.model.lm.checkpoint import Checkpoint, config_of, load
from colmlm.model.lm.config import CheckpointError
from colmlm.model.lm.export import DTYPES, GGUF_TYPES, export_gguf, export_plain, gguf_tensors
from tests.tiny import tiny_checkpoint

PROMPTS = ["Its capital is", "Question: What is the capital of Peru?\nAnswer:", "naïve 🏔️"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return load(tiny_checkpoint(tmp_path / "tiny"), tmp_path, precision="fp32")


@pytest.fixture
def plain(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    export_plain(checkpoint, tmp_path / "plain")
    return tmp_path / "plain"


def tokenizer_at(plain: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(plain)
    return tokenizer


def test_it_says_by_which_tokens_a_text_ends_and_begins(checkpoint: Checkpoint, plain: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        config = json.loads((plain / name).read_text())
        assert config["eos_token_id"] == checkpoint.end_tokens
        assert config["bos_token_id"] == config["pad_token_id"] == checkpoint.tokenizer.end_of_text
    tokenizer = tokenizer_at(plain)
    assert (
        tokenizer.bos_token_id
        == tokenizer.eos_token_id
        == tokenizer.pad_token_id
        == checkpoint.tokenizer.end_of_text
    )
    assert tokenizer.model_max_length == 512


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_has_the_tokens_that_it_has_here(checkpoint: Checkpoint, plain: Path, prompt: str) -> None:
    assert tokenizer_at(plain)(prompt)["input_ids"] == checkpoint.tokenizer.prompt(prompt)


def test_a_conversation_is_read_in_the_form_that_the_server_reads(
    checkpoint: Checkpoint, plain: Path
) -> None:
    turns = [("system", "Be brief."), ("user", "Who?"), ("assistant", "Lavoisier."), ("user", "When?")]
    given = [{"role": role, "content": content} for role, content in turns]
    messages = [Message(role=role, content=content) for role, content in turns]  # type: ignore[arg-type]
    ids = tokenizer_at(plain).apply_chat_template(given, tokenize=True, return_dict=False)
    assert ids == checkpoint.tokenizer.prompt(as_text(messages))


def test_rows_of_a_padded_batch_go_on_as_each_does_alone(plain: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(plain), tokenizer_at(plain)
    together = model.generate(
        **tokenizer(PROMPTS, padding=True, return_tensors="pt"), max_new_tokens=12, do_sample=False
    )
    for prompt, row in zip(PROMPTS, together, strict=True):
        alone = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=12, do_sample=False)
        length = len(tokenizer(prompt)["input_ids"])
        kept = min(12, len(alone[0]) - length)
        assert row[-12:][:kept].tolist() == alone[0, length : length + kept].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_have_the_type_that_was_asked_for(checkpoint: Checkpoint, tmp_path: Path, dtype: str) -> None:
    export_plain(checkpoint, tmp_path / "plain", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert model.dtype is DTYPES[dtype]
    assert json.loads((tmp_path / "plain/config.json").read_text())["dtype"] == str(
        DTYPES[dtype]
    ).removeprefix("torch.")
    assert checkpoint.lm.causal.dtype is torch.float32 and checkpoint.end_tokens == [
        checkpoint.tokenizer.end_of_text
    ]


def test_a_card_tells_what_it_is_and_how_it_asks(checkpoint: Checkpoint, plain: Path) -> None:
    card = (plain / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n") and checkpoint.checkpoint_id in card
    assert "At `<FACT>` the state" in card and "{" not in card.replace("{'", "")
    assert "Apache License" in (plain / "LICENSE").read_text()
    assert {stat.S_IMODE(file.stat().st_mode) for file in plain.iterdir()} == {0o644}


@pytest.mark.parametrize("dtype", GGUF_TYPES)
def test_a_gguf_file_holds_the_same_tensors(checkpoint: Checkpoint, tmp_path: Path, dtype: str) -> None:
    file = export_gguf(checkpoint, tmp_path / "gguf", dtype=dtype)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    expected = dict(gguf_tensors(checkpoint.lm.causal))
    assert set(read) == set(expected)
    for name, values in expected.items():
        stored = gguf.quants.dequantize(read[name].data, read[name].tensor_type).reshape(values.shape)
        rounded = (
            torch.from_numpy(values)
            if values.ndim == 1
            else torch.from_numpy(values).to(DTYPES[dtype]).float()
        )
        assert np.array_equal(stored, rounded.numpy()), name


def test_a_gguf_file_names_the_record_of_what_was_trained_on_and_stands_beside_it(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    assert checkpoint.path is not None
    own = shutil.copytree(checkpoint.path, tmp_path / "own")
    record = TrainingRecord.begin().with_texts([text_digest("Lima lies in Peru.")])
    record.save(own)
    checkpoint.config.save(own)
    recorded = replace(checkpoint, path=own, config=config_of(own))
    file = export_gguf(recorded, tmp_path / "gguf", dtype="fp32")
    assert gguf.GGUFReader(file).fields["colmlm.trained_on.sha256"].contents() == record.sha256
    assert (file.parent / RECORD_FILE).read_bytes() == record.content
    (own / RECORD_FILE).unlink()
    with pytest.raises(CheckpointError, match="missing or altered"):
        export_plain(recorded, tmp_path / "plain again")


def test_a_gguf_file_is_the_same_model_to_another_reader(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """transformers' own reader puts the pairs of rotations back, and takes the tokenizer out of the file."""
    file = export_gguf(checkpoint, tmp_path / "gguf", dtype="fp32")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ids = torch.tensor([checkpoint.tokenizer.prompt(PROMPTS[1])])
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, checkpoint.lm.causal(ids).logits, atol=1e-5, rtol=1e-4)
    fields = gguf.GGUFReader(file).fields
    assert fields["tokenizer.ggml.tokens"].contents()[checkpoint.tokenizer.fact] == "<FACT>"
    assert fields["tokenizer.ggml.eos_token_id"].contents() == checkpoint.tokenizer.end_of_text
    assert fields["tokenizer.chat_template"].contents().startswith("{{ bos_token }}")
