"""Fields that ask for nothing are taken, and what is more than there is to have is cut to that."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.api.openai.conftest import FINDING_NOTHING, GREEDY, LOOKING_UP, MODEL, PROMPT, UNKNOWN
from tests.api.tiny_server import TinyServer

SAID: list[Any] = [{"role": "user", "content": "What is the capital of Peru?"}]
NEUTRAL: dict[str, Any] = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "top_k": -1,
}
NEUTRAL_CHAT: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "functions": [],
    "function_call": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "audio": None,
    "reasoning_effort": "low",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "Lima"},
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "n": 1,
    "stop": [],
}


def test_fields_that_ask_for_nothing_change_nothing(client: openai.OpenAI) -> None:
    plain = client.completions.create(prompt=PROMPT, extra_body=LOOKING_UP, **GREEDY)
    more = client.completions.create(
        prompt=PROMPT, extra_body={**LOOKING_UP, **NEUTRAL, "best_of": 1}, **GREEDY
    )
    assert more.choices[0].text == plain.choices[0].text
    chat = client.chat.completions.create(messages=SAID, extra_body=LOOKING_UP, **GREEDY)
    neutral = {**LOOKING_UP, **NEUTRAL, **NEUTRAL_CHAT}
    again = client.chat.completions.create(messages=SAID, extra_body=neutral, **GREEDY)
    assert again.choices[0].message == chat.choices[0].message


def test_tools_may_be_listed_where_none_is_chosen(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    listed = client.chat.completions.create(messages=SAID, tools=[tool], tool_choice="none", **GREEDY)
    assert listed.choices[0].message.tool_calls is None
    for asked in ({"tools": [tool]}, {"tool_choice": "required"}, {"tools": [tool], "tool_choice": "auto"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(messages=SAID, extra_body=asked, **GREEDY)
        assert refused.value.param == "tools"


def test_what_would_change_a_chat_is_refused_by_name(
    client: openai.OpenAI, subtests: pytest.Subtests
) -> None:
    for field, value, named in (
        ("top_k", 5, "top_k"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("modalities", ["text", "audio"], "modalities"),
        ("audio", {"voice": "alloy", "format": "mp3"}, "modalities"),
        ("web_search_options", {}, "web_search_options"),
        ("function_call", {"name": "f"}, "functions"),
        ("top_logprobs", 2, "top_logprobs"),
        ("n", 33, "n"),
    ):
        with subtests.test(field=field, value=value, named=named):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(messages=SAID, extra_body={field: value}, **GREEDY)
            assert refused.value.param == named


def test_more_tokens_than_there_are_to_have_are_cut(client: openai.OpenAI) -> None:
    """The context of the tiny model ends before the most tokens that a request gets."""
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 100_000}
    never_ending = {"mode": "off", "min_tokens": 512}
    completed = client.completions.create(prompt="x", extra_body=never_ending, **asked)
    assert completed.choices[0].finish_reason == "length"
    assert completed.usage and 0 < completed.usage.completion_tokens <= 512
    chat = client.chat.completions.create(messages=SAID, extra_body=never_ending, **asked)
    assert chat.choices[0].finish_reason == "length"


def test_a_refusal_goes_back_into_the_conversation(tiny: TinyServer, client: openai.OpenAI) -> None:
    """Its content is null, and clients send a message back as they got it."""
    (first,) = client.chat.completions.create(messages=UNKNOWN, extra_body=FINDING_NOTHING, **GREEDY).choices
    said = first.message.to_dict()
    assert said["content"] is None
    again = client.chat.completions.create(
        messages=[*UNKNOWN, {**said, "tool_calls": []}, *SAID], extra_body=LOOKING_UP, **GREEDY
    )
    extra = again.choices[0].model_extra
    assert (
        extra and f"Answer: {first.message.refusal}\n" in tiny.kb.outputs.trace(extra["generation_id"]).prompt
    )
    for nothing in ({"role": "user"}, {"role": "user", "content": None}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(messages=[nothing], **GREEDY)  # type: ignore[list-item]
        assert refused.value.param == "messages"
