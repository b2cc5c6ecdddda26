"""What evaluation harnesses ask by hand: how likely texts are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.scoring import score_tokens
from tests.api.openai.conftest import MODEL, PROMPT
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server


def harness(tiny: TinyServer, prompts: list[list[int]], **fields: Any) -> list[dict[str, Any]]:
    """What lm_eval's local-completions sends to learn how likely a text is, and the choices it gets."""
    payload = {
        "model": MODEL,
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = httpx.post(
        f"{tiny.address}/v1/completions",
        json=payload | fields,
        headers={"Authorization": f"Bearer {tiny.keys['reader']}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


def test_a_harness_reads_how_likely_a_text_is(tiny: TinyServer) -> None:
    tokenizer = tiny.checkpoint.tokenizer
    prompts = [tokenizer.encode(PROMPT), [tokenizer.end_of_text, *tokenizer.encode("naïve 🏔️")]]
    for prompt, choice in zip(prompts, harness(tiny, prompts), strict=True):
        told, started = choice["logprobs"], tokenizer.prompt(prompt)
        (expected,) = score_tokens(tiny.checkpoint, [started])
        assert {len(listed) for listed in told.values()} == {len(prompt) + 1}, (
            "one token more, whatever it is"
        )
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        inner = slice(1, -1)
        wanted = [one.logprob for one in expected[-(len(prompt) - 1) :]]
        assert told["token_logprobs"][inner] == pytest.approx(wanted, abs=1e-4)
        is_best = [
            own == max(top.values())
            for own, top in zip(told["token_logprobs"][inner], told["top_logprobs"][inner], strict=True)
        ]
        assert is_best == [one.top[0][0] == one.token for one in expected[-(len(prompt) - 1) :]]
        text = tokenizer.decode(prompt)
        assert choice["text"].startswith(text) and choice["citations"] == []
        assert told["text_offset"][-1] == len(text)
    before = tiny.kb.outputs.find()
    (scored,) = harness(tiny, [prompts[0]], max_tokens=0)
    assert scored["text"] == PROMPT and len(scored["logprobs"]["tokens"]) == len(prompts[0])
    assert scored["generation_id"] is None and tiny.kb.outputs.find() == before
    assert {generation.mode for generation in before} == {"off"}


def test_the_token_that_ends_a_text_is_counted_for_the_harness(kb: KnowledgeBase, tmp_path: Path) -> None:
    """A harness leaves out the last token; were none there, it would leave out one of the text's."""
    checkpoint = eager_checkpoint(tmp_path, ends=range(256))
    with tiny_server(kb, checkpoint) as tiny:
        (choice,) = harness(tiny, [checkpoint.tokenizer.encode(PROMPT)])
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "stop")
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT) + 1
