"""Many clients at once against a served app with a tiny real model: all are answered, as each is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from colmlm.kb.errors import refusals
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.together import DecoderTogether, Room
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server

MODEL = "tiny-3"


@pytest.fixture
def tiny(kb: KnowledgeBase, tmp_path: Path) -> Iterator[TinyServer]:
    with tiny_server(kb, eager_checkpoint(tmp_path)) as started:
        yield started


def test_clients_at_once_are_all_answered_as_each_is_alone(tiny: TinyServer) -> None:
    async def ask(number: int) -> str:
        streams = number % 2 == 1
        answer = await client.completions.create(
            model=MODEL, prompt=f"{number % 3} is", max_tokens=12, temperature=0, stream=streams
        )
        if isinstance(answer, openai.AsyncStream):
            return "".join([chunk.choices[0].text async for chunk in answer if chunk.choices])
        return str(answer.choices[0].text)

    async def all_at_once() -> list[str]:
        async with client:
            return await asyncio.gather(*(ask(number) for number in range(12)))

    client = openai.AsyncOpenAI(
        base_url=f"{tiny.address}/v1", api_key=tiny.keys["reader"], max_retries=0, timeout=300
    )
    said = asyncio.run(all_at_once())
    url, headers = f"{tiny.address}/v1/completions", {"Authorization": f"Bearer {tiny.keys['reader']}"}
    for number in range(3):
        body = {"model": MODEL, "prompt": f"{number} is", "max_tokens": 12, "temperature": 0}
        alone = httpx.post(url, json=body, headers=headers, timeout=60).json()["choices"][0]["text"]
        assert set(said[number::3]) == {alone}


def test_where_the_queue_is_full_both_apis_say_when_to_come_again(tiny: TinyServer) -> None:
    none = Room(rows=0, waiting=0)
    decoder = Decoder(tiny.checkpoint, None)
    tiny.generator.together = DecoderTogether(decoder, none, refusal=refusals.decoder_busy)
    headers = {"Authorization": f"Bearer {tiny.keys['reader']}"}
    body = {"prompt": "x", "mode": "off"}
    with httpx.Client(base_url=tiny.address, headers=headers, timeout=60) as client:
        for stream in (False, True):
            refused = client.post("/v1/generations", json={**body, "stream": stream})
            assert (refused.status_code, refused.json()["type"]) == (503, "urn:colmlm:DecoderBusy")
            assert int(refused.headers["retry-after"]) >= 1
            refused = client.post("/v1/completions", json={**body, "model": MODEL, "stream": stream})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "decoder_busy")
            assert int(refused.headers["retry-after"]) >= 1
