"""What is refused, by name, in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from colmlm.api.app import create_app
from colmlm.api.openai.fields import speaks_openai
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect
from tests.api.openai.conftest import LOOKING_UP, MODEL, PROMPT
from tests.api.tiny_server import TinyServer


def test_the_model_has_a_name_and_another_is_refused(client: openai.OpenAI, tiny: TinyServer) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL == client.models.retrieve(tiny.checkpoint.checkpoint_id).id
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-4", prompt="x")
    assert refused.value.code == "model_not_found" and MODEL in str(refused.value)


def test_what_is_not_done_is_refused_by_name(client: openai.OpenAI, subtests: pytest.Subtests) -> None:
    for field, value in (
        ("n", 33),
        ("best_of", 3),
        ("logit_bias", {"5": 1.0}),
        ("presence_penalty", 1.0),
        ("suffix", "x"),
        ("temperature", 9),
    ):
        with subtests.test(field=field, value=value):
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
    with pytest.raises(openai.BadRequestError, match="The prompt has") as long:
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
    with pytest.raises(openai.BadRequestError, match="and a prompt may have 3"):
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


def test_who_has_no_key_is_told_so_in_the_shape_of_openai(tiny: TinyServer) -> None:
    answer = httpx.get(f"{tiny.address}/v1/models")
    assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"


def test_a_server_without_a_model_has_none_to_list(atlas: KnowledgeBase, connect: Connect) -> None:
    answer = connect(create_app(atlas), "reader").get("/v1/models")
    assert answer.status_code == 503 and "COLMLM_CHECKPOINT" in answer.json()["error"]["message"]


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
        with pytest.raises(openai.BadRequestError, match="9 is more than the limit of") as refused:
            ask()
        assert refused.value.param == "min_tokens"
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    for stream in (False, True):
        body = {"prompt": "x", "max_tokens": 8, "min_tokens": 9, "stream": stream}
        answer = httpx.post(f"{tiny.address}/v1/generations", json=body, headers=headers, timeout=60)
        assert answer.status_code == 422 and "min_tokens 9" in answer.json()["detail"]


def test_what_of_the_protocol_is_not_served_is_refused_in_its_shape(
    tiny: TinyServer, subtests: pytest.Subtests
) -> None:
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    for path in ("/v1/images/generations", "/v1/files", "/v1/threads/7/runs", "/v1/responses/resp_1"):
        with subtests.test(path=path):
            for method in ("GET", "POST"):
                answer = httpx.request(method, tiny.address + path, headers=headers, json={})
                assert answer.status_code in (404, 405) and answer.json()["error"]["type"], path
            stranger = httpx.get(tiny.address + path)
            assert stranger.status_code == 401 and stranger.json()["error"]["code"] == "not_signed_in"


def test_our_own_routes_refuse_with_problem_documents(tiny: TinyServer) -> None:
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    for path in ("/v1/facts/998", "/v1/nothing", "/v1/completionsandmore", "/other"):
        answer = httpx.get(tiny.address + path, headers=headers)
        assert answer.status_code == 404 and answer.json()["type"].startswith("urn:colmlm:"), path


def test_no_noun_of_ours_is_one_of_the_protocol(description: dict[str, Any]) -> None:
    """A client of ours would not read the errors of such a route."""
    tagged = {
        path: operation["tags"] == ["OpenAI"]
        for path, item in description["paths"].items()
        for operation in item.values()
    }
    assert {path: speaks_openai(path) for path in tagged} == tagged
