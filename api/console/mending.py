"""Mending: edit facts one at a time or many at once, mark new ones in documents, move their spans, and undo edits."""

from __future__ import annotations

from litestar import get, post

from colmlm.api.console.facts import show_document, show_fact, to_fact
from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page, solved_by
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.nouns.corrections import plan
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId
from colmlm.api.routes.responses import key_at_once
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import InvalidValue, KBError
from colmlm.kb.facts.records import Contradicting, Edit, Marking

MOST_PASTED = 1_000_000  # characters


@post("/facts/{fact_id:int}", opt=needs(Right.edit), sync_to_thread=True)
def update(ports: FromPorts, request: PageRequest, fact_id: PathId, data: Sent) -> Page:
    """Give a fact another value, another question, or both."""
    form = Form(data)
    try:
        value, question = form.text("value"), form.optional("question", limit=2000)
        reason = form.text("reason", limit=1000)
        form.check()
        fact = ports.kb.facts.show(fact_id)
        edit = ports.kb.facts.edit(
            fact_id,
            None if value == fact.value.strip() and question != fact.question else value,
            question=None if question == fact.question else question,
            actor=request.user.name,
            reason=reason,
            anyway=form.flag("anyway"),
        )
    except KBError as error:
        return show_fact(ports, request, fact_id, form.refuse(error))
    return _settled(ports, edit)


@post("/documents/{document_id:int}/facts", opt=needs(Right.edit), sync_to_thread=True)
def mark(ports: FromPorts, request: PageRequest, document_id: PathId, data: Sent) -> Page:
    """Add a fact to a document, or with `move` move one within it."""
    form = Form(data)
    try:
        span: Marking = {
            "start": form.integer("start", low=0),
            "end": form.integer("end"),
            "text": form.optional("text"),
        }
        question, moving = form.optional("question", limit=2000), form.integer("move")
        how: Contradicting = {
            "actor": request.user.name,
            "reason": form.text("reason", limit=1000),
            "allow_erased": form.flag("allow_erased"),
            "anyway": form.flag("anyway"),
        }
        form.check()
        if moving is not None:
            edit = ports.kb.facts.move(moving, span, **how)
        else:
            edit = ports.kb.facts.add_to(document_id, span, question=question, **how)
    except KBError as error:
        return show_document(ports, request, document_id, form.refuse(error))
    led = _settled(ports, edit)
    return solved_by(ports, request, form, edit) or led


@post("/changes/{seq:int}/undo", opt=needs(Right.edit), sync_to_thread=True)
def undo(ports: FromPorts, request: PageRequest, seq: PathId) -> Page:
    """Undo an edit; a page says why where that cannot be done any more."""
    return _settled(ports, ports.kb.facts.undo(seq, actor=request.user.name, reason=f"undo of change {seq}"))


@get("/facts/edit", opt=needs(Right.edit), sync_to_thread=True)
def ask_for_many(request: PageRequest) -> Page:
    return form_page(request, "facts_edit.html", Form(), planned=None)


@post("/facts/edit", opt=needs(Right.edit), sync_to_thread=True)
def edit_many(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Edit the facts of pasted rows in one change; first show what that would do, and which rows cannot be used."""
    form = Form(data)
    planned = None
    try:
        rows = form.text("rows", limit=MOST_PASTED)
        doing = form.choice("do", ("show", "edit")) == "edit"
        reason = form.text("reason", limit=1000) if doing else ""
        form.check()
        planned = plan(rows, ports.kb.facts.show_many)
        if len(planned.edits) > MAX_FACTS_PER_EDIT:
            raise InvalidValue("batch", f"it edits more than {MAX_FACTS_PER_EDIT} facts in one change")
        if not doing or planned.refused or not planned.edits:
            return form_page(request, "facts_edit.html", form, planned=planned)
        edit = ports.kb.facts.edit_many(
            planned.corrections, actor=request.user.name, reason=reason, anyway=form.flag("anyway")
        )
    except KBError as error:
        return form_page(request, "facts_edit.html", form.refuse(error), planned=planned)
    return _settled(ports, edit)


def _settled(ports: Ports, edit: Edit) -> Page:
    """Keys the facts that lack keys after the edit, and redirects to them."""
    if not edit.keyed or edit.kind == "restore":
        key_at_once(ports, edit.fact_ids)
    return to_fact(edit)


HANDLERS = (update, mark, undo, ask_for_many, edit_many)
