"""Facts: find, read, add, edit, compare, delete and restore them. After an edit an undo is offered.

A caller with a right on some corpora edits only facts in them, and is shown no others (`editing_in_scope`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, cast

from litestar import get, post
from litestar.response import Redirect, Stream

from colmlm.api.console.questions import solve_by_new_fact
from colmlm.api.console.views import (
    Form,
    FromForm,
    Page,
    PageRequest,
    blocks,
    corpus_options,
    excerpts,
    find_change,
    find_keeping,
    form_page,
    on_each,
    passage,
    show_again,
    stretches,
    verb_of,
)
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.facts import nearest
from colmlm.api.routes.parameters import PathId, editing_in_scope, require_shown, shown_to
from colmlm.api.routes.responses import key_at_once
from colmlm.api.wire import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import InvalidValue, KBError
from colmlm.kb.facts.files import csv_lines, find_page_by_page, plan_edits
from colmlm.kb.facts.records import (
    FACT_SORTS,
    REVIEWS,
    STATES,
    Contradicting,
    Edit,
    FactFound,
    FactPage,
    FactRecord,
    FactSearch,
    FactSort,
    Marking,
    PairPage,
    Review,
    StalePage,
    State,
)
from colmlm.kb.jobs.kinds import Compare
from colmlm.kb.jobs.queue import Jobs

FACTS_ON_A_PAGE = 50
POLICIES = ("successor", "abstain")
WAYS = ("words", "exactly", "meaning")
FILTERS = ("text", "way", "corpus", "document", "state", "review", "actor", "kind", "since", "until", "sort")


def show_document(ports: FromPorts, request: PageRequest, document_id: PathId, form: FromForm) -> Page:
    """Show a document as it was ingested, with its facts marked, and a form for another or for one that moves."""
    shown = shown_to(request, ports)
    record, text = shown.document(document_id)
    facts = shown.facts(ports.kb.facts.every_of(document_id))
    parts = stretches(text, facts)
    marked = {part.fact.fact_id for part in parts if part.fact}
    return form_page(
        request,
        "document.html",
        form,
        document=record,
        facts=facts,
        blocks=blocks(parts),
        overlapping=[fact for fact in facts if fact.fact_id not in marked],
        to_review=[fact for fact in facts if fact.review == "proposed" and fact.deleted_seq is None],
        at_once=MAX_FACTS_PER_EDIT,
        done=find_change(ports, form),
        **find_keeping(ports, request, document_id=document_id),
        chosen=form.integer("fact"),
        moving=next((fact for fact in facts if str(fact.fact_id) == form.raw("move")), None),
    )


def show_fact(ports: FromPorts, request: PageRequest, fact_id: PathId, form: FromForm) -> Page:
    shown = shown_to(request, ports)
    trace = shown.trace_fact(fact_id)
    source = trace.fact.source
    return form_page(
        request,
        "fact.html",
        form,
        trace=trace,
        fact=trace.fact,
        around=passage(shown.document_text(source.document_id), source.start, source.end) if source else None,
        uses=shown.uses(fact_id),
        done=find_change(ports, form),
        **find_keeping(ports, request, fact_id=fact_id, document_id=source.document_id if source else None),
    )


def confirm_edit(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Ask for confirmation before facts are deleted or restored: show which, and what lookups for them will get."""
    shown, verb = shown_to(request, ports), verb_of(request)
    if form.flag("every"):
        facts: list[FactRecord] = list(
            islice(FactsSearch(ports, request, form).all_found(), MAX_FACTS_PER_EDIT)
        )
    else:
        facts = [shown.fact(fact_id) for fact_id in form.ids("fact")[:MAX_FACTS_PER_EDIT]]
    return form_page(
        request,
        "fact_edit.html",
        form,
        verb=verb,
        facts=facts,
        fitting=[fact for fact in facts if (fact.deleted_seq is None) == (verb == "delete")],
        also_said=ports.kb.comparisons.also_said([fact.fact_id for fact in facts])
        if verb == "delete"
        else [],
        policies=POLICIES,
    )


def _read_fact_ids(form: Form) -> list[int]:
    ids = form.ids("fact")
    if not ids:
        form.mistakes["fact"] = "Choose at least one fact."
    return ids


def lead_to_fact(edit: Edit) -> Redirect:
    """Redirect to the fact of an edit, or for several facts to the list, with a note of the change."""
    place = f"/{edit.fact_ids[0]}" if len(edit.fact_ids) == 1 else ""
    state = "&state=all" if not place else ""
    return Redirect(f"/console/facts{place}?change={edit.seq}{state}", status_code=303)


class FactsSearch:
    """The search for facts that a form of the console asks for."""

    def __init__(self, ports: Ports, request: PageRequest, form: Form) -> None:
        """Read a form. Raise `Mistakes`, `RightMissing` or `ModelMissing`; `page` raises the search's errors."""
        text, way = form.optional("text", limit=1000), form.choice("way", WAYS)
        near = text if way == "meaning" else None
        self._sought: FactSearch = {
            "text": None if near else text,
            "literally": way == "exactly",
            "corpus": form.optional("corpus"),
            "document_id": form.integer("document"),
            "state": cast(State, form.choice("state", STATES)),
            "actor": form.optional("actor", limit=200),
            "kind": form.optional("kind", limit=100),
            "since": form.moment("since"),
            "until": form.moment("until"),
            "review": cast(Review | None, form.choice("review", ("", *REVIEWS)) or None),
            "sort": cast(FactSort, form.choice("sort", FACT_SORTS)),
        }
        form.check()
        require_shown(request, self._sought)
        self._shown, self._nearest = shown_to(request, ports), nearest(ports, near, self._sought)

    def page(self, *, after: int, limit: int) -> FactPage:
        self._sought["after"], self._sought["limit"] = after, limit
        return self._shown.search(nearest=self._nearest, **self._sought)

    def all_found(self) -> Iterator[FactFound]:
        """Yield all facts found, reading them page by page."""
        return find_page_by_page(self.page)


def read_filters(form: Form) -> dict[str, str]:
    """Give the filters of a search that a form has, for links to pages with the same filters."""
    return {name: form.raw(name) for name in FILTERS if form.raw(name)}


@get("/facts", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def find_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show a page of the facts that are searched for."""
    found = None
    try:
        after = form.integer("after", low=0) or 0
        found = FactsSearch(ports, request, form).page(after=after, limit=FACTS_ON_A_PAGE)
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "facts.html",
        form,
        found=found,
        state=form.raw("state", "live"),
        filters=read_filters(form),
        excerpts=excerpts,
        most=MAX_FACTS_PER_EDIT,
        has_encoder=ports.encoder is not None,
        corpora=corpus_options(ports),
        done=find_change(ports, form),
    )


@get(
    "/facts/download", opt=needs(Right.read, Limiter.long_reads, scoped=CorpusLimit.rows), sync_to_thread=True
)
def download_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Stream:
    """Download all facts that are searched for, as CSV."""
    found = FactsSearch(ports, request, form).all_found()
    begun = list(islice(found, 1))  # what is refused is refused before the response begins
    return Stream(
        csv_lines(chain(begun, found)),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="facts.csv"'},
    )


@get("/facts/new", opt=needs(Right.edit), sync_to_thread=True)
def ask_for_fact(request: PageRequest, form: FromForm) -> Page:
    """Show the form, filled in with what the query string says."""
    return form_page(request, "fact_new.html", form)


@post("/facts/new", opt=needs(Right.edit), sync_to_thread=True)
def insert_fact(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Add a fact that no document says."""
    try:
        question, value = form.text("question", limit=2000), form.text("value")
        edit = ports.kb.facts.add(
            question,
            value,
            answer=form.optional("answer"),
            allow_erased=form.flag("allow_erased"),
            anyway=form.flag("anyway"),
            **form.sign(request),
        )
    except KBError as error:
        return form_page(request, "fact_new.html", form.refuse(error))
    key_at_once(ports, edit.fact_ids)
    return solve_by_new_fact(ports, request, form, edit) or lead_to_fact(edit)


@post("/facts/delete", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(confirm_edit)
def delete_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Delete facts, all or none."""
    policy, ids = form.choice("policy", POLICIES), _read_fact_ids(form)
    signature = form.sign(request)
    with editing_in_scope(ports, fact_ids=ids):
        return lead_to_fact(ports.kb.facts.delete(ids, abstain=policy == "abstain", **signature))


@post("/facts/restore", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(confirm_edit)
def restore_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Bring deleted facts back, all or none."""
    ids, signature = _read_fact_ids(form), form.sign(request)
    with editing_in_scope(ports, fact_ids=ids):
        edit = ports.kb.facts.restore(ids, **signature)
        key_at_once(ports, edit.fact_ids)  # a keyset made while they were deleted lacks their keys
    return lead_to_fact(edit)


# Repairs: edit facts one at a time or many at once, mark new ones in documents, move their spans, and undo edits.

MOST_PASTED = 1_000_000  # characters


def _key_and_lead(ports: Ports, edit: Edit) -> Page:
    """Make the keys that the facts of an edit lack, and redirect to these facts."""
    if not edit.keyed or edit.kind == "restore":
        key_at_once(ports, edit.fact_ids)
    return lead_to_fact(edit)


@post("/facts/{fact_id:int}", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(show_fact)
def edit_fact(ports: FromPorts, request: PageRequest, fact_id: PathId, form: FromForm) -> Page:
    """Give a fact another value, another question, or both."""
    value, question = form.text("value"), form.optional("question", limit=2000)
    signature, fact = form.sign(request), ports.kb.facts.show(fact_id)
    with editing_in_scope(ports, fact_ids=[fact_id]):
        edit = ports.kb.facts.edit(
            fact_id,
            None if value == fact.value.strip() and question != fact.question else value,
            question=None if question == fact.question else question,
            anyway=form.flag("anyway"),
            **signature,
        )
        return _key_and_lead(ports, edit)


@post(
    "/documents/{document_id:int}/facts",
    opt=needs(Right.edit, scoped=CorpusLimit.targets),
    sync_to_thread=True,
)
@show_again(show_document)
def mark_fact(ports: FromPorts, request: PageRequest, document_id: PathId, form: FromForm) -> Page:
    """Add a fact to a document, or with `move` move one within it."""
    span: Marking = {
        "start": form.integer("start", low=0),
        "end": form.integer("end"),
        "text": form.optional("text"),
    }
    question, moving = form.optional("question", limit=2000), form.integer("move")
    how: Contradicting = {
        **form.sign(request),
        "allow_erased": form.flag("allow_erased"),
        "anyway": form.flag("anyway"),
    }
    ids = [] if moving is None else [moving]
    with editing_in_scope(ports, document_id=document_id, fact_ids=ids):
        if moving is not None:
            edit = ports.kb.facts.move(moving, span, **how)
        else:
            edit = ports.kb.facts.add_to(document_id, span, question=question, **how)
        led = _key_and_lead(ports, edit)
    return solve_by_new_fact(ports, request, form, edit) or led


@post("/changes/{seq:int}/undo", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
def undo_change(ports: FromPorts, request: PageRequest, seq: PathId) -> Page:
    """Undo an edit; a page says why where that cannot be done any more."""
    with editing_in_scope(ports, seq=seq):
        edit = ports.kb.facts.undo(seq, actor=request.user.name, reason=f"undo of change {seq}")
        return _key_and_lead(ports, edit)


@get("/facts/edit", opt=needs(Right.edit, scoped=CorpusLimit.rows), sync_to_thread=True)
def ask_for_rows(request: PageRequest) -> Page:
    return form_page(request, "facts_edit.html", Form(), planned=None)


@post("/facts/edit", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
def edit_rows(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Edit the facts of pasted rows in one change; first show what that would do, and which rows cannot be used."""
    planned = None
    try:
        rows = form.text("rows", limit=MOST_PASTED)
        doing = form.choice("do", ("show", "edit")) == "edit"
        reason = form.text("reason", limit=1000) if doing else ""
        form.check()
        planned = plan_edits(rows, ports.kb.facts.show_many)
        if len(planned.edits) > MAX_FACTS_PER_EDIT:
            raise InvalidValue("number of edits", f"{len(planned.edits)} is above {MAX_FACTS_PER_EDIT}")
        if not doing or planned.refused or not planned.edits:
            return form_page(request, "facts_edit.html", form, planned=planned)
        with editing_in_scope(ports, fact_ids=[one.fact_id for one in planned.fact_edits]):
            edit = ports.kb.facts.edit_many(
                planned.fact_edits, actor=request.user.name, reason=reason, anyway=form.flag("anyway")
            )
            return _key_and_lead(ports, edit)
    except KBError as error:
        return form_page(request, "facts_edit.html", form.refuse(error), planned=planned)


# Contradictions: facts that answer one question with two values, say the same, or are stale, and how to end that.

PAIRS_ON_A_PAGE = 20
LISTS = ("contradictions", "duplicates", "stale", "noted")


def show_contradictions(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    shown = form.raw("list") if form.raw("list") in LISTS else LISTS[0]
    found: PairPage | StalePage | None = None
    try:
        found = _find_pairs(ports, request, form, shown)
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "contradictions.html",
        form,
        found=found,
        shown=shown,
        lists=LISTS,
        corpora=corpus_options(ports),
        done=find_change(ports, form),
    )


def _find_pairs(ports: Ports, request: PageRequest, form: Form, shown: str) -> PairPage | StalePage:
    part: dict[str, Any] = {
        "corpus": form.optional("corpus"),
        "after": form.integer("after", low=0) or 0,
        "limit": PAIRS_ON_A_PAGE,
    }
    form.check()
    view = shown_to(request, ports)
    if shown == "stale":
        return view.stale(**part)
    if shown == "duplicates":
        return view.pairs("duplicates", **part)
    return view.pairs("contradictions", noted=shown == "noted", **part)


@post("/contradictions", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_contradictions)
def note_both_right(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Note that two facts are both right, or with `not` that they are not."""
    ids, signature = form.ids("fact"), form.sign(request)
    if len(ids) != 2:
        raise InvalidValue("pair", f"the number of facts is {len(ids)}. Choose two")
    edit = ports.kb.comparisons.note_both_right(*ids, both_right=not form.flag("not"), **signature)
    return Redirect(f"/console/contradictions?change={edit.seq}", status_code=303)


@post("/contradictions/compare", opt=needs(Right.edit), sync_to_thread=True)
def start_comparison(ports: FromPorts, request: PageRequest) -> Page:
    """Queue a comparison of all facts."""
    job = Jobs(ports.kb).submit(Compare(), actor=request.user.name)
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


HANDLERS = (
    find_facts,
    download_facts,
    ask_for_fact,
    insert_fact,
    get("/facts/{fact_id:int}", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)(
        show_fact
    ),
    *on_each(get, "/facts/delete", "/facts/restore", right=Right.edit, scoped=CorpusLimit.rows)(confirm_edit),
    delete_facts,
    restore_facts,
    get("/documents/{document_id:int}", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)(
        show_document
    ),
    edit_fact,
    mark_fact,
    undo_change,
    ask_for_rows,
    edit_rows,
    get("/contradictions", opt=needs(Right.read), sync_to_thread=True)(show_contradictions),
    note_both_right,
    start_comparison,
)
