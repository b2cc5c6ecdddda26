"""Questions: sets of kept questions, their runs with progress and results, and comparisons of two runs."""

from __future__ import annotations

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.nouns.question_files import questions_of_text
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.api.routes.questions import SetName
from colmlm.kb.errors import KBError, QuestionNotFound
from colmlm.kb.jobs.kinds import AskQuestions, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.questions.records import DraftQuestion, KeptQuestion

ON_A_PAGE = 100
RUNS = 20
MOST_PASTED = 1_000_000  # characters
LONGEST_SET = 100
WAYS = (
    ("read", "as people ask: answers that are read"),
    ("paper", "as the paper does: the nearest fact"),
    ("words", "as lookups by key and words"),
    ("reader", "as lookups that are read"),
)
OUTCOMES = ("all", "right", "wrong", "abstained")


@get("/questions", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    return _overview(ports, request, Form())


@post("/questions", opt=needs(Right.edit), sync_to_thread=True)
def keep(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Keep pasted questions in a set."""
    form = Form(data)
    try:
        name, corpus = form.text("name", limit=LONGEST_SET), form.optional("corpus")
        rows = form.text("rows", limit=MOST_PASTED)
        form.check()
        ports.kb.questions.add(name, questions_of_text(rows), corpus=corpus, actor=request.user.name)
    except KBError as error:
        return _overview(ports, request, form.refuse(error))
    return _to(name)


@get("/keep-question", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_keep(ports: FromPorts, request: PageRequest) -> Page:
    """Show the question of a stored output, with what it said as the expected value."""
    return _keeping(ports, request, Form.asked(request))


@post("/keep-question", opt=needs(Right.edit), sync_to_thread=True)
def keep_output(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    form = Form(data)
    try:
        name, output = form.text("name", limit=LONGEST_SET), form.integer("output")
        question = form.text("question", limit=2000)
        form.check()
        ports.kb.questions.take(
            name, output or 0, question=question, expected=_values(form), actor=request.user.name
        )
    except KBError as error:
        return _keeping(ports, request, form.refuse(error))
    return _to(name)


@get("/questions/{name:str}", opt=needs(Right.read), sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, name: SetName) -> Page:
    """Show a set: its runs, its questions, and the run that is under way."""
    return _show(ports, request, name, Form.asked(request))


@post("/questions/{name:str}", opt=needs(Right.edit), sync_to_thread=True)
def add(ports: FromPorts, request: PageRequest, name: SetName, data: Sent) -> Page:
    """Add one question to a set."""
    form = Form(data)
    try:
        question = form.text("question", limit=2000)
        form.check()
        ports.kb.questions.show(name)
        draft = DraftQuestion(question, tuple(_values(form)))
        ports.kb.questions.add(name, [draft], actor=request.user.name)
    except KBError as error:
        return _show(ports, request, name, form.refuse(error))
    return _to(name)


@post("/questions/{name:str}/run", opt=needs(Right.edit), sync_to_thread=True)
def run(ports: FromPorts, request: PageRequest, name: SetName, data: Sent) -> Page:
    """Ask all questions of a set, as a job."""
    form = Form(data)
    try:
        way = form.choice("way", [value for value, _ in WAYS])
        form.check()
        ports.kb.questions.show(name)
        chosen = {"mode": way} if way in ("read", "paper") else {"ranking": way}
        work = work_of(
            AskQuestions.kind, {"question_set": name, "accepted_only": form.flag("accepted_only"), **chosen}
        )
        job = Jobs(ports.kb).submit(work, actor=request.user.name)
    except KBError as error:
        return _show(ports, request, name, form.refuse(error))
    return Redirect(f"/console/questions/{name}?job={job.job_id}", status_code=303)


@get("/questions/{name:str}/runs/{run_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read_run(ports: FromPorts, request: PageRequest, name: SetName, run_id: PathId) -> Page:
    """Show what came of each question of a run, those that are not right first."""
    form = Form.asked(request)
    which, after = form.choice("outcome", OUTCOMES), form.integer("after") or 0
    found = ports.kb.questions.show_run(name, run_id)
    items = shown_to(request, ports).asked(ports.kb.questions.items(name, run_id))
    items = sorted(items, key=lambda item: item.outcome == "right")
    chosen = [item for item in items if which in ("all", item.outcome)]
    shown, more = chosen[after : after + ON_A_PAGE], after + ON_A_PAGE
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
def compare(ports: FromPorts, request: PageRequest, name: SetName) -> Page:
    """Show what came out otherwise in another run, by default in the last two."""
    form = Form.asked(request)
    found = ports.kb.questions.compare(name, form.integer("before"), form.integer("after"))
    return form_page(
        request, "question_compare.html", form, name=name, found=shown_to(request, ports).compared(found)
    )


@get("/questions/{name:str}/items/{question_id:int}", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_edit(ports: FromPorts, request: PageRequest, name: SetName, question_id: PathId) -> Page:
    return _editing(ports, request, name, question_id, Form())


@post("/questions/{name:str}/items/{question_id:int}", opt=needs(Right.edit), sync_to_thread=True)
def edit(ports: FromPorts, request: PageRequest, name: SetName, question_id: PathId, data: Sent) -> Page:
    """Give a question another text and other values, or with `do` remove it."""
    form = Form(data)
    try:
        if form.choice("do", ("edit", "remove")) == "remove":
            ports.kb.questions.remove(name, [question_id])
            return _to(name)
        question = form.text("question", limit=2000)
        form.check()
        ports.kb.questions.edit(name, question_id, question, _values(form))
    except KBError as error:
        return _editing(ports, request, name, question_id, form.refuse(error))
    return _to(name)


@get("/questions/{name:str}/remove", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_remove(ports: FromPorts, request: PageRequest, name: SetName) -> Page:
    return form_page(request, "question_remove.html", Form(), kept=ports.kb.questions.show(name))


@post("/questions/{name:str}/remove", opt=needs(Right.edit), sync_to_thread=True)
def remove(ports: FromPorts, name: SetName) -> Page:
    """Remove a set with its runs."""
    ports.kb.questions.remove(name)
    return Redirect("/console/questions", status_code=303)


HANDLERS = (
    overview, keep, ask_to_keep, keep_output, read, add, run, read_run, compare, ask_to_edit, edit, ask_to_remove,
    remove,
)  # fmt: skip


def _to(name: str) -> Page:
    return Redirect(f"/console/questions/{name}", status_code=303)


def _values(form: Form) -> list[str]:
    """Reads the expected values, one in a line."""
    return [line.strip() for line in (form.optional("expected") or "").split("\n") if line.strip()]


def _overview(ports: Ports, request: PageRequest, form: Form) -> Page:
    sets, corpora = ports.kb.questions.all(), ports.kb.corpora.all()
    return form_page(request, "questions.html", form, sets=sets, corpora=[one.corpus for one in corpora])


def _keeping(ports: Ports, request: PageRequest, form: Form) -> Page:
    output = form.integer("output") or 0
    draft = ports.kb.questions.taken(output)
    sets = [one.name for one in ports.kb.questions.all()]
    return form_page(request, "question_keep.html", form, output=output, draft=draft, sets=sets)


def _editing(ports: Ports, request: PageRequest, name: str, question_id: int, form: Form) -> Page:
    found = ports.kb.questions.questions(name, question_id - 1, 1)
    if not found or found[0].question_id != question_id:
        raise QuestionNotFound([question_id])
    (shown,) = shown_to(request, ports).questions(found)
    return form_page(request, "question_edit.html", form, name=name, kept=shown)


def _show(ports: Ports, request: PageRequest, name: str, form: Form) -> Page:
    kb, after = ports.kb.questions, form.integer("after") or 0
    kept, found = kb.show(name), kb.questions(name, after, ON_A_PAGE + 1)
    shown: list[KeptQuestion] = shown_to(request, ports).questions(found[:ON_A_PAGE])
    return form_page(
        request,
        "question_set.html",
        form,
        kept=kept,
        questions=shown,
        more=shown[-1].question_id if len(found) > ON_A_PAGE else None,
        runs=kb.runs(name, None, RUNS),
        ways=WAYS,
        job=_job(ports, request, form),
        workers=Jobs(ports.kb).num_workers(),
    )


def _job(ports: Ports, request: PageRequest, form: Form) -> JobRecord | None:
    """Gives the job that the query string names, where it asks questions and the token may see that."""
    number = form.integer("job")
    if number is None or not request.user.may(AskQuestions.right):
        return None
    job = Jobs(ports.kb).get(number)
    return job if job.kind == AskQuestions.kind else None
