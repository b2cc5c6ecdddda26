"""`/v1/responses` by the `openai` package: whole and streamed, cited, refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from colmlm.kb.answers.records import NO_SURE_ANSWER
from tests.api.conftest import CAPITAL
from tests.api.openai.conftest import FINDING_NOTHING, LOOKING_UP, MODEL, check_citations
from tests.api.tiny_server import TinyServer

ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_output_tokens": 16,
    "temperature": 0,
    "extra_body": LOOKING_UP,
}


def part_of(response: Any) -> Any:
    (message,) = response.output
    (part,) = message.content
    return part


def test_a_response_answers_and_its_annotations_cite(tiny: TinyServer, client: openai.OpenAI) -> None:
    told = client.responses.create(input=CAPITAL, instructions="Be brief.", **ASKED)
    part = part_of(told)
    assert told.model_extra and told.output_text == part.text != ""
    check_citations(tiny, told.model_extra["citations"], told.output_text, told.model_extra["generation_id"])
    values = [citation["value"] for citation in told.model_extra["citations"]]
    assert [part.text[one.start_index : one.end_index] for one in part.annotations] == values
    assert {(one.type, one.url, one.title) for one in part.annotations} == {
        ("url_citation", "https://example.org/peru", "Peru")
    }
    prompt = tiny.kb.outputs.trace(told.model_extra["generation_id"]).prompt
    assert prompt == f"Be brief.\n\nQuestion: {CAPITAL}\nAnswer:"
    assert told.usage and told.usage.input_tokens > 0 and told.usage.output_tokens > 0


def test_a_streamed_response_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    whole = client.responses.create(input=CAPITAL, **ASKED)
    events = list(client.responses.create(input=CAPITAL, stream=True, **ASKED))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    assert deltas == last.response.output_text == whole.output_text
    assert last.type == f"response.{whole.status}" and last.response.status == whole.status
    assert part_of(last.response) == part_of(whole)
    added = [one.annotation for one in events if one.type == "response.output_text.annotation.added"]
    assert len(added) == len(part_of(whole).annotations) > 0


def test_a_response_goes_back_as_input(tiny: TinyServer, client: openai.OpenAI) -> None:
    first = client.responses.create(input=CAPITAL, **ASKED)
    conversation: list[Any] = [
        {"role": "user", "content": CAPITAL},
        *(item.to_dict() for item in first.output),
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And the lake?"}]},
    ]
    again = client.responses.create(input=conversation, **ASKED)
    assert again.model_extra
    assert tiny.kb.outputs.trace(again.model_extra["generation_id"]).prompt == (
        f"Question: {CAPITAL}\nAnswer: {first.output_text.strip()}\n\nQuestion: And the lake?\nAnswer:"
    )


def test_where_nothing_answers_the_part_is_a_refusal(client: openai.OpenAI) -> None:
    asked = {**ASKED, "input": "Who was never written about?", "extra_body": FINDING_NOTHING}
    part = part_of(client.responses.create(**asked))
    assert (part.type, part.refusal) == ("refusal", NO_SURE_ANSWER)
    events: list[Any] = list(client.responses.create(stream=True, **asked))
    refused = [event.refusal for event in events if event.type == "response.refusal.done"]
    assert refused == [NO_SURE_ANSWER] and events[-1].type == "response.completed"
    with client.responses.stream(**asked) as stream:  # gathers the events itself
        assert part_of(stream.get_final_response()).refusal == NO_SURE_ANSWER


def test_one_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    told = client.responses.create(
        model=MODEL, input=CAPITAL, max_output_tokens=1, extra_body={"mode": "off", "min_tokens": 1}
    )
    assert told.status == "incomplete"
    assert told.incomplete_details and told.incomplete_details.reason == "max_output_tokens"


def test_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI) -> None:
    neutral = {
        **LOOKING_UP,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tools": [],
        "tool_choice": "auto",
        "truncation": "auto",
        "background": False,
        "previous_response_id": None,
        "metadata": {"a": "b"},
    }
    told = client.responses.create(input=CAPITAL, **{**ASKED, "extra_body": neutral})
    assert told.output_text == client.responses.create(input=CAPITAL, **ASKED).output_text
    assert told.metadata == {"a": "b"}


def test_what_would_change_a_response_is_refused_by_name(
    client: openai.OpenAI, subtests: pytest.Subtests
) -> None:
    for field, value, named in (
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("conversation", "conv_1", "conversation"),
        ("background", True, "background"),
        ("tools", [{"type": "web_search"}], "tools"),
        ("text", {"format": {"type": "json_object"}}, "text.format"),
        ("include", ["message.output_text.logprobs"], "include"),
        ("input", [{"role": "assistant", "content": "x"}], "input"),
    ):
        with subtests.test(field=field, value=value, named=named):
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(input="x", model=MODEL, extra_body={field: value})
            assert refused.value.param == named
