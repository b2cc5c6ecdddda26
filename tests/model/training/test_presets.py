"""Presets have the paper's values, and a config that cannot be trained is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from colmlm import model
from colmlm.model.annotate.config import QUESTION_PRESETS, SPAN_PRESETS, named_preset
from colmlm.model.text.markup import MARKUPS
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training import config as presets
from colmlm.model.training.config import Architecture, TrainConfig
from colmlm.model.training.corpora import tokenise
from colmlm.model.training.start import llama_config
from colmlm.model.training.steps import Steps
from colmlm.model.training.unlearning import unlearning_config
from tests.kb.corpora import numbered
from tests.tiny import bare_tokenizer, byte_tokenizer

# The table of appendix A ("Pre-training hyperparameters"), row by row, and what section 3.2 and A.1 add.
TABLE = {
    "init": "random",
    "tokenizer": "smollm2-135m",
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "clip_norm": 1.0,
    "learning_rate": 5e-4,
    "final_learning_rate": 0.0,
    "warmup_steps": 2_000,
    "weight_decay": 0.01,
    "batch_rows": 128,
    "max_length": 4_096,
    "max_question_length": 128,
    "temperature": 0.07,
    "contrastive_weight": 0.25,
    "precision": "bf16",
    "adapt": "full",
    "qa_fraction": 0.0,
    "ntp_fraction": 1.0,
    "equal_negatives": True,
    "paraphrase_fraction": 1.0,
    "memory": 0,
    "hard_negatives": 0,
}
STABLE_AND_COOLDOWN = {
    "co-lmlm-135m": (88_000, 10_000),
    "co-lmlm-360m": (88_000, 10_000),
    "co-lmlm-360m-fw": (148_000, 20_000),
}


@pytest.mark.parametrize("name", STABLE_AND_COOLDOWN)
def test_a_preset_of_the_paper_has_its_values(name: str):
    config = presets.preset(name)
    assert config.preset == name and config.method == "co-lmlm"
    assert {field: getattr(config, field) for field in TABLE} == TABLE
    stable, cooldown = STABLE_AND_COOLDOWN[name]
    assert config.cooldown_steps == cooldown and config.cooldown_start == 2_000 + stable
    assert config.steps == 2_000 + stable + cooldown and config.max_seconds is None
    assert config.cooldown_share == pytest.approx(cooldown / config.steps)


def test_fineweb_edu_is_cooled_down_with_wikipedia_one_to_one():
    config = presets.co_lmlm_360m_fw()
    assert config.mix == (1.0, 0.0) and config.cooldown_mix == (1.0, 1.0)


@pytest.mark.parametrize(
    "architecture, shape, parameters",
    [
        (presets.smollm2_135m(), (30, 576, 9, 3, 1536), 134_515_008),
        (presets.smollm2_360m(), (32, 960, 15, 5, 2560), 361_821_120),
    ],
)
def test_the_architectures_are_smollm2s(architecture: Architecture, shape: tuple[int, ...], parameters: int):
    a = architecture
    assert (a.layers, a.width, a.heads, a.kv_heads, a.ffn) == shape
    assert a.rope_theta == 100_000 and a.tied and a.norm_epsilon == 1e-5
    config = llama_config(a, byte_tokenizer())
    config.vocab_size = 49_152
    with torch.device("meta"):
        assert sum(p.numel() for p in LlamaForCausalLM(config).parameters()) == parameters


def test_every_preset_has_a_name_and_every_method_has_every_run():
    names = presets.names()
    assert len(set(names)) == len(names) == 22
    assert {"small", "small-standard", "scratch-standard", "asker-360m", "standard-360m-fw"} <= set(names)
    assert all(presets.preset(name).preset == name for name in names)
    with pytest.raises(ValueError, match=r"no preset 'big'; name a file \(\.toml\), or one of small, "):
        presets.preset("big")


@pytest.mark.parametrize("method", ["standard", "asker", "rel-lmlm"])
def test_other_methods_share_all_but_the_contrastive_loss(method: str):
    ours, theirs = asdict(presets.co_lmlm_360m()), asdict(presets.preset(f"{method}-360m"))
    differing = {name for name in ours if ours[name] != theirs[name]}
    kept_words = {"paraphrase_fraction"} if method == "standard" else set()
    assert differing == {"method", "preset", "contrastive_weight", "equal_negatives"} | kept_words
    assert theirs["contrastive_weight"] == 0


@pytest.mark.parametrize("file", sorted(presets.EXPERIMENTS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_experiment_of_the_paper_is_a_file_that_is_read(file: Path):
    if file.stem in presets.names():
        assert presets.preset(file.stem) == presets.preset(str(file)) == presets.read_training(file)
    elif file.stem == "npo":
        config = unlearning_config("npo", {"seed": 42})
        assert (config.epochs, config.batch, config.seed) == (8, 32, 42)
        assert unlearning_config(str(file), {"seed": 42}) == config
    else:
        tuners = SPAN_PRESETS | QUESTION_PRESETS
        assert named_preset(str(file), {file.stem: tuners[file.stem]}) == tuners[file.stem]()


def test_a_file_names_what_differs_and_is_refused_where_it_is_wrong(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "co-lmlm-135m"\nmethod = "standard"\nsteps = 20_000\nweight_decay = 0.1\n')
    expected = presets.as_method(presets.co_lmlm_135m(), "standard")
    assert presets.preset(str(file)) == replace(expected, preset="mine", steps=20_000, weight_decay=0.1)
    for text, says in (
        ("steps = ", "Invalid value"),
        ('steps = "many"', "steps: 'many' does not fit"),
        ("warp = 9", "no setting 'warp'"),
        ('extends = "big"', "no preset 'big'"),
        ('init = "random"', "need an architecture"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"mine\.toml: .*{says}"):
            presets.preset(str(file))
    with pytest.raises(ValueError, match=r"none\.toml: it cannot be read"):
        presets.preset(str(tmp_path / "none.toml"))
    with pytest.raises(ValueError, match=r"pass --config npo"):
        unlearning_config("gentle", {})


def test_fewer_steps_keep_the_schedules_shape():
    short = presets.shorten_run(presets.co_lmlm_360m(), 1_000)
    assert (short.steps, short.warmup_steps, short.cooldown_steps) == (1_000, 20, 100)
    assert presets.shorten_run(presets.co_lmlm_360m(), 3).warmup_steps == 0
    longer = presets.shorten_run(presets.co_lmlm_360m(), 200_000)
    assert (longer.steps, longer.warmup_steps, longer.cooldown_steps) == (200_000, 2_000, 10_000)
    assert presets.shorten_run(presets.small(), 30) == replace(presets.small(), steps=30)


def test_the_scratch_runs_differ_in_the_markup_alone_and_have_twelve_million_weights():
    ours, theirs = presets.preset("scratch-co-lmlm"), presets.preset("scratch-standard")
    assert presets.as_method(ours, "standard") == theirs
    differing = {name for name, value in asdict(ours).items() if asdict(theirs)[name] != value}
    assert differing == {"method", "preset", "contrastive_weight"}
    assert ours.architecture is not None
    config = llama_config(ours.architecture, byte_tokenizer())
    config.vocab_size = 49_152
    with torch.device("meta"):
        assert sum(p.numel() for p in LlamaForCausalLM(config).parameters()) == 12_093_888


def test_the_scratch_runs_read_the_same_texts_in_the_same_order():
    documents = numbered(70)
    read: dict[str, list[list[str]]] = {}
    for method in ("co-lmlm", "standard"):
        config, markup = presets.preset(f"scratch-{method}"), MARKUPS[method]
        tokenizer = FactTokenizer(bare_tokenizer(), markup=markup)
        steps = Steps([tokenise(documents, tokenizer, config)], tokenizer, config)
        read[method] = [
            [tokenizer.decode(s.ids) for s, scored in zip(step.sequences, step.scored, strict=True) if scored]
            for step in islice(steps, 9)  # two epochs
        ]
    assert read["co-lmlm"] == read["standard"] and len(read["standard"][0]) == 16
    assert read["standard"][0] != read["standard"][4]


@pytest.mark.parametrize("name", presets.names())
def test_a_config_is_the_same_after_json(name: str):
    config = presets.preset(name)
    assert TrainConfig.from_record(json.loads(json.dumps(asdict(config)))) == config


def test_the_released_checkpoints_record_is_still_read():
    released = Path(model.__path__[0], "released", "co-lmlm-135m", "colmlm.json")
    config = TrainConfig.from_record(json.loads(released.read_text())["training"]["config"])
    assert config.method == "co-lmlm" and config.steps == 170


def test_a_record_from_before_settings_were_added_is_still_read():
    record = {"base": "smollm2-135m", "steps": 800, "max_seconds": 6000.0, "block": 4, "lora_rank": 16}
    record |= {"layout": "padded"}  # changed nothing but the time, and is gone
    config = TrainConfig.from_record(record)
    assert config.init == "smollm2-135m" and config.steps == 800 and config.max_seconds == 6000
    with pytest.raises(ValueError, match="its settings warp are unknown"):
        TrainConfig.from_record({**record, "warp": 9})


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"method": "rag"}, "no method 'rag'; choose one of co-lmlm"),
        ({"adapt": "half"}, "adapt 'half'"),
        ({"forward_tokens": 100}, "forward_tokens is 100; raise it to max_length, 512"),
        ({"precision": "fp8"}, "precision 'fp8'"),
        ({"init": "random"}, "need an architecture"),
        ({"architecture": presets.smollm2_135m()}, "leave that setting out"),
        ({"init": "random", "architecture": presets.smollm2_135m()}, "adapt=full"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"batch_documents": 6}, "no multiple of block"),
        ({"micro_documents": 0}, "micro_documents"),
        ({"max_length": 3}, "at least 4"),
        ({"hard_negatives": -1}, "hard_negatives is -1, but must be 0 or more"),
        ({"qa_fraction": 1.5}, "qa_fraction is 1.5, but must be within"),
        ({"mix": (0.0, 0.0)}, "mix is .*of which one is positive"),
        ({"mix": (1.0,), "cooldown_mix": (1.0, 1.0)}, "give both as many weights"),
        ({"steps": 0}, "steps is 0, but must be positive"),
        ({"cooldown_steps": 601}, "cooldown_steps is 601, but must be from 0 to"),
        ({"final_learning_rate": 1.0}, "final_learning_rate is 1.0, but must be from 0"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says):
        replace(presets.small(), **changes)


def test_an_architecture_whose_heads_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="must be a multiple"):
        replace(presets.smollm2_135m(), heads=7)
    with pytest.raises(ValueError, match="exceeds the context; pass --max-length"):
        replace(presets.co_lmlm_135m(), max_length=8_192)
