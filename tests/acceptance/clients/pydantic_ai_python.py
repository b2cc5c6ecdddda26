"""The calls of `pydantic-ai`."""

from __future__ import annotations

import asyncio

import openai
from calls import BATCH, FINDING_NOTHING, FORCED, QUESTION, UNKNOWN, VALUES, check, report, server
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ContentFilterError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

at = server()


class Answer(BaseModel):
    answer: str


def agent(kind=OpenAIChatModel, extra=FORCED, **options):
    client = openai.AsyncOpenAI(base_url=at.url, api_key=at.key, max_retries=0)
    settings = {"temperature": 0, "max_tokens": 16, "extra_body": extra}
    return Agent(
        kind(at.model, provider=OpenAIProvider(openai_client=client)), model_settings=settings, **options
    )


def answer():
    return agent().run_sync(QUESTION).output


def chat():
    check(answer(), "nothing")


def stream():
    async def streamed():
        async with agent().run_stream(QUESTION) as running:
            return await running.get_output()

    said = asyncio.run(streamed())
    check(said == answer(), said)


def batch():
    async def all_of_them():
        asked = agent()
        return await asyncio.gather(*(asked.run(QUESTION) for _ in range(BATCH)))

    said = {one.output for one in asyncio.run(all_of_them())}
    check(said == {answer()}, said)


def tools():
    said = agent(instructions="Be brief.").run_sync(QUESTION)
    check(said.output, said)


def structured():
    agent(output_type=Answer).run_sync(QUESTION)


def citations():
    """Those of a chat and of a response, in the package's own form."""
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        said = agent(kind).run_sync(QUESTION)
        (part,) = said.new_messages()[-1].parts
        places = [one.anchor for one in part.citations]
        cited = [part.content[place.start : place.end] for place in places]
        check(cited and set(cited) <= set(VALUES), said)
        check({source.title for one in part.citations for source in one.sources} == {"Peru"}, part)


def nothing():
    """The package raises a refusal as an error, with its text."""
    try:
        agent(extra=FINDING_NOTHING, retries=0).run_sync(UNKNOWN)
    except ContentFilterError as refused:
        check("The knowledge base has no sure answer" in str(refused), refused)
    else:
        check(False, "no refusal")


def responses():
    check(agent(OpenAIResponsesModel).run_sync(QUESTION).output, "nothing")


report(chat, stream, batch, tools, structured, citations, nothing, responses)
