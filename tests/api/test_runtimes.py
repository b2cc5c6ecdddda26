"""The program of docs/models/runtimes.md decodes by plain transformers and this API as this program does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from colmlm.api.app import create_app
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.lm.export import export_plain
from tests.api.serving import served
from tests.kb.corpora import ingest, numbered
from tests.places import ROOT
from tests.tiny import tiny_checkpoint

PROMPTS = ["Document 3 says that", "What is item 7? (", "A literal <FACT> is no lookup"]


def program() -> dict[str, Any]:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/models/runtimes.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return load(tiny_checkpoint(tmp_path / "tiny"), tmp_path, precision="fp32")


def test_it_gives_what_the_decoder_gives(
    kb: KnowledgeBase, checkpoint: Checkpoint, new_token: Callable[[str], str], tmp_path: Path
) -> None:
    ingest(kb, *numbered(12))
    keyset_id = kb.keysets.rekey(ModelEncoder(checkpoint)).keyset_id
    export_plain(checkpoint, tmp_path / "plain", dtype="fp32")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    config = DecodeConfig(max_tokens=24, repetition_penalty=1.0, fact_bias=0.0)
    theirs = program()
    with served(create_app(kb)) as address:
        find = partial(
            theirs["find"],
            server=address,
            secret=new_token("decoder"),
            checkpoint_id=checkpoint.checkpoint_id,
        )
        for threshold, at_once, prompt in product((-1.0, 1.0), (True, False), PROMPTS):
            kb.keysets.set_threshold(keyset_id, threshold)
            mode = "forced" if at_once else "auto"
            (ours,) = Decoder(checkpoint, kb.lookups).generate([prompt], replace(config, mode=mode))
            text, facts = theirs["generate"](model, tokenizer, prompt, find, max_tokens=24, at_once=at_once)
            assert text == ours.output, (threshold, at_once)
            spliced = [splice.fact_id for splice in ours.splices if splice.outcome == "hit"]
            assert [fact["fact_id"] for fact in facts] == spliced, (threshold, at_once)
            if at_once:
                assert bool(spliced) is (threshold < 0)
