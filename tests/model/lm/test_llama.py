"""The forward for inference equals transformers': whole, in pieces, at different lengths, taken back, for any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.lm.export import export_plain
from colmlm.model.lm.language_model import FactLM
from colmlm.model.lm.llama import Llama
from colmlm.model.lm.past import Piece
from tests.tiny import tiny_checkpoint, tiny_llama

VOCABULARY = 260
SHAPES = {
    "grouped": {},
    "one key head each": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "untied": {"tie_word_embeddings": False},
    "scaled rotations": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }
    },
}  # fmt: skip


def llama(**options: object) -> LlamaForCausalLM:
    torch.manual_seed(5)
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **options})).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith(
            ("bias", "norm.weight", "layernorm.weight")
        ):  # they are made as zeros and ones, which would have no effect
            parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def side_by_side(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_logits_are_those_of_transformers(shape: str):
    model, ids = llama(**SHAPES[shape]), tokens(3, 40)
    expected = model.model(ids).last_hidden_state
    expected_logits = model(ids).logits
    ours = Llama(model)
    torch.testing.assert_close(ours.states(ids), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.logits(expected[0]), expected_logits[0], atol=1e-4, rtol=1e-4)
    joined = Llama(model.double())
    torch.testing.assert_close(joined.states(ids).float(), expected, atol=1e-4, rtol=1e-4)
    model.float()
    torch.testing.assert_close(model.model(ids).last_hidden_state, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_pieces_over_a_cache_they_are_the_same(shape: str):
    model, ids = llama(**SHAPES[shape]), tokens(2, 60)
    expected = model.model(ids).last_hidden_state
    ours, at = Llama(model), 0
    cache, pieces = ours.cache(2), []
    for width in (7, 1, 1, 12, 1, 38):
        pieces.append(ours.advance(ids[:, at : at + width], [at, at], cache))
        at += width
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-4, rtol=1e-4)


def test_rows_of_different_lengths_see_only_themselves():
    """Feeds rows padded on the right, and then side by side from different positions."""
    model, lengths = llama(), [9, 1, 30]
    ours = Llama(model)
    rows = [tokens(n + 20, seed=n) for n in lengths]
    cache = ours.cache(3)
    first = ours.advance(
        side_by_side([row[:n] for row, n in zip(rows, lengths, strict=True)]), [0, 0, 0], cache
    )
    single = [ours.advance(torch.stack([rows[b][lengths[b] + t : lengths[b] + t + 1] for b in range(3)]),
                           [n + t for n in lengths], cache) for t in range(5)]  # fmt: skip
    several = ours.advance(
        torch.stack([rows[b][n + 5 : n + 20] for b, n in enumerate(lengths)]), [n + 5 for n in lengths], cache
    )
    later = torch.cat([*single, several], dim=1)
    for b, n in enumerate(lengths):
        alone = model.model(rows[b][None]).last_hidden_state[0]
        torch.testing.assert_close(torch.cat([first[b, :n], later[b]]), alone, atol=1e-4, rtol=1e-4)


def test_what_pads_the_shorter_rows_is_not_multiplied():
    """Feeds rows of 30, 9 and 1 tokens from the start, then 2, 7 and no further tokens."""
    model, lengths, more = llama(), [30, 9, 1], [2, 7, 0]
    ours = Llama(model)
    rows = [tokens(n + k, seed=n) for n, k in zip(lengths, more, strict=True)]
    cache = ours.cache(3)
    first = ours.advance(
        side_by_side([row[:n] for row, n in zip(rows, lengths, strict=True)]), [0, 0, 0], cache, lengths
    )
    multiplied: list[int] = []
    head = ours.layers[0].qkv
    ours.layers[0] = replace(ours.layers[0], qkv=lambda x: multiplied.append(x.shape[0]) or head(x))
    later = ours.advance(
        side_by_side([row[n:] for row, n in zip(rows, lengths, strict=True)]), lengths, cache, more
    )
    assert multiplied == [sum(more)]
    for b, (n, k) in enumerate(zip(lengths, more, strict=True)):
        alone = model.model(rows[b][None]).last_hidden_state[0]
        torch.testing.assert_close(torch.cat([first[b, :n], later[b, :k]]), alone, atol=1e-4, rtol=1e-4)
        assert not first[b, n:].any()
        assert not later[b, k:].any()


def test_what_is_fed_again_takes_the_place_of_what_was_there():
    model = llama()
    ours, ids = Llama(model), tokens(1, 30)
    cache = ours.cache(1)
    ours.advance(ids[:, :10], [0], cache)
    ours.advance(tokens(1, 15, seed=7), [10], cache)
    again = ours.advance(ids[:, 10:11], [10], cache)
    rest = ours.advance(ids[:, 11:], [11], cache)
    expected = model.model(ids).last_hidden_state[:, 10:]
    torch.testing.assert_close(torch.cat([again, rest], dim=1), expected, atol=1e-4, rtol=1e-4)


def test_rows_that_stay_keep_their_past():
    model, ids = llama(), tokens(4, 20)
    ours = Llama(model)
    cache = ours.cache(4)
    ours.advance(ids[:, :12], [0] * 4, cache)
    cache.keep([1, 3])
    after = ours.advance(ids[[1, 3], 12:], [12, 12], cache)
    expected = model.model(ids[[1, 3]]).last_hidden_state[:, 12:]
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=1e-4)


def test_a_cache_grows_to_the_whole_context():
    model, ids = llama(), tokens(2, 256)
    ours = Llama(model)
    cache = ours.cache(2)
    pieces = [ours.advance(ids[:, at : at + 1], [at, at], cache) for at in range(256)]
    assert cache.slots == 256
    expected = model.model(ids).last_hidden_state
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-3, rtol=1e-3)


def test_half_precision_rounds_where_transformers_rounds():
    model, ids = llama().to(torch.bfloat16), tokens(2, 50)
    exact = llama().double().model(ids).last_hidden_state
    theirs = model.model(ids).last_hidden_state.double()
    ours = Llama(model).states(ids).double()
    error, baseline = (ours - exact).abs().mean(), (theirs - exact).abs().mean()
    assert (ours - theirs).abs().mean() < baseline
    assert error < 1.1 * baseline


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["packed", "joined"])
def test_the_model_goes_on_as_before_and_can_still_be_saved(tmp_path: Path, dtype: torch.dtype):
    loaded = load(tiny_checkpoint(tmp_path / "tiny"), tmp_path, precision="fp32")
    model, ids = loaded.lm.causal.to(dtype), torch.tensor([[1, 2, 3, 4]])
    before = model(ids).logits
    assert loaded.lm.inference.layers[0].qkv.is_packed == (dtype is torch.float32)
    torch.testing.assert_close(model(ids).logits, before, atol=1e-6, rtol=1e-6)
    export_plain(loaded, tmp_path / "exported")
    again = load(tmp_path / "exported", tmp_path, precision="fp32").lm.causal.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(again[name], weight.float(), rtol=0, atol=0)


def test_joined_weights_are_held_once():
    model = llama().double()
    ours = Llama(model).layers[0].qkv.weight
    attention = model.model.layers[0].self_attn
    shared = {
        layer.weight.untyped_storage().data_ptr()
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert shared == {ours.untyped_storage().data_ptr()}


def test_a_model_that_changes_computes_with_what_it_became():
    lm = FactLM(tiny_llama(VOCABULARY), compute=torch.float32).requires_grad_(False)
    first = lm.inference
    assert lm.inference is first
    lm.causal.model.layers[1].mlp.down_proj.weight.mul_(2)
    second, ids = lm.inference, torch.tensor([[1, 2, 3]])
    assert second is not first
    torch.testing.assert_close(second.states(ids), lm.causal.model(ids).last_hidden_state)
    lm.double()
    assert lm.inference is not second and lm.inference.states(ids).dtype is torch.float64


def test_in_inference_and_out_of_it_states_are_the_same(checkpoint: Checkpoint):
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(1))
    outside = checkpoint.lm.hidden(ids)
    with torch.inference_mode():
        inside = checkpoint.lm.hidden(ids)
    torch.testing.assert_close(inside.clone(), outside, atol=1e-5, rtol=1e-5)


def test_sequences_packed_into_one_row_go_on_seeing_only_themselves(checkpoint: Checkpoint):
    ids = torch.randint(0, 256, (1, 30), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(12), torch.arange(18)])[None]
    with torch.inference_mode():
        packed = checkpoint.lm.hidden(ids, positions)
        alone = checkpoint.lm.hidden(ids[:, 12:])
    torch.testing.assert_close(packed[:, 12:], alone, atol=1e-5, rtol=1e-5)


def test_a_text_beyond_the_context_is_left_to_transformers(checkpoint: Checkpoint):
    ids = torch.randint(0, 256, (1, 520), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(
            checkpoint.lm.hidden(ids), checkpoint.lm.causal.model(ids).last_hidden_state, rtol=0, atol=0
        )


def test_an_adapter_that_is_not_merged_is_refused():
    adapted = get_peft_model(tiny_llama(VOCABULARY), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(TypeError, match="merge the adapter first"):
        FactLM(adapted, compute=torch.float32).inference  # noqa: B018


ROTATIONS = {
    "dynamic": ({"factor": 2.0}, 256),
    "longrope": (
        {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.5] * 8,
            "long_factor": [4.0] * 8,
        },
        64,
    ),
}


@pytest.mark.parametrize("kind", ROTATIONS)
def test_rotations_that_change_with_the_length_are_used_as_far_as_they_do_not(kind: str):
    options, steady = ROTATIONS[kind]
    model = llama(rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **options})
    ours, ids = Llama(model), tokens(1, steady)
    assert ours.context == steady
    torch.testing.assert_close(ours.states(ids), model.model(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
    past = ours.past()
    fed = torch.cat([ours.feed([Piece(row, at, past)]) for at, row in enumerate(ids.T.tolist())])
    torch.testing.assert_close(fed, ours.states(ids)[0], atol=1e-4, rtol=1e-4)
