"""The plain form of a checkpoint in one GGUF file, as llama.cpp and what is built on it read it.

Queries and keys of attention are stored in that library's order of rotary pairs, norms in fp32. The tokenizer, the
tokens that end a text and the chat template are in the file. Only what was checked is written: a Llama with unscaled
rotations and a tokenizer like that of GPT-2 or SmolLM2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType, LlamaFileType
from transformers import LlamaForCausalLM

from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointError
from colmlm.model.lm.export import CHAT_TEMPLATE, DTYPES, MODE, describe, licence
from colmlm.model.lm.language_model import family_of

ARCHITECTURE = gguf.MODEL_ARCH.LLAMA
TYPES = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "fp16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "fp32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
}
Tensor = tuple[str, np.ndarray]


def export(checkpoint: Checkpoint, target: Path, *, dtype: str | None = None) -> Path:
    """Writes the file into this folder, with the card and the licence, and gives its path.

    `dtype` is one of `TYPES`; None is the one in which the checkpoint is loaded. Raises `CheckpointError` for models
    that are not written in this form.
    """
    _require_known(checkpoint)
    target.mkdir(parents=True, exist_ok=True)
    loaded = {dtype: name for name, dtype in DTYPES.items()}[checkpoint.lm.causal.dtype]
    dtype = dtype or loaded
    file = target / f"{checkpoint.config.name}-{dtype}.gguf"
    _write(checkpoint, file, *TYPES[dtype])
    describe(checkpoint, target)
    for written in target.iterdir():
        written.chmod(MODE)
    return file


def _require_known(checkpoint: Checkpoint) -> None:
    config, record = checkpoint.lm.causal.config, json.loads(checkpoint.tokenizer.tokenizer.to_str())
    reason = None
    if config.model_type != "llama":
        reason = f"a model of {family_of(config).name}"
    elif config.rope_parameters["rope_type"] != "default":
        reason = f"rotations of kind {config.rope_parameters['rope_type']}"
    elif not _kinds(record["pre_tokenizer"]) <= {"ByteLevel", "Digits"}:
        reason = f"a tokenizer that cuts words by {', '.join(sorted(_kinds(record['pre_tokenizer'])))}"
    if reason is not None:
        raise CheckpointError(
            f"{checkpoint.config.name}: {reason} is not written as GGUF here; export it for transformers, "
            "and convert that by the program that comes with llama.cpp"
        )


def _kinds(pre_tokenizer: dict[str, Any] | None) -> set[str]:
    """Gives the kinds of the steps by which a tokenizer cuts a text into words."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {"type": "nothing"}])
    return {step["type"] for step in steps}


def _write(checkpoint: Checkpoint, file: Path, stored: GGMLQuantizationType, kind: LlamaFileType) -> None:
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    _describe_model(writer, checkpoint, kind)
    _describe_tokens(writer, checkpoint)
    for name, values in tensors(checkpoint.lm.causal):
        as_type = GGMLQuantizationType.F32 if values.ndim == 1 else stored
        writer.add_tensor(name, gguf.quants.quantize(values, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: LlamaForCausalLM) -> Iterator[Tensor]:
    """Yields the weights in fp32 by their names in the format; a tied output layer is that of the embeddings."""
    config = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURE, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().cpu().numpy()
        if name.endswith("q_proj.weight"):
            values = _in_pairs(values, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            values = _in_pairs(values, config.num_key_value_heads)
        yield str(names.get_name(name, try_suffixes=(".weight",))), values


def _in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Puts the two numbers that a rotation turns beside each other; here they are half a head apart."""
    rows, width = values.shape
    return values.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def _describe_model(writer: gguf.GGUFWriter, checkpoint: Checkpoint, kind: LlamaFileType) -> None:
    config = checkpoint.lm.causal.config
    writer.add_name(checkpoint.config.name)
    writer.add_license(licence(checkpoint.config))
    writer.add_file_type(kind)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _describe_tokens(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    ours = checkpoint.tokenizer
    ids = range(ours.vocabulary_size)
    record = json.loads(ours.tokenizer.to_str())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in record["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if "Digits" in json.dumps(record["pre_tokenizer"]) else "gpt-2")
    writer.add_token_list([str(ours.tokenizer.id_to_token(i)) for i in ids])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in ours.special else gguf.TokenType.NORMAL for i in ids]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ours.begin)
    writer.add_eos_token_id(ours.end_of_text)
    writer.add_pad_token_id(ours.end_of_text)
    for other in checkpoint.end_tokens:
        if other != ours.end_of_text:
            writer.add_eot_token_id(other)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
