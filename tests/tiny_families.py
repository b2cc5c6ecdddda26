"""A tiny random base of each family, made from its config class, with a tokenizer of the kind that the family has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as decode
from tokenizers import normalizers as normalise
from tokenizers import pre_tokenizers as cut
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from colmlm.model.lm.language_model import model_of
from tests.tiny import TEXTS, bare_tokenizer

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHAPE = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2, "pad_token_id": None,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def llama_3_tokenizer() -> Tokenizer:
    """Cuts words by a pattern, and begins and ends texts with different tokens."""
    return _byte_level(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])


def qwen_tokenizer() -> Tokenizer:
    """Composes characters first, and has tokens that were added by name without being special."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalise.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """Writes spaces as marks and unknown characters as bytes; `<s>` is an ordinary token, as HTML's tags are."""
    spaced = normalise.Replace(" ", "\u2581")
    learning = Tokenizer(BPE())
    learning.normalizer, learning.pre_tokenizer = spaced, cut.Split("\u2581", "merged_with_next")
    learning.train_from_iterator(TEXTS, BpeTrainer(vocab_size=200, min_frequency=1, show_progress=False))
    learnt = json.loads(learning.to_str())["model"]
    named = ["<pad>", "<eos>", "<bos>", "<unk>"]
    names = [*named, *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = Tokenizer(BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = spaced, cut.Split(" ", "merged_with_previous")
    tokenizer.decoder = decode.Sequence([decode.Replace("\u2581", " "), decode.ByteFallback(), decode.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in named])
    tokenizer.add_tokens([AddedToken("<s>", special=False, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    return tokenizer


def _byte_level(special: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = cut.Sequence(
        [cut.Split(Regex(WORDS), "isolated"), cut.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decode.ByteLevel()
    alphabet = cut.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


TOKENIZERS = {"Llama 3": llama_3_tokenizer, "Qwen": qwen_tokenizer, "Gemma": gemma_tokenizer}


@dataclass(frozen=True)
class TinyFamily:
    """How a tiny base of a family is made. `extra_rows` are those that its model has more, or less, than tokens."""

    config: type[PreTrainedConfig]
    tokenizer: Any
    ends: tuple[str, ...]
    is_fast: bool = True
    extra_rows: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def shape(self, tokenizer: Tokenizer, **changes: Any) -> PreTrainedConfig:
        ends = [tokenizer.token_to_id(end) for end in self.ends]
        settings = {**SHAPE, "vocab_size": tokenizer.get_vocab_size() + self.extra_rows, "eos_token_id": ends}
        return self.config(**{**settings, **self.options, **changes})


WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16}
FAMILIES = {
    "Llama 3": TinyFamily(
        LlamaConfig, llama_3_tokenizer, ("<|end_of_text|>", "<|eot_id|>"),
        options={"rope_parameters": LLAMA_3, "tie_word_embeddings": False},
    ),
    "SmolLM2": TinyFamily(LlamaConfig, bare_tokenizer, ("<|endoftext|>",), options={"tie_word_embeddings": True}),
    "Qwen 2.5": TinyFamily(
        Qwen2Config, qwen_tokenizer, ("<|im_end|>",), extra_rows=40, options={"tie_word_embeddings": True}
    ),
    "Qwen 3": TinyFamily(
        Qwen3Config, qwen_tokenizer, ("<|im_end|>",), extra_rows=40,
        options={"head_dim": 24, "tie_word_embeddings": True},
    ),
    "SmolLM3": TinyFamily(SmolLM3Config, llama_3_tokenizer, ("<|eot_id|>",), options={"no_rope_layer_interval": 2}),
    "Gemma 3": TinyFamily(
        Gemma3TextConfig, gemma_tokenizer, ("<eos>",), is_fast=False, extra_rows=-1,
        options={**WINDOWS, "head_dim": 24, "query_pre_attn_scalar": 20},
    ),
    "Qwen 2.5 with windows": TinyFamily(
        Qwen2Config, qwen_tokenizer, ("<|im_end|>",), is_fast=False, options={**WINDOWS, "use_sliding_window": True}
    ),
}  # fmt: skip


def tiny_family(name: str, path: Path, seed: int = 3) -> Path:
    """Writes the directory of a base: weights in which norms and biases matter, config and tokenizer."""
    family, tokenizer = FAMILIES[name], FAMILIES[name].tokenizer()
    torch.manual_seed(seed)
    model = model_of(family.shape(tokenizer)).eval().requires_grad_(False)
    for parameter in _at_rest(model):
        parameter += 0.3 * torch.randn(parameter.shape)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def _at_rest(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yields the weights that are made as zeros or ones, so that they would have no effect."""
    return (p for name, p in model.named_parameters() if name.endswith(("bias", "norm.weight")))
