"""A model of each family computes here what it computes in transformers, and what is none of them is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.lm.checkpoint import (
    WEIGHTS,
    Checkpoint,
    base_checkpoint,
    load,
    resolve_base,
    weights_digest,
)
from colmlm.model.lm.config import CONFIG_FILE, BaseNotFound, CheckpointError
from colmlm.model.lm.export import card, export_gguf, export_plain
from colmlm.model.lm.language_model import TransformersPass
from colmlm.model.lm.llama import Llama
from colmlm.model.lm.past import Piece
from tests.model.lookups import by_direction
from tests.tiny_families import FAMILIES, tiny_family

LENGTHS = (5, 40, 100, 1, 64)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the directory of a family's base, made once."""
    root = tmp_path_factory.mktemp("families")

    def made(name: str) -> Path:
        return root / name if (root / name).is_dir() else tiny_family(name, root / name)

    return made


@pytest.fixture(scope="module", params=FAMILIES)
def untrained(request: pytest.FixtureRequest, bases: Callable[[str], Path]) -> tuple[str, Checkpoint]:
    """A family's name, and its base with rows for the tokens."""
    directory = bases(request.param)
    return request.param, base_checkpoint(str(directory), directory, precision="fp32")


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 250, (1, count), generator=torch.Generator().manual_seed(seed))


def test_states_and_logits_are_those_of_transformers(untrained: tuple[str, Checkpoint]):
    name, checkpoint = untrained
    ours, causal, ids = checkpoint.lm.inference, checkpoint.lm.causal, tokens(90, 1)
    assert type(ours) is (Llama if FAMILIES[name].is_fast else TransformersPass)
    with torch.inference_mode():
        output = causal(ids, output_hidden_states=True)
        states_TD = ours.states(ids)[0]
        torch.testing.assert_close(states_TD, output.hidden_states[-1][0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.logits(states_TD), output.logits[0], atol=2e-4, rtol=1e-4)


def test_fed_in_blocks_beside_others_they_are_the_same_to_the_bit(untrained: tuple[str, Checkpoint]):
    ours = untrained[1].lm.inference
    rows = [tokens(length, length)[0].tolist() for length in LENGTHS]
    with torch.inference_mode():
        beside = ours.feed([Piece(row, 0, ours.past()) for row in rows]).split(list(LENGTHS))
        for row, states_TD in zip(rows, beside, strict=True):
            assert torch.equal(ours.feed([Piece(row, 0, ours.past())]), states_TD)
            torch.testing.assert_close(states_TD, ours.states(torch.tensor([row]))[0], atol=1e-4, rtol=1e-4)


def test_tokens_are_taken_back_by_feeding_others(untrained: tuple[str, Checkpoint]):
    """Also where a window has moved on since: what it left is seen again."""
    ours, past, ids = untrained[1].lm.inference, untrained[1].lm.inference.past(), tokens(60, 2)[0].tolist()
    with torch.inference_mode():
        ours.feed([Piece(ids[:30], 0, past)])
        ours.feed([Piece(tokens(40, 3)[0].tolist(), 30, past)])
        again = torch.cat([ours.feed([Piece([ids[at]], at, past)]) for at in range(30, 60)])
        torch.testing.assert_close(again, ours.states(torch.tensor([ids]))[0, 30:], atol=1e-4, rtol=1e-4)


def test_rows_side_by_side_are_what_each_is_alone(untrained: tuple[str, Checkpoint]):
    ours, lengths, more = untrained[1].lm.inference, [30, 9, 1], [2, 20, 0]
    rows = [tokens(n + k, n)[0] for n, k in zip(lengths, more, strict=True)]

    def padded(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    with torch.inference_mode():
        cache = ours.cache(3)
        cache.reserve(50)
        first = ours.advance(
            padded([r[:n] for r, n in zip(rows, lengths, strict=True)]), [0] * 3, cache, lengths
        )
        cache.keep([1, 2, 0])
        kept = [1, 2, 0]
        later = ours.advance(
            padded([rows[i][lengths[i] :] for i in kept]), [lengths[i] for i in kept], cache, [more[i] for i in kept]
        )  # fmt: skip
        for at, i in enumerate(kept):
            alone = ours.states(rows[i][None])[0]
            found = torch.cat([first[i, : lengths[i]], later[at, : more[i]]])
            torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)
            assert not later[at, more[i] :].any()


def test_packed_into_a_row_sequences_see_only_themselves(untrained: tuple[str, Checkpoint]):
    lm, ids = untrained[1].lm, tokens(50, 4)
    positions = torch.cat([torch.arange(22), torch.arange(28)])[None]
    packed = lm.hidden(ids, positions)
    torch.testing.assert_close(packed[:, 22:], lm.hidden(ids[:, 22:]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.is_fast])
def test_half_precision_rounds_where_transformers_rounds(bases: Callable[[str], Path], name: str):
    checkpoint, ids = base_checkpoint(str(bases(name)), bases(name), precision="fp32"), tokens(60, 5)
    with torch.inference_mode():
        half = checkpoint.lm.causal.to(torch.bfloat16)
        ours = checkpoint.lm.inference.states(ids).double()
        theirs = half.model(ids).last_hidden_state.double()
        exact = half.double().model(ids).last_hidden_state
    error, baseline = (ours - exact).abs().mean(), (theirs - exact).abs().mean()
    assert (ours - theirs).abs().mean() < baseline
    assert error < 1.1 * baseline


def test_greedy_tokens_are_those_of_generate(untrained: tuple[str, Checkpoint]):
    checkpoint = untrained[1]
    tokenizer = checkpoint.tokenizer
    config = DecodeConfig(mode="off", max_tokens=40, min_tokens=40, repetition_penalty=1.0)
    (ours,) = Decoder(checkpoint, None).generate(["The capital of Peru is"], config)
    ids = torch.tensor([tokenizer.prompt("The capital of Peru is")])
    never = [*tokenizer.added, *tokenizer.unsayable, *checkpoint.end_tokens]
    theirs = checkpoint.lm.causal.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, suppress_tokens=never,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert list(ours.tokens) == theirs[0, ids.shape[1] :].tolist()


def test_a_row_in_a_batch_is_what_it_is_alone(untrained: tuple[str, Checkpoint]):
    prompts = ["The capital", "", "of " * 40, "é🏔️ x"]
    config = DecodeConfig(max_tokens=12, mode="forced")
    together = Decoder(untrained[1], by_direction()).generate(prompts, config)
    for number, (prompt, output) in enumerate(zip(prompts, together, strict=True)):
        own = DecodeConfig(max_tokens=12, mode="forced", seed=number)
        (alone,) = Decoder(untrained[1], by_direction()).generate([prompt], own)
        assert output == alone and [s.query for s in output.splices] == [s.query for s in alone.splices]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_has_a_row_for_every_token_and_no_other(bases: Callable[[str], Path], name: str):
    directory = bases(name)
    checkpoint = base_checkpoint(str(directory), directory, precision="fp32")
    tokenizer, causal = checkpoint.tokenizer, checkpoint.lm.causal
    assert causal.config.vocab_size == tokenizer.vocabulary_size == max(tokenizer.added) + 1
    original = load_file(directory / WEIGHTS)["model.embed_tokens.weight"]
    had = min(len(original), tokenizer.vocabulary_size - tokenizer.num_fresh)
    for table in (causal.get_input_embeddings().weight, causal.lm_head.weight):
        assert len(table) == tokenizer.vocabulary_size
        torch.testing.assert_close(
            table[had:], table[:had].mean(dim=0).expand(len(table) - had, -1), atol=1e-6, rtol=1e-4
        )
    assert torch.equal(causal.get_input_embeddings().weight[:had], original[:had])
    ends = [tokenizer.id_of(end) for end in FAMILIES[name].ends]
    assert checkpoint.end_tokens == sorted({tokenizer.end_of_text, *ends})


@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_is_taken_back_and_by_transformers_alone(
    bases: Callable[[str], Path], tmp_path: Path, name: str
):
    directory = bases(name)
    checkpoint = base_checkpoint(str(directory), directory, precision="fp32")
    export_plain(checkpoint, tmp_path / "plain")
    model, tokenizer = (
        made.from_pretrained(tmp_path / "plain") for made in (AutoModelForCausalLM, AutoTokenizer)
    )
    ids = tokenizer("Its capital is Lima. é🏔️")["input_ids"]
    assert ids == checkpoint.tokenizer.prompt("Its capital is Lima. é🏔️")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Its capital is Lima. é🏔️"
    assert model.config.eos_token_id == checkpoint.end_tokens
    again = load(tmp_path / "plain", tmp_path, precision="fp32")
    with torch.inference_mode():
        expected = checkpoint.lm.causal(torch.tensor([ids])).logits
        for causal in (model, again.lm.causal):
            torch.testing.assert_close(causal(torch.tensor([ids])).logits, expected, atol=1e-4, rtol=1e-4)
    assert "license: other" in (tmp_path / "plain/README.md").read_text()
    assert not (tmp_path / "plain/LICENSE").exists()


def test_a_plain_model_whose_vocabulary_is_filled_up_is_taken_with_its_own_tokens(
    bases: Callable[[str], Path], tmp_path: Path
):
    """As another program leaves it that trained with the tokens and kept the family's round number of rows."""
    checkpoint = base_checkpoint(str(bases("Qwen 3")), tmp_path, precision="fp32")
    export_plain(checkpoint, tmp_path)
    (tmp_path / CONFIG_FILE).unlink()
    filled = AutoModelForCausalLM.from_pretrained(tmp_path)
    filled.resize_token_embeddings(checkpoint.tokenizer.vocabulary_size + 30, mean_resizing=False)
    filled.save_pretrained(tmp_path)
    released = load(tmp_path, tmp_path, precision="fp32")
    assert released.config.dim == 48 and not released.tokenizer.space_inside
    assert "license: other" in card(released)
    for name, weight in checkpoint.lm.causal.state_dict().items():
        assert torch.equal(released.lm.causal.state_dict()[name], weight)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "SmolLM2"])
def test_what_is_not_written_as_gguf_is_refused_by_name(
    bases: Callable[[str], Path], tmp_path: Path, name: str
):
    checkpoint = base_checkpoint(str(bases(name)), tmp_path, precision="fp32")
    reason = "kind llama3" if name == "Llama 3" else name.split(" with")[0]
    with pytest.raises(CheckpointError, match=rf"{reason}.* is not written as GGUF here"):
        export_gguf(checkpoint, tmp_path / "gguf")
    assert not (tmp_path / "gguf").exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"model_type": "gpt2"}, r"type 'gpt2'.*qwen3 \(Qwen 3\).*take a base or a checkpoint of one"),
        ({"model_type": "gemma3"}, r"type 'gemma3'.*take the 270m or the 1b"),
        ({"model_type": ["llama"]}, "a model of type"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"auto_map": {"AutoModelForCausalLM": "mine.Model"}, "model_type": "mine"}, "type 'mine'"),
    ],
)
def test_another_family_is_refused_with_those_that_are_known(
    tmp_path: Path, change: dict[str, object], said: str
):
    base = tiny_family("SmolLM2", tmp_path / "base")
    record = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(record | change))
    with pytest.raises(CheckpointError, match=said):
        base_checkpoint(str(base), tmp_path)


def test_weights_in_several_files_are_read_and_digested(tmp_path: Path):
    base = tiny_family("Qwen 3", tmp_path / "base")
    whole = base_checkpoint(str(base), tmp_path, precision="fp32")
    weights = load_file(base / WEIGHTS)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: weights[name] for name in some}, base / file, metadata={"format": "pt"})
    places = {name: file for file, some in parts.items() for name in some}
    (base / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    one = weights_digest(base)
    (base / WEIGHTS).unlink()
    sharded = base_checkpoint(str(base), tmp_path, precision="fp32")
    assert weights_digest(base) != one and sharded.checkpoint_id != whole.checkpoint_id
    for name, weight in whole.lm.causal.state_dict().items():
        assert torch.equal(sharded.lm.causal.state_dict()[name], weight)
    (base / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BaseNotFound, match="has no model-00002-of-00002"):
        resolve_base(str(base), tmp_path)
    (base / f"{WEIGHTS}.index.json").write_text("[]")
    with pytest.raises(BaseNotFound, match="lists no files of weights"):
        resolve_base(str(base), tmp_path)
