"""The calls of `langchain-openai`."""

from __future__ import annotations

from calls import BATCH, FINDING_NOTHING, FORCED, QUESTION, UNKNOWN, VALUES, check, report, server
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

at = server()


def model(extra=FORCED, **options):
    place = {"model": at.model, "base_url": at.url, "api_key": at.key, "max_retries": 0}
    return ChatOpenAI(**place, temperature=0, max_tokens=16, extra_body=extra, **options)


def answer(**options):
    return model(**options).invoke(QUESTION)


def chat():
    check(answer().content, "nothing")


def stream():
    said = "".join(chunk.content for chunk in model().stream(QUESTION))
    check(said == answer().content, said)


def batch():
    said = {one.content for one in model().batch([QUESTION] * BATCH)}
    check(said == {answer().content}, said)


def tools():
    check(
        not model().bind(parallel_tool_calls=True, tool_choice="auto").invoke(QUESTION).tool_calls, "called"
    )


def structured():
    schema = {"title": "Answer", "type": "object", "properties": {"answer": {"type": "string"}}}
    model().with_structured_output(schema, method="json_mode").invoke(QUESTION)


def citations():
    """The annotations of a message of a response; a chat's are not kept by this package."""
    message = answer(use_responses_api=True)
    (block,) = message.content_blocks
    places = [one for one in block["annotations"] if one["type"] == "citation"]
    cited = [block["text"][one["start_index"] : one["end_index"]] for one in places]
    check(cited and set(cited) <= set(VALUES), message)


def nothing():
    said = model(FINDING_NOTHING).invoke(UNKNOWN)
    check(said.content == "" and said.additional_kwargs["refusal"], said)


def embeddings():
    place = {"model": at.model, "base_url": at.url, "api_key": at.key, "max_retries": 0}
    told = OpenAIEmbeddings(**place, check_embedding_ctx_length=False).embed_documents([QUESTION] * BATCH)
    check(len(told) == BATCH, told)


def responses():
    said = "".join(chunk.text for chunk in model(use_responses_api=True).stream(QUESTION))
    check(said and said == answer(use_responses_api=True).text, said)


report(chat, stream, batch, tools, structured, citations, nothing, embeddings, responses)
