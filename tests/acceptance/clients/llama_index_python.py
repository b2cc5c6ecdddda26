"""The calls of `llama-index-llms-openai-like` and `llama-index-embeddings-openai-like`."""

from __future__ import annotations

import asyncio

from calls import BATCH, FINDING_NOTHING, FORCED, QUESTION, UNKNOWN, VALUES, check, report, server
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

at = server()
SAID = [ChatMessage(role="user", content=QUESTION)]


class Answer(BaseModel):
    answer: str


def model(extra=FORCED):
    place = {"model": at.model, "api_base": at.url, "api_key": at.key, "max_retries": 0}
    kept = {"is_chat_model": True, "additional_kwargs": {"extra_body": extra}}
    return OpenAILike(**place, **kept, temperature=0, max_tokens=16, context_window=512)


def answer():
    return model().chat(SAID)


def chat():
    check(answer().message.content, "nothing")


def stream():
    said = "".join(chunk.delta or "" for chunk in model().stream_chat(SAID))
    check(said == answer().message.content, said)


def batch():
    async def all_of_them():
        asked = model()
        return await asyncio.gather(*(asked.achat(SAID) for _ in range(BATCH)))

    said = {one.message.content for one in asyncio.run(all_of_them())}
    check(said == {answer().message.content}, said)


def tools():
    said = model().chat(SAID, parallel_tool_calls=True, tool_choice="auto")
    check(said.message.content, said)


def structured():
    model().as_structured_llm(Answer).chat(SAID)


def citations():
    """They stand in the package's raw answer."""
    said = answer()
    message = said.raw.choices[0].message
    places = [one.url_citation for one in message.annotations]
    cited = [said.message.content[one.start_index : one.end_index] for one in places]
    check(cited and set(cited) <= set(VALUES), said)


def nothing():
    said = model(FINDING_NOTHING).chat([ChatMessage(role="user", content=UNKNOWN)])
    check(not said.message.content and said.raw.choices[0].message.refusal, said)


def embeddings():
    place = {"model_name": at.model, "api_base": at.url, "api_key": at.key, "max_retries": 0}
    told = OpenAILikeEmbedding(**place, embed_batch_size=BATCH).get_text_embedding_batch([QUESTION] * BATCH)
    check(len(told) == BATCH, told)


report(chat, stream, batch, tools, structured, citations, nothing, embeddings)
