"""Answers: questions are answered with a span of a document, or with the word that nothing stored answers them."""

from __future__ import annotations

from litestar import post
from litestar.concurrency import sync_to_thread
from litestar.params import JSONBody

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.wire.requests import QuestionRequest
from colmlm.kb.answers.records import Answer


@post("/answers", status_code=200, opt=needs(Right.read, Lane.decoding), responses=PROBLEMS)
async def answer_question(ports: FromPorts, data: JSONBody[QuestionRequest]) -> Answer:
    """Answer a question.

    The answer is a span of a document, with the facts it touches; `answer` is null where nothing stored answers the
    question. The mode `paper` takes the fact with the nearest key instead, and reads nothing. Each answer is stored as
    the output `generation_id`, also where nothing is said; it is null where the server keeps no answers.
    """
    return await sync_to_thread(_answered, ports, data)


def _answered(ports: Ports, data: QuestionRequest) -> Answer:
    return ports.need_answers().answer(
        data.question, data.mode, threshold=data.threshold, nearest=data.nearest
    )
