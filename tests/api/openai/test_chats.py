"""Chats by the `openai` package: the last question is answered and cited, or nothing is said."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import openai
import pytest

from colmlm.api.openai.fields import Message, as_text
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import NO_SURE_ANSWER
from colmlm.kb.lookup.questions import Questions
from tests.api.conftest import CAPITAL
from tests.api.openai.conftest import (
    FINDING_NOTHING,
    GREEDY,
    LOOKING_UP,
    MODEL,
    UNKNOWN,
    check_citations,
)
from tests.api.tiny_server import TinyServer
from tests.fakes import NearReader


def test_a_chat_answers_its_last_question_and_cites(tiny: TinyServer, client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Peru?"}]},
    ]
    whole = client.chat.completions.create(messages=messages, extra_body=LOOKING_UP, **GREEDY)
    (choice,) = whole.choices
    content, extra = choice.message.content, choice.model_extra
    assert content and extra and choice.message.role == "assistant" and not content.startswith(" ")
    check_citations(tiny, extra["citations"], content, extra["generation_id"])
    stored = tiny.kb.outputs.trace(extra["generation_id"])
    assert stored.prompt == (
        "Be brief.\n\nQuestion: Where?\nAnswer: There.\n\nQuestion: What is the capital of Peru?\nAnswer:"
    )
    assert stored.output == f" {content}"

    chunks = list(
        client.chat.completions.create(messages=messages, extra_body=LOOKING_UP, stream=True, **GREEDY)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == content
    last = chunks[-1]
    assert last.choices[0].finish_reason == choice.finish_reason and last.model_extra
    assert last.choices[0].model_extra
    check_citations(
        tiny, last.model_extra["citations"], content, last.choices[0].model_extra["generation_id"]
    )


def test_a_chat_that_nothing_answers_is_refused_and_not_made_up(
    tiny: TinyServer, client: openai.OpenAI
) -> None:
    (choice,) = client.chat.completions.create(messages=UNKNOWN, extra_body=FINDING_NOTHING, **GREEDY).choices
    assert choice.message.content is None and choice.message.refusal == NO_SURE_ANSWER
    assert choice.finish_reason == "stop" and choice.model_extra and choice.model_extra["citations"] == []
    stored = tiny.kb.outputs.trace(choice.model_extra["generation_id"])
    assert stored.output == "" and [splice.outcome for splice in stored.splices] == ["no_match"]

    chunks = list(
        client.chat.completions.create(messages=UNKNOWN, extra_body=FINDING_NOTHING, stream=True, **GREEDY)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (
        "".join(delta.refusal or "" for delta in deltas) == NO_SURE_ANSWER and deltas[0].role == "assistant"
    )
    assert not any(delta.content for delta in deltas)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_chat_of_a_model_that_looks_nothing_up_is_refused_too(client: openai.OpenAI) -> None:
    never = {"mode": "auto", "fact_bias": -100}
    (choice,) = client.chat.completions.create(messages=UNKNOWN, extra_body=never, **GREEDY).choices
    assert choice.message.content is None and choice.message.refusal == NO_SURE_ANSWER


def test_a_chat_goes_on_where_it_is_told_to_and_a_completion_unless_it_is_not(client: openai.OpenAI) -> None:
    for extra in ({**FINDING_NOTHING, "on_miss": "continue"}, {"mode": "off"}):
        (chat,) = client.chat.completions.create(messages=UNKNOWN, extra_body=extra, **GREEDY).choices
        assert chat.message.content and chat.message.refusal is None
    prompt = "Question: Who was never written about?\nAnswer:"
    (said,) = client.completions.create(prompt=prompt, extra_body=FINDING_NOTHING, **GREEDY).choices
    assert said.text
    abstaining = {**FINDING_NOTHING, "on_miss": "abstain"}
    (silent,) = client.completions.create(prompt=prompt, extra_body=abstaining, **GREEDY).choices
    assert silent.text == "" and silent.finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as scored:
        client.completions.create(model=MODEL, prompt="x", logprobs=1, extra_body={"on_miss": "abstain"})
    assert scored.value.param == "logprobs"


def test_the_ranking_of_lookups_is_an_extra_field_and_else_the_servers(
    tiny: TinyServer, client: openai.OpenAI
) -> None:
    def ranked(**extra: str) -> tuple[str, str]:
        asked = [{"role": "user", "content": CAPITAL}]
        body = {"mode": "forced", **extra}
        (choice,) = client.chat.completions.create(messages=asked, extra_body=body, **GREEDY).choices
        stored = tiny.kb.outputs.trace(choice.generation_id)  # type: ignore[attr-defined]
        return stored.ranking, stored.splices[0].value

    assert ranked()[0] == "key" and ranked(ranking="reader") == ("reader", "Lima")
    tiny.generator.ranking = "words"
    try:
        assert ranked()[0] == "words" and ranked(ranking="key")[0] == "key"
    finally:
        tiny.generator.ranking = "key"


@pytest.fixture
def unconfigured(tiny: TinyServer) -> Iterator[TinyServer]:
    """The server where nobody has said what lookups find facts by."""
    tiny.generator.ranking = None
    yield tiny
    tiny.generator.ranking = "key"


NOBODY = "Who was the mayor of Ulm?"


def cited(tiny: TinyServer, answer: Any) -> tuple[str, bool]:
    """Tells what a stored answer's facts were found by, and whether it cites any."""
    trace = tiny.kb.outputs.trace(answer.model_extra["generation_id"])
    return trace.ranking, any(splice.outcome == "hit" for splice in trace.splices)


def test_a_question_cites_nothing_where_an_answer_is_refused(
    unconfigured: TinyServer, client: openai.OpenAI, subtests: pytest.Subtests
) -> None:
    for mode, on_miss, question in product(("auto", "forced"), ("abstain", "continue"), (NOBODY, CAPITAL)):
        with subtests.test(mode=mode, on_miss=on_miss, question=question):
            kb, extra = unconfigured.kb, {"mode": mode, "on_miss": on_miss}
            encoder = ModelEncoder(unconfigured.checkpoint)
            answers = not Answering(kb, Questions(kb, [encoder]), NearReader()).ask(question).abstained
            messages: list[Any] = [{"role": "user", "content": question}]
            (chat,) = client.chat.completions.create(messages=messages, extra_body=extra, **GREEDY).choices
            said = client.responses.create(model=MODEL, input=question, temperature=0, extra_body=extra)
            prompts = [f"Question: {question} Answer:", question, "The capital of Peru is"]
            *asked, text = client.completions.create(prompt=prompts, extra_body=extra, **GREEDY).choices
            assert [cited(unconfigured, one) for one in (chat, said, *asked)] == [("reader", answers)] * 4
            assert cited(unconfigured, text)[0] == "key"


def test_a_threshold_only_raises_that_of_a_reader_whom_nobody_named(
    unconfigured: TinyServer, client: openai.OpenAI
) -> None:
    def found(question: str, **extra: Any) -> tuple[str, bool]:
        messages: list[Any] = [{"role": "user", "content": question}]
        body = {"mode": "forced", **extra}
        chat = client.chat.completions.create(messages=messages, extra_body=body, **GREEDY)
        (said,) = client.completions.create(prompt=question, extra_body=body, **GREEDY).choices
        assert cited(unconfigured, said) == cited(unconfigured, chat.choices[0])
        return cited(unconfigured, said)

    far = "Who was the mayor of Ulm, as people who lived in that old town by the river for all of their years told it?"
    unconfigured.kb.facts.add(far, "Gunter", actor="ann", reason="known, and hard to read")
    for threshold in (-1, 0, 0.2):
        assert found(NOBODY, threshold=threshold) == ("reader", False)
        assert found(CAPITAL, threshold=threshold) == ("reader", True)
    assert found(CAPITAL, threshold=1) == ("reader", False)
    assert found(NOBODY, threshold=-1, ranking="reader") == ("reader", True), "who names it may lower it"
    assert found(NOBODY, threshold=-1, ranking="key") == ("key", True)


def test_a_conversation_without_a_system_is_questions_and_answers() -> None:
    said = [Message(role="user", content=" Where? ")]
    assert as_text(said) == "Question: Where?\nAnswer:"


def test_a_completions_metadata_takes_feedback(client: openai.OpenAI, tiny: TinyServer) -> None:
    said = client.chat.completions.create(
        **GREEDY, messages=[{"role": "user", "content": CAPITAL}], extra_body=LOOKING_UP
    )
    output = said.choices[0].model_extra["generation_id"]
    judged = client.chat.completions.update(str(output), metadata={"feedback": "down", "comment": "no"})
    assert judged.choices[0].message.content == tiny.kb.outputs.trace(output).output
    (given,) = tiny.kb.outputs.trace(output).feedback
    assert (given.thumb, given.comment, given.actor) == ("down", "no", "reader")
    with pytest.raises(openai.BadRequestError, match="sentiment"):
        client.chat.completions.update(str(output), metadata={"feedback": "up", "sentiment": "glad"})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.update("998", metadata={"feedback": "up"})
    with pytest.raises(openai.NotFoundError, match="generation_id"):
        client.chat.completions.update(said.id, metadata={"feedback": "up"})


def annotated(content: str, annotations: Any) -> list[str]:
    """Gives what the annotations of a message cite, which all lead to the document."""
    cited = [one.url_citation if hasattr(one, "url_citation") else one for one in annotations]
    assert {(one.url, one.title) for one in cited} == {("https://example.org/peru", "Peru")}
    return [content[one.start_index : one.end_index] for one in cited]


def test_citations_are_annotations_of_the_message_too(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": CAPITAL}],
        "extra_body": LOOKING_UP,
        **GREEDY,
    }
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.message.content and choice.model_extra
    values = [citation["value"] for citation in choice.model_extra["citations"]]
    assert annotated(choice.message.content, choice.message.annotations) == values != []
    *_, last = client.chat.completions.create(stream=True, **asked)
    told = last.choices[0].delta.model_extra
    assert told and [one["url_citation"]["start_index"] for one in told["annotations"]] == [
        one.url_citation.start_index for one in choice.message.annotations or []
    ]


def test_several_choices_are_drawn_from_seeds_of_their_own_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": CAPITAL}],
        "max_tokens": 12,
        "seed": 7,
        "n": 16,
        "extra_body": {"mode": "off"},
    }
    choices = client.chat.completions.create(**asked).choices
    said = [choice.message.content or "" for choice in choices]
    assert [choice.index for choice in choices] == list(range(16)) and len(set(said)) == 16
    streamed = [""] * 16
    for chunk in client.chat.completions.create(stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == said
    prompt = f"Question: {CAPITAL}\nAnswer:"
    texts = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=12,
        seed=7,
        n=16,
        stop="\nQuestion:",
        extra_body={"mode": "off"},
    ).choices
    assert [choice.text.removeprefix(" ") for choice in texts] == said


def test_a_chat_tells_how_likely_its_tokens_are(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": CAPITAL}]
    (choice,) = client.chat.completions.create(
        messages=asked, logprobs=True, top_logprobs=2, **GREEDY
    ).choices
    assert choice.logprobs and choice.logprobs.content and choice.message.content
    tokens = choice.logprobs.content
    joined = b"".join(bytes(token.bytes or []) for token in tokens).decode(errors="replace")
    assert joined.removeprefix(" ") == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 2 and token.logprob == max(
            top.logprob for top in token.top_logprobs
        )
    (without,) = client.chat.completions.create(messages=asked, logprobs=True, **GREEDY).choices
    assert without.logprobs and {len(token.top_logprobs) for token in without.logprobs.content or []} == {0}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=asked, logprobs=True, extra_body={"mode": "forced"}, **GREEDY)
    assert refused.value.param == "logprobs"
