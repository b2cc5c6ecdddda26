"""Questions: sets of kept questions with their runs and comparisons, and the work list of what was missed."""

from __future__ import annotations

from typing import cast

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import (
    Form,
    FromForm,
    Page,
    PageRequest,
    find_change,
    form_page,
    on_each,
    show_again,
    verb_of,
)
from colmlm.api.middleware.auth import Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.misses import asks_of
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.api.routes.questions import SetName
from colmlm.api.wire import MAX_FACTS_PER_EDIT
from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.answers.records import Answer
from colmlm.kb.errors import KBError, refusals
from colmlm.kb.facts.records import Edit
from colmlm.kb.jobs.kinds import AskQuestions, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.misses.records import MissGroup, MissSort, MissState
from colmlm.kb.questions.records import DraftQuestion, KeptQuestion
from colmlm.kb.questions.sets import questions_of_text

QUESTIONS_ON_A_PAGE = 100
RUNS_SHOWN = 20
MOST_PASTED = 1_000_000  # characters
LONGEST_SET = 100
WAYS = (
    ("read", "as people ask: answers that are read"),
    ("paper", "as the paper does: the nearest fact"),
    ("words", "as lookups by key and words"),
    ("reader", "as lookups that are read"),
)
OUTCOMES = ("all", "right", "wrong", "abstained")


def _lead_to_set(name: str) -> Page:
    return Redirect(f"/console/questions/{name}", status_code=303)


def _read_values(form: Form) -> list[str]:
    """Read the expected values, one in a line."""
    return [line.strip() for line in (form.optional("expected") or "").split("\n") if line.strip()]


def show_sets(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    sets, corpora = ports.kb.questions.all(), ports.kb.corpora.all()
    return form_page(request, "questions.html", form, sets=sets, corpora=[one.corpus for one in corpora])


def show_keeping(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the question of a stored output, with what it said as the expected value."""
    output = form.integer("output") or 0
    draft = ports.kb.questions.draft_of_output(output)
    sets = [one.name for one in ports.kb.questions.all()]
    return form_page(request, "question_keep.html", form, output=output, draft=draft, sets=sets)


def show_question(
    ports: FromPorts, request: PageRequest, name: SetName, question_id: PathId, form: FromForm
) -> Page:
    found = ports.kb.questions.questions(name, question_id - 1, 1)
    if not found or found[0].question_id != question_id:
        raise refusals.question_not_found([question_id])
    (shown,) = shown_to(request, ports).questions(found)
    return form_page(request, "question_edit.html", form, name=name, kept=shown)


def show_set(ports: FromPorts, request: PageRequest, name: SetName, form: FromForm) -> Page:
    """Show a set: its runs, its questions, and the run that is under way."""
    kb, after = ports.kb.questions, form.integer("after") or 0
    kept, found = kb.show(name), kb.questions(name, after, QUESTIONS_ON_A_PAGE + 1)
    shown: list[KeptQuestion] = shown_to(request, ports).questions(found[:QUESTIONS_ON_A_PAGE])
    return form_page(
        request,
        "question_set.html",
        form,
        kept=kept,
        questions=shown,
        more=shown[-1].question_id if len(found) > QUESTIONS_ON_A_PAGE else None,
        runs=kb.runs(name, None, RUNS_SHOWN),
        ways=WAYS,
        job=_find_job(ports, request, form),
        workers=Jobs(ports.kb).num_workers(),
    )


def _find_job(ports: Ports, request: PageRequest, form: Form) -> JobRecord | None:
    """Give the job that the query string names; None unless it asks questions and the token may see it."""
    number = form.integer("job")
    if number is None or not request.user.may(AskQuestions.right):
        return None
    job = Jobs(ports.kb).get(number)
    return job if job.kind == AskQuestions.kind else None


@post("/questions", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_sets)
def keep_questions(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Keep pasted questions in a set."""
    name, corpus = form.text("name", limit=LONGEST_SET), form.optional("corpus")
    rows = form.text("rows", limit=MOST_PASTED)
    form.check()
    ports.kb.questions.add(name, questions_of_text(rows), corpus=corpus, actor=request.user.name)
    return _lead_to_set(name)


@post("/keep-question", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_keeping)
def keep_output(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    name, output = form.text("name", limit=LONGEST_SET), form.integer("output")
    question = form.text("question", limit=2000)
    form.check()
    ports.kb.questions.take(
        name, output or 0, question=question, expected=_read_values(form), actor=request.user.name
    )
    return _lead_to_set(name)


@post("/questions/{name:str}", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_set)
def add_question(ports: FromPorts, request: PageRequest, name: SetName, form: FromForm) -> Page:
    """Add one question to a set."""
    question = form.text("question", limit=2000)
    form.check()
    ports.kb.questions.show(name)
    draft = DraftQuestion(question, tuple(_read_values(form)))
    ports.kb.questions.add(name, [draft], actor=request.user.name)
    return _lead_to_set(name)


@post("/questions/{name:str}/run", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_set)
def start_run(ports: FromPorts, request: PageRequest, name: SetName, form: FromForm) -> Page:
    """Ask all questions of a set, as a job."""
    way = form.choice("way", [value for value, _ in WAYS])
    form.check()
    ports.kb.questions.show(name)
    chosen = {"mode": way} if way in ("read", "paper") else {"ranking": way}
    work = work_of(
        AskQuestions.kind, {"question_set": name, "accepted_only": form.flag("accepted_only"), **chosen}
    )
    job = Jobs(ports.kb).submit(work, actor=request.user.name)
    return Redirect(f"/console/questions/{name}?job={job.job_id}", status_code=303)


@get("/questions/{name:str}/runs/{run_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read_run(ports: FromPorts, request: PageRequest, name: SetName, run_id: PathId, form: FromForm) -> Page:
    """Show what came of each question of a run, those that are not right first."""
    which, after = form.choice("outcome", OUTCOMES), form.integer("after") or 0
    found = ports.kb.questions.show_run(name, run_id)
    items = shown_to(request, ports).asked_items(ports.kb.questions.items(name, run_id))
    items = sorted(items, key=lambda item: item.outcome == "right")
    chosen = [item for item in items if which in ("all", item.outcome)]
    shown, more = chosen[after : after + QUESTIONS_ON_A_PAGE], after + QUESTIONS_ON_A_PAGE
    return form_page(
        request,
        "question_run.html",
        form,
        run=found,
        items=shown,
        which=which if which in OUTCOMES else "all",
        more=more if more < len(chosen) else None,
    )


@get("/questions/{name:str}/compare", opt=needs(Right.read), sync_to_thread=True)
def compare_runs(ports: FromPorts, request: PageRequest, name: SetName, form: FromForm) -> Page:
    """Show what came out otherwise in another run, by default in the last two."""
    found = ports.kb.questions.compare(name, form.integer("before"), form.integer("after"))
    return form_page(
        request, "question_compare.html", form, name=name, found=shown_to(request, ports).comparison(found)
    )


@post("/questions/{name:str}/items/{question_id:int}", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_question)
def edit_question(
    ports: FromPorts, request: PageRequest, name: SetName, question_id: PathId, form: FromForm
) -> Page:
    """Give a question another text and other values, or with `do` remove it."""
    if form.choice("do", ("edit", "remove")) == "remove":
        ports.kb.questions.remove(name, [question_id])
        return _lead_to_set(name)
    question = form.text("question", limit=2000)
    form.check()
    ports.kb.questions.edit(name, question_id, question, _read_values(form))
    return _lead_to_set(name)


@get("/questions/{name:str}/remove", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_remove_set(ports: FromPorts, request: PageRequest, name: SetName) -> Page:
    return form_page(request, "question_remove.html", Form(), kept=ports.kb.questions.show(name))


@post("/questions/{name:str}/remove", opt=needs(Right.edit), sync_to_thread=True)
def remove_set(ports: FromPorts, name: SetName) -> Page:
    """Remove a set with its runs."""
    ports.kb.questions.remove(name)
    return Redirect("/console/questions", status_code=303)


# Misses: what was asked and found nothing, or was called wrong, as a work list, and what to do about each group.

GROUPS_ON_A_PAGE = 20
DECISION_PATHS = ("/misses/dismiss", "/misses/reopen")
STATES: tuple[MissState, ...] = ("open", "dismissed", "solved")
MISS_SORTS: tuple[MissSort, ...] = ("asked", "newest")


def lead_to_group(
    ports: Ports, request: PageRequest, group_id: int, fact_id: int, reason: str, *, anyway: bool = False
) -> Redirect:
    """Solve a group by a fact if its questions find it; redirect to its page, which names those that do not."""
    misses = ports.kb.caller_view(past=True).misses(asks_of(ports))
    asked = misses.solve(group_id, fact_id, anyway=anyway, actor=request.user.name, reason=reason)
    left = ",".join(str(one.generation_id) for one in asked.asked if not one.found)
    return Redirect(f"/console/misses/{group_id}?fact={fact_id}&left={left}", status_code=303)


def solve_by_new_fact(ports: Ports, request: PageRequest, form: Form, edit: Edit) -> Redirect | None:
    """Solve the group that the form names by the fact that was added for it, and redirect; None if it names none.

    The fact stays, also if the group cannot be asked again. None for a caller of some corpora: groups are of all.
    """
    if (group_id := form.integer("miss")) is None or request.user.corpora is not None:
        return None
    (fact_id,) = edit.fact_ids
    try:
        led = lead_to_group(ports, request, group_id, fact_id, form.raw("reason"))
    except KBError:
        return Redirect(f"/console/facts/{fact_id}?change={edit.seq}", status_code=303)
    return Redirect(f"{led.url}&change={edit.seq}", status_code=303)


def _read_group_ids(form: Form) -> list[int]:
    ids = form.ids("group")
    if not ids:
        form.mistakes["group"] = "Choose at least one group."
    return ids


def confirm_decision(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Ask for the reason, and show which groups are concerned."""
    misses = shown_to(request, ports).misses()
    groups = [misses.read(group_id).group for group_id in form.ids("group")[:MAX_FACTS_PER_EDIT]]
    return form_page(request, "misses_decide.html", form, verb=verb_of(request), groups=groups)


def show_misses(ports: FromPorts, request: PageRequest, group_id: PathId, form: FromForm) -> Page:
    details = shown_to(request, ports).misses().read(group_id)
    return form_page(
        request,
        "miss.html",
        form,
        group=details.group,
        questions=details.questions,
        fact_id=form.integer("fact"),
        left=form.ids("left"),
        done=find_change(ports, form),
        asked=_ask_again(ports, details.group) if details.group.state == "open" else None,
    )


def _ask_again(ports: Ports, group: MissGroup) -> Answer | None:
    """Ask the question of a group again, without storing the answer; None without a reader, or if it is refused."""
    if ports.answers is None or not group.question.strip() or len(group.question) > MAX_QUESTION:
        return None
    try:
        return ports.answers.answering.ask(group.question, nearest=1)
    except KBError:
        return None


@get("/misses", opt=needs(Right.read), sync_to_thread=True)
def list_misses(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show a page of the groups."""
    found = None
    state, sort = form.choice("state", STATES), form.choice("sort", MISS_SORTS)
    try:
        after = form.integer("after", low=0) or 0
        form.check()
        found = (
            shown_to(request, ports)
            .misses()
            .find(
                state=cast(MissState, state),
                sort=cast(MissSort, sort),
                after=after,
                limit=GROUPS_ON_A_PAGE,
            )
        )
    except KBError as error:
        form.refuse(error)
    return form_page(
        request, "misses.html", form, found=found, state=state, sort=sort, done=find_change(ports, form)
    )


@post("/misses/{group_id:int}/solve", opt=needs(Right.edit, Limiter.reading), sync_to_thread=True)
@show_again(show_misses)
def solve_misses(ports: FromPorts, request: PageRequest, group_id: PathId, form: FromForm) -> Page:
    """Solve a group by a fact that is there, if its questions find it."""
    fact_id, reason = form.integer("fact"), form.text("reason", limit=1000)
    if fact_id is None:
        form.mistakes.setdefault("fact", "Give a fact's id, such as 12.")
    form.check()
    assert fact_id is not None
    return lead_to_group(ports, request, group_id, fact_id, reason, anyway=form.flag("anyway"))


@on_each(post, *DECISION_PATHS, right=Right.edit)
@show_again(confirm_decision)
def decide_misses(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    decide = ports.kb.misses.dismiss if verb_of(request) == "dismiss" else ports.kb.misses.reopen
    seq = decide(_read_group_ids(form), **form.sign(request))
    return Redirect(f"/console/misses?change={seq}", status_code=303)


HANDLERS = (
    get("/questions", opt=needs(Right.read), sync_to_thread=True)(show_sets),
    keep_questions,
    get("/keep-question", opt=needs(Right.edit), sync_to_thread=True)(show_keeping),
    keep_output,
    get("/questions/{name:str}", opt=needs(Right.read), sync_to_thread=True)(show_set),
    add_question,
    start_run,
    read_run,
    compare_runs,
    get("/questions/{name:str}/items/{question_id:int}", opt=needs(Right.edit), sync_to_thread=True)(
        show_question
    ),
    edit_question,
    ask_to_remove_set,
    remove_set,
    list_misses,
    get("/misses/{group_id:int}", opt=needs(Right.read, Limiter.reading), sync_to_thread=True)(show_misses),
    solve_misses,
    *on_each(get, *DECISION_PATHS, right=Right.edit)(confirm_decision),
    *decide_misses,
)
