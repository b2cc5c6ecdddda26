"""The `openai` package against a served app with a tiny real model, and what harnesses ask by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from colmlm.api.app import create_app
from colmlm.api.openai.chat import as_text
from colmlm.api.openai.requests import Message
from colmlm.kb.answers.records import NOTHING
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.scoring import score
from colmlm.model.lm.checkpoint import Checkpoint
from tests.api.conftest import CAPITAL, TEXT, Connect
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server

PROMPT = "The capital of Peru is"
MODEL = "tiny-3"
LOOKING_UP: dict[str, Any] = {"mode": "forced", "repetition_penalty": 1.2}
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return eager_checkpoint(tmp_path_factory.mktemp("eager"))


@pytest.fixture
def tiny(kb: KnowledgeBase, checkpoint: Checkpoint) -> Iterator[TinyServer]:
    with tiny_server(kb, checkpoint) as started:
        yield started


@pytest.fixture
def client(tiny: TinyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{tiny.address}/v1", api_key=tiny.keys["reader"], max_retries=0, timeout=60
    ) as opened:
        yield opened


def check_citations(tiny: TinyServer, cited: list[dict[str, Any]], text: str, generation_id: int) -> None:
    """Each says what stands in the text and in the document, and leads to the stored trace."""
    trace = tiny.kb.outputs.trace(generation_id)
    hits = [splice for splice in trace.splices if splice.outcome == "hit"]
    assert cited and [c["fact_id"] for c in cited] == [s.fact_id for s in hits]
    for citation in cited:
        document = citation["document"]
        assert text[citation["start"] : citation["end"]] == citation["value"] in ("Lima", "Titicaca")
        assert TEXT[document["start"] : document["end"]] == citation["value"]
        assert (document["title"], document["corpus"]) == ("Peru", "atlas")
    url, key = cited[0]["url"], tiny.keys["reader"]
    told = httpx.get(url, headers={"Authorization": f"Bearer {key}"}).json()
    assert told["generation_id"] == generation_id and told["output"] == trace.output


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


UNKNOWN: list[Any] = [{"role": "user", "content": "Who was never written about?"}]
FINDING_NOTHING: dict[str, Any] = {"mode": "forced", "threshold": 1}


def test_a_chat_that_nothing_answers_is_refused_and_not_made_up(
    tiny: TinyServer, client: openai.OpenAI
) -> None:
    (choice,) = client.chat.completions.create(messages=UNKNOWN, extra_body=FINDING_NOTHING, **GREEDY).choices
    assert choice.message.content is None and choice.message.refusal == NOTHING
    assert choice.finish_reason == "stop" and choice.model_extra and choice.model_extra["citations"] == []
    stored = tiny.kb.outputs.trace(choice.model_extra["generation_id"])
    assert stored.output == "" and [splice.outcome for splice in stored.splices] == ["no_match"]

    chunks = list(
        client.chat.completions.create(messages=UNKNOWN, extra_body=FINDING_NOTHING, stream=True, **GREEDY)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.refusal or "" for delta in deltas) == NOTHING and deltas[0].role == "assistant"
    assert not any(delta.content for delta in deltas)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_chat_of_a_model_that_looks_nothing_up_is_refused_too(client: openai.OpenAI) -> None:
    never = {"mode": "auto", "fact_bias": -100}
    (choice,) = client.chat.completions.create(messages=UNKNOWN, extra_body=never, **GREEDY).choices
    assert choice.message.content is None and choice.message.refusal == NOTHING


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
        (expected,) = score(tiny.checkpoint, [started])
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


def test_the_model_has_a_name_and_another_is_refused(client: openai.OpenAI, tiny: TinyServer) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL == client.models.retrieve(tiny.checkpoint.checkpoint_id).id
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-4", prompt="x")
    assert refused.value.code == "model_not_found" and MODEL in str(refused.value)


@pytest.mark.parametrize(
    "field, value",
    [
        ("n", 2),
        ("best_of", 3),
        ("logit_bias", {"5": 1.0}),
        ("presence_penalty", 1.0),
        ("suffix", "x"),
        ("temperature", 9),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: openai.OpenAI, field: str, value: Any) -> None:
    asked: dict[str, Any] = {field: value}
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x", **asked)
    assert refused.value.param == field and refused.value.type == "invalid_request_error"


def test_refusals_have_the_shape_of_openai(client: openai.OpenAI, tiny: TinyServer) -> None:
    tokenizer = tiny.checkpoint.tokenizer
    with pytest.raises(openai.BadRequestError, match="threshhold"):
        client.completions.create(model=MODEL, prompt="x", extra_body={"threshhold": 0.5})
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x", logprobs=1, extra_body={"mode": "auto"})
    assert refused.value.param == "logprobs"
    with pytest.raises(openai.UnprocessableEntityError, match="cannot stand in a prompt"):
        client.completions.create(model=MODEL, prompt=[tokenizer.fact])
    with pytest.raises(openai.BadRequestError, match="A prompt may have") as long:
        client.completions.create(model=MODEL, prompt="x" * 600, logprobs=0, echo=True, max_tokens=0)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as streamed:
        client.completions.create(model=MODEL, prompt="x" * 100_000, stream=True)
    assert streamed.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as said:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 100_000}])
    assert said.value.code == "context_length_exceeded" and said.value.type == "invalid_request_error"
    generated = httpx.post(
        f"{tiny.address}/v1/generations",
        headers={"Authorization": f"Bearer {tiny.keys['reader']}"},
        json={"prompt": "x" * 100_000},
    )
    assert (generated.status_code, generated.json()["type"]) == (400, "urn:colmlm:ContextLengthExceeded")
    tiny.generator.prompt_max_tokens = 3
    with pytest.raises(openai.BadRequestError, match="A prompt may have 3 tokens here"):
        client.completions.create(model=MODEL, prompt=PROMPT)
    tiny.generator.prompt_max_tokens = None
    with pytest.raises(openai.NotFoundError) as unmade:
        client.completions.create(
            model=MODEL, prompt="x", stream=True, extra_body={**LOOKING_UP, "min_seq": 10**6}
        )
    assert unmade.value.code == "no_such_change"
    with pytest.raises(openai.AuthenticationError) as unknown:
        client.with_options(api_key="nobody").models.list()
    assert unknown.value.type == "authentication_error"
    with pytest.raises(openai.PermissionDeniedError):
        client.with_options(api_key=tiny.keys["decoder"]).models.list()
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            extra_body={"tools": [{"type": "function"}]},
        )
    assert tools.value.param == "tools"


def test_a_stream_ends_with_done(tiny: TinyServer) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    answer = httpx.post(f"{tiny.address}/v1/completions", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    assert all(json.loads(line[6:])["object"] == "text_completion" for line in lines[:-1])


def test_a_conversation_without_a_system_is_questions_and_answers() -> None:
    said = [Message(role="user", content=" Where? ")]
    assert as_text(said) == "Question: Where?\nAnswer:"


def test_who_has_no_key_is_told_so_in_the_shape_of_openai(tiny: TinyServer) -> None:
    answer = httpx.get(f"{tiny.address}/v1/models")
    assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"


def test_a_server_without_a_model_has_none_to_list(atlas: KnowledgeBase, connect: Connect) -> None:
    answer = connect(create_app(atlas), "reader").get("/v1/models")
    assert answer.status_code == 503 and "COLMLM_CHECKPOINT" in answer.json()["error"]["message"]


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


def test_a_least_above_the_most_is_refused_by_name_on_every_route(
    tiny: TinyServer, client: openai.OpenAI
) -> None:
    more: dict[str, Any] = {"model": MODEL, "extra_body": {"min_tokens": 9}, "stream": False}
    said = [{"role": "user", "content": "x"}]
    for ask in (
        lambda: client.completions.create(prompt="x", max_tokens=8, **more),
        lambda: client.completions.create(prompt="x", max_tokens=8, **more | {"stream": True}),
        lambda: client.completions.create(prompt="x", max_tokens=0, echo=True, **more),
        lambda: client.chat.completions.create(messages=said, max_tokens=8, **more),
        lambda: client.chat.completions.create(messages=said, max_completion_tokens=8, **more),
    ):
        with pytest.raises(openai.BadRequestError, match="9 is more than the most tokens") as refused:
            ask()
        assert refused.value.param == "min_tokens"
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    for stream in (False, True):
        body = {"prompt": "x", "max_tokens": 8, "min_tokens": 9, "stream": stream}
        answer = httpx.post(f"{tiny.address}/v1/generations", json=body, headers=headers, timeout=60)
        assert answer.status_code == 422 and "min_tokens 9" in answer.json()["detail"]
