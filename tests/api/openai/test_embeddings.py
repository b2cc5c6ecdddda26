"""`/v1/embeddings` by the `openai` package: the vectors that lookups ask with."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import openai
import pytest

from colmlm.api.app import create_app
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, Connect
from tests.api.openai.conftest import MODEL
from tests.api.tiny_server import TinyServer
from tests.fakes import FakeEncoder


def test_questions_get_the_vectors_that_lookups_ask_with(tiny: TinyServer, client: openai.OpenAI) -> None:
    wanted = ModelEncoder(tiny.checkpoint).encode_questions([CAPITAL, LAKE])
    packed = client.embeddings.create(model=MODEL, input=[CAPITAL, LAKE])  # the package asks for base64
    listed = client.embeddings.create(model=MODEL, input=[CAPITAL, LAKE], encoding_format="float")
    for told in (packed, listed):
        assert [one.index for one in told.data] == [0, 1] and told.model == MODEL
        assert np.allclose([one.embedding for one in told.data], wanted, atol=1e-6)
    keyset = tiny.kb.keysets.active()
    extra = packed.model_extra
    assert extra and (extra["keyset_id"], extra["checkpoint_id"]) == (keyset.keyset_id, keyset.checkpoint_id)
    encode = tiny.checkpoint.tokenizer.encode
    assert packed.usage.prompt_tokens == len(encode(CAPITAL)) + len(encode(LAKE))


def test_a_vector_finds_what_its_question_finds(tiny: TinyServer, client: openai.OpenAI) -> None:
    told = client.embeddings.create(model="colmlm", input=CAPITAL, encoding_format="float")
    headers = {"Authorization": f"Bearer {tiny.keys['decoder']}"}
    body: dict[str, Any] = {"questions": [CAPITAL]}
    by_question = httpx.post(f"{tiny.address}/v1/lookups", json=body, headers=headers, timeout=60).json()
    checkpoint_id = by_question["checkpoint_id"]
    body = {"queries": [told.data[0].embedding], "checkpoint_id": checkpoint_id}
    by_vector = httpx.post(f"{tiny.address}/v1/lookups", json=body, headers=headers, timeout=60).json()
    found = [one["answers"][0]["hits"][0]["fact_id"] for one in (by_question, by_vector)]
    assert found[0] == found[1]


def test_what_no_question_is_is_refused_by_name(client: openai.OpenAI) -> None:
    for asked, named in (
        ({"input": [[1, 2, 3]]}, "input"),
        ({"input": [1, 2, 3]}, "input"),
        ({"input": CAPITAL, "dimensions": 7}, "dimensions"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=MODEL, **asked)  # type: ignore[arg-type]
        assert refused.value.param == named
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input=CAPITAL)


def test_a_server_that_does_not_decode_embeds_and_counts_no_tokens(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    answer = connect(create_app(atlas, encoder), "decoder").post(
        "/v1/embeddings", json={"model": "colmlm", "input": CAPITAL}
    )
    told = answer.json()
    assert answer.status_code == 200 and told["usage"] is None
    assert np.allclose(told["data"][0]["embedding"], encoder.encode_questions([CAPITAL])[0])
    without = connect(create_app(atlas), "reader").post("/v1/embeddings", json={"model": "x", "input": "x"})
    assert without.status_code == 503 and "COLMLM_CHECKPOINT" in without.json()["error"]["message"]
