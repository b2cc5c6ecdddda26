"""The calls of `litellm`."""

from __future__ import annotations

import asyncio

import litellm
from calls import BATCH, FINDING_NOTHING, FORCED, QUESTION, UNKNOWN, VALUES, check, report, server

at = server()
SAID = [{"role": "user", "content": QUESTION}]
PLACE = {"model": f"openai/{at.model}", "api_base": at.url, "api_key": at.key, "num_retries": 0}
OPTIONS = {**PLACE, "temperature": 0, "max_tokens": 16, "extra_body": FORCED}


def answer():
    return litellm.completion(messages=SAID, **OPTIONS).choices[0].message


def chat():
    check(answer().content, "nothing")


def stream():
    chunks = litellm.completion(messages=SAID, stream=True, **OPTIONS)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check(said == answer().content, said)


def batch():
    async def all_of_them():
        return await asyncio.gather(*(litellm.acompletion(messages=SAID, **OPTIONS) for _ in range(BATCH)))

    said = {one.choices[0].message.content for one in asyncio.run(all_of_them())}
    check(said == {answer().content}, said)


def tools():
    said = litellm.completion(messages=SAID, parallel_tool_calls=True, tool_choice="auto", **OPTIONS)
    check(not said.choices[0].message.tool_calls, said)


def structured():
    litellm.completion(messages=SAID, response_format={"type": "json_object"}, **OPTIONS)


def citations():
    message = answer()
    places = [one["url_citation"] for one in message.annotations]
    cited = [message.content[one["start_index"] : one["end_index"]] for one in places]
    check(cited and set(cited) <= set(VALUES), message)


def nothing():
    options = {**OPTIONS, "extra_body": FINDING_NOTHING}
    said = litellm.completion(messages=[{"role": "user", "content": UNKNOWN}], **options)
    check(said.choices[0].message.content is None, said)


def embeddings():
    told = litellm.embedding(input=[QUESTION] * BATCH, **PLACE)
    check(len(told.data) == BATCH, told)


def responses():
    told = litellm.responses(input=QUESTION, temperature=0, extra_body=FORCED, **PLACE)
    check(told.output[0].content[0].text, told)


report(chat, stream, batch, tools, structured, citations, nothing, embeddings, responses)
