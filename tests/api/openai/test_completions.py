"""Completions by the `openai` package: cited, streamed, several at once, with a seed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai

from tests.api.openai.conftest import GREEDY, LOOKING_UP, MODEL, PROMPT, check_citations
from tests.api.tiny_server import TinyServer


def test_a_completion_cites_what_it_spliced_whole_and_streamed(
    tiny: TinyServer, client: openai.OpenAI
) -> None:
    whole = client.completions.create(prompt=PROMPT, extra_body=LOOKING_UP, **GREEDY)
    (choice,) = whole.choices
    assert choice.model_extra and whole.model_extra
    check_citations(tiny, choice.model_extra["citations"], choice.text, choice.model_extra["generation_id"])
    assert whole.model_extra["citations"] == choice.model_extra["citations"]
    assert whole.usage and whole.usage.prompt_tokens == len(PROMPT) and 0 < whole.usage.completion_tokens <= 8
    assert tiny.kb.outputs.trace(choice.model_extra["generation_id"]).prompt == PROMPT

    *chunks, last = client.completions.create(
        prompt=PROMPT, extra_body=LOOKING_UP, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    ended = chunks[-1]
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [
        choice.finish_reason
    ]
    assert ended.model_extra and last.model_extra and last.choices == [] and last.usage == whole.usage
    own = ended.choices[0].model_extra
    assert own and own["generation_id"] != choice.model_extra["generation_id"]
    check_citations(tiny, last.model_extra["citations"], choice.text, own["generation_id"])
    assert own["citations"] == ended.model_extra["citations"] == last.model_extra["citations"]


def test_a_deleted_fact_is_cited_no_more(tiny: TinyServer, client: openai.OpenAI) -> None:
    """Also where every query of the model would have found it."""
    first = client.completions.create(prompt=PROMPT, extra_body=LOOKING_UP, **GREEDY)
    assert first.model_extra
    gone = {citation["fact_id"] for citation in first.model_extra["citations"]}
    edit = tiny.kb.facts.delete(sorted(gone), actor="tester", reason="wrong")
    again = client.completions.create(prompt=PROMPT, extra_body={**LOOKING_UP, "min_seq": edit.seq}, **GREEDY)
    assert again.model_extra and gone.isdisjoint(c["fact_id"] for c in again.model_extra["citations"])


def test_prompts_come_as_text_as_several_and_as_token_ids(tiny: TinyServer, client: openai.OpenAI) -> None:
    encode = tiny.checkpoint.tokenizer.encode
    prompts = [PROMPT, "Who?"]
    alone = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in prompts]
    asked: list[Any] = [prompts, [encode(prompt) for prompt in prompts]]
    for several in asked:
        choices = client.completions.create(prompt=several, **GREEDY).choices
        assert [(c.index, c.text) for c in choices] == list(enumerate(alone))
    streamed = ["", ""]
    for chunk in client.completions.create(prompt=prompts, stream=True, **GREEDY):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == alone
    echoed = client.completions.create(prompt=encode(PROMPT), echo=True, **GREEDY)
    assert echoed.choices[0].text == PROMPT + alone[0]


def test_a_seed_repeats_and_a_stop_string_ends(client: openai.OpenAI) -> None:
    drawn: dict[str, Any] = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 12,
        "extra_body": {"mode": "off"},
    }
    first, same, other = (client.completions.create(seed=seed, **drawn).choices[0].text for seed in (7, 7, 8))
    assert first == same != other
    stopped = client.completions.create(seed=7, stop=[first[3:5]], **drawn).choices[0]
    assert stopped.text == first[: first.index(first[3:5])] and stopped.finish_reason == "stop"
    unseeded = {client.completions.create(**drawn).choices[0].text for _ in range(3)}
    assert len(unseeded) > 1


def test_a_stream_ends_with_done(tiny: TinyServer) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    answer = httpx.post(f"{tiny.address}/v1/completions", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    assert all(json.loads(line[6:])["object"] == "text_completion" for line in lines[:-1])


def test_a_completion_ends_no_sooner_than_it_is_told_to(client: openai.OpenAI) -> None:
    """Of many outputs drawn at random some end early; with the least equal to the most none does."""

    def reasons(least: int) -> set[str]:
        many = client.completions.create(
            model=MODEL,
            prompt=["x"] * 32,
            max_tokens=100,
            temperature=5,
            seed=0,
            extra_body={"mode": "off", "min_tokens": least},
        )
        return {choice.finish_reason for choice in many.choices}

    assert reasons(0) == {"length", "stop"}
    assert reasons(100) == {"length"}
