"""Kept questions: sets of them with the values they should get, the runs that asked them, and what changed between."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post, put
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from colmlm.api.middleware.auth import Right, in_thread
from colmlm.api.ports import FromPorts
from colmlm.api.routes.parameters import Cursor, Limit, PathId, WithToken, after_of, page, shown_to
from colmlm.api.wire import MAX_FACTS_PER_EDIT, MAX_ID, Id, Page, Question, Request, Value
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.questions.records import (
    AskedItem,
    DraftQuestion,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
    TakenQuestion,
)

SetName = Annotated[str, PathParameter(min_length=1, max_length=100, description="The set")]
Expected = Annotated[
    list[Value], Meta(max_length=50, description="Each of them is right; with none, nothing should answer")
]
RunId = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_ID, description="A run; by default one of the last two")
]


class NewQuestion(Request, frozen=True, kw_only=True):
    """A question with the values that count as right."""

    question: Question
    expected: Expected = []  # noqa: RUF012  msgspec copies it

    @property
    def draft(self) -> DraftQuestion:
        return DraftQuestion(self.question, tuple(self.expected))


class NewQuestions(Request, frozen=True, kw_only=True):
    """Questions to keep in a set. `corpus` is where their answers should be."""

    questions: Annotated[list[NewQuestion], Meta(max_length=MAX_FACTS_PER_EDIT)]
    corpus: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None


class OutputToKeep(Request, frozen=True, kw_only=True):
    """A stored output whose question is kept; what it said is expected, unless other values are given."""

    generation_id: Id
    question: Question | None = None
    expected: Expected | None = None


class QuestionIds(Request, frozen=True, kw_only=True):
    """Questions of a set, by id."""

    question_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


@get("/questions", **in_thread(Right.read))
def list_question_sets(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[KeptSet]:
    """List the sets of questions.

    In order of name, each with its last run.
    """
    start, found = after_of(cursor, "questions"), ports.kb.questions.all()
    end = start + limit
    return Page(items=found[start:end], next=cursor_of("questions", (end,)) if end < len(found) else None)


@get("/questions/{name:str}", **in_thread(Right.read))
def read_question_set(ports: FromPorts, name: SetName) -> KeptSet:
    """Read a set of questions.

    Gives how many questions it has, and its last run.
    """
    return ports.kb.questions.show(name)


@post("/questions/{name:str}", status_code=200, **in_thread(Right.edit))
def keep_questions(
    ports: FromPorts, request: WithToken, name: SetName, data: JSONBody[NewQuestions]
) -> KeptSet:
    """Keep questions.

    The set is made where there is none. A question that it has already gets these values.
    """
    drafts = [one.draft for one in data.questions]
    return ports.kb.questions.add(name, drafts, corpus=data.corpus, actor=request.user.name)


@post("/questions/{name:str}/outputs", status_code=200, **in_thread(Right.edit))
def keep_output(ports: FromPorts, request: WithToken, name: SetName, data: JSONBody[OutputToKeep]) -> KeptSet:
    """Keep the question of an output.

    What the output said is the expected value; where it said nothing, nothing should answer.
    """
    said: TakenQuestion = {"question": data.question, "expected": data.expected}
    return ports.kb.questions.take(name, data.generation_id, actor=request.user.name, **said)


@delete("/questions/{name:str}", status_code=200, **in_thread(Right.edit))
def drop_question_set(ports: FromPorts, name: SetName) -> KeptSet:
    """Drop a set of questions.

    Its questions and runs go with it. Gives the set as it was.
    """
    return ports.kb.questions.remove(name)


@get("/questions/{name:str}/items", **in_thread(Right.read))
def list_questions(
    ports: FromPorts, request: WithToken, name: SetName, cursor: Cursor = None, limit: Limit = 50
) -> Page[KeptQuestion]:
    """List the questions of a set.

    In the order in which they were added. Without the right `audit`, what their facts say no more is masked.
    """
    found = ports.kb.questions.questions(name, after_of(cursor, "kept"), limit + 1)
    shown = shown_to(request, ports).questions(found)
    return page(shown, limit, "kept", lambda one: (one.question_id,))


@put("/questions/{name:str}/items/{question_id:int}", **in_thread(Right.edit))
def edit_question(
    ports: FromPorts, name: SetName, question_id: PathId, data: JSONBody[NewQuestion]
) -> KeptSet:
    """Edit a kept question.

    Gives it another text and other expected values.
    """
    return ports.kb.questions.edit(name, question_id, data.question, data.expected)


@delete("/questions/{name:str}/items", status_code=200, **in_thread(Right.edit))
def drop_questions(ports: FromPorts, name: SetName, data: JSONBody[QuestionIds]) -> KeptSet:
    """Drop questions of a set.

    All of them or none; what came of them in runs stays. Gives the set as it was.
    """
    return ports.kb.questions.remove(name, data.question_ids)


@get("/questions/{name:str}/runs", **in_thread(Right.read))
def list_question_runs(
    ports: FromPorts, name: SetName, cursor: Cursor = None, limit: Limit = 50
) -> Page[QuestionRun]:
    """List the runs of a set.

    Newest first; the last fifty are kept.
    """
    before = after_of(cursor, "question-runs") or None
    found = ports.kb.questions.runs(name, before, limit + 1)
    return page(found, limit, "question-runs", lambda run: (run.run_id,))


@get("/questions/{name:str}/runs/{run_id:int}", **in_thread(Right.read))
def read_question_run(ports: FromPorts, name: SetName, run_id: PathId) -> QuestionRun:
    """Read a run.

    Gives how many questions were right, wrong and abstained.
    """
    return ports.kb.questions.show_run(name, run_id)


@get("/questions/{name:str}/runs/{run_id:int}/items", **in_thread(Right.read))
def list_asked(
    ports: FromPorts,
    request: WithToken,
    name: SetName,
    run_id: PathId,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AskedItem]:
    """List what came of each question of a run.

    `reason` says why one is not right. Without the right `audit`, what the facts say no more is masked.
    """
    after = after_of(cursor, "asked")
    found = ports.kb.questions.items(name, run_id, after, limit + 1)
    items = shown_to(request, ports).asked_items(found)[:limit]
    more = cursor_of("asked", (after + limit,)) if len(found) > limit else None
    return Page(items=items, next=more)


@get("/questions/{name:str}/comparison", **in_thread(Right.read))
def compare_question_runs(
    ports: FromPorts, request: WithToken, name: SetName, before: RunId = None, after: RunId = None
) -> RunComparison:
    """Compare two runs.

    Gives the questions that came out otherwise, with both outcomes, and what the change log says of the time between.
    """
    return shown_to(request, ports).comparison(ports.kb.questions.compare(name, before, after))


HANDLERS = (
    list_question_sets,
    read_question_set,
    keep_questions,
    keep_output,
    drop_question_set,
    list_questions,
    edit_question,
    drop_questions,
    list_question_runs,
    read_question_run,
    list_asked,
    compare_question_runs,
)
