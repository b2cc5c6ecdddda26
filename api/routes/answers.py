"""Answers: questions are answered with a span of a document, or with the word that nothing stored answers them."""

from __future__ import annotations

from litestar import delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.params import JSONBody

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.edits import WithToken, actor_of
from colmlm.api.wire.requests import QuestionRequest, Why
from colmlm.kb.answers.records import Answer, AnswerThreshold


@post("/answers", status_code=200, opt=needs(Right.read, Lane.reading), responses=PROBLEMS)
async def answer_question(ports: FromPorts, data: JSONBody[QuestionRequest]) -> Answer:
    """Answer a question.

    The answer is a span of a document, with the facts it touches; `answer` is null where nothing stored answers the
    question. The mode `paper` takes the fact with the nearest key instead, and reads nothing. Each answer is stored as
    the output `generation_id`, also where nothing is said; it is null where the server keeps no answers.
    """
    return await sync_to_thread(_answered, ports, data)


def _answered(ports: Ports, data: QuestionRequest) -> Answer:
    return ports.need_answers().answer(
        data.question,
        data.mode,
        threshold=data.threshold,
        nearest=data.nearest,
        accepted_only=data.accepted_only,
    )


@get("/answers/threshold", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_answer_threshold(ports: FromPorts) -> AnswerThreshold:
    """Read the threshold of answers.

    Gives the score from which answers are given, the calibration that chose it, and what speaks against that by now.
    """
    return ports.need_calibrations().standing()


@delete("/answers/threshold", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def use_shipped_threshold(ports: FromPorts, request: WithToken, data: JSONBody[Why]) -> AnswerThreshold:
    """Go back to the shipped threshold.

    The calibration no longer counts, from this commit on and in every process.
    """
    return ports.need_calibrations().drop(actor=actor_of(request, data), reason=data.reason)
