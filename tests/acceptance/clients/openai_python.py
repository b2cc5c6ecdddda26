"""The calls of the `openai` package."""

from __future__ import annotations

import asyncio

import openai
from calls import BATCH, FINDING_NOTHING, FORCED, QUESTION, UNKNOWN, VALUES, check, report, server

at = server()
client = openai.OpenAI(base_url=at.url, api_key=at.key, max_retries=0)
SAID = [{"role": "user", "content": QUESTION}]
OPTIONS = {"model": at.model, "temperature": 0, "max_tokens": 16, "extra_body": FORCED}


def answer():
    return client.chat.completions.create(messages=SAID, **OPTIONS).choices[0].message


def chat():
    check(answer().content, "nothing")


def stream():
    chunks = client.chat.completions.create(messages=SAID, stream=True, **OPTIONS)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check(said == answer().content, said)


def batch():
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=at.url, api_key=at.key, max_retries=0) as many:
            asked = (many.chat.completions.create(messages=SAID, **OPTIONS) for _ in range(BATCH))
            return {one.choices[0].message.content for one in await asyncio.gather(*asked)}

    said = asyncio.run(all_of_them())
    check(said == {answer().content}, said)


def tools():
    said = client.chat.completions.create(messages=SAID, tools=[], parallel_tool_calls=True, **OPTIONS)
    check(said.choices[0].message.tool_calls is None, said)


def structured():
    client.chat.completions.create(messages=SAID, response_format={"type": "json_object"}, **OPTIONS)


def citations():
    message = answer()
    cited = [
        message.content[one.url_citation.start_index : one.url_citation.end_index]
        for one in message.annotations
    ]
    check(cited and set(cited) <= set(VALUES), message)


def nothing():
    options = {**OPTIONS, "extra_body": FINDING_NOTHING}
    said = client.chat.completions.create(messages=[{"role": "user", "content": UNKNOWN}], **options)
    check(said.choices[0].message.refusal, said)


def embeddings():
    told = client.embeddings.create(model=at.model, input=[QUESTION] * BATCH)
    check(len(told.data) == BATCH and len(told.data[0].embedding) > 1, told)


def responses():
    options = {"model": at.model, "temperature": 0, "extra_body": FORCED}
    told = client.responses.create(input=QUESTION, **options)
    *_, last = client.responses.create(input=QUESTION, stream=True, **options)
    check(told.output_text and last.response.output_text == told.output_text, told)


report(chat, stream, batch, tools, structured, citations, nothing, embeddings, responses)
