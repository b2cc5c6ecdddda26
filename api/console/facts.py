"""Facts: find, read, add, delete and restore them. After an edit, of which `mending` has others, an undo is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import cast

from litestar import get, post
from litestar.response import Redirect, Stream

from colmlm.api.console.views import (
    Form,
    Page,
    PageRequest,
    Sent,
    blocks,
    excerpts,
    form_page,
    passage,
    solved_by,
    stretches,
)
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.nouns.fact_table import lines, pages
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.facts import nearest, require_shown
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.api.routes.responses import key_at_once
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import (
    ORDERS,
    STATES,
    Edit,
    FactFound,
    FactPage,
    FactRecord,
    FactSearch,
    Order,
    State,
)
from colmlm.kb.facts.reviews import REVIEWS, Review
from colmlm.kb.log.records import ChangeRecord

ON_A_PAGE = 50
POLICIES = ("successor", "abstain")


@get("/facts", opt=needs(Right.read), sync_to_thread=True)
def find(ports: FromPorts, request: PageRequest) -> Page:
    """Show a page of the facts that are searched for."""
    form = Form.asked(request)
    found = None
    try:
        after = form.integer("after", low=0) or 0
        found = Finding(ports, request, form).page(after=after, limit=ON_A_PAGE)
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "facts.html",
        form,
        found=found,
        state=form.raw("state", "live"),
        filters=filters(form),
        excerpts=excerpts,
        most=MAX_FACTS_PER_EDIT,
        has_encoder=ports.encoder is not None,
        corpora=corpus_options(ports),
        done=done(ports, form),
    )


@get("/facts/download", opt=needs(Right.read, Lane.long_reads), sync_to_thread=True)
def download(ports: FromPorts, request: PageRequest) -> Stream:
    """Download all facts that are searched for, as CSV."""
    return Stream(
        lines(Finding(ports, request, Form.asked(request)).every()),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="facts.csv"'},
    )


@get("/facts/new", opt=needs(Right.edit), sync_to_thread=True)
def new(request: PageRequest) -> Page:
    """Show the form, filled in with what the query string says."""
    return form_page(request, "fact_new.html", Form.asked(request))


@post("/facts/new", opt=needs(Right.edit), sync_to_thread=True)
def insert(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Add a fact that no document says."""
    form = Form(data)
    try:
        question, value = form.text("question", limit=2000), form.text("value")
        answer, reason = form.optional("answer"), form.text("reason", limit=1000)
        form.check()
        edit = ports.kb.facts.add(
            question,
            value,
            answer=answer,
            actor=request.user.name,
            reason=reason,
            allow_erased=form.flag("allow_erased"),
            anyway=form.flag("anyway"),
        )
    except KBError as error:
        return form_page(request, "fact_new.html", form.refuse(error))
    key_at_once(ports, edit.fact_ids)
    return solved_by(ports, request, form, edit) or to_fact(edit)


@get("/facts/{fact_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, fact_id: PathId) -> Page:
    return show_fact(ports, request, fact_id, Form.asked(request))


@get("/facts/delete", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_delete(ports: FromPorts, request: PageRequest) -> Page:
    """Ask for confirmation before facts are deleted: show which, how many, and what lookups for them will get."""
    return _ask(ports, request, Form.asked(request), "delete")


@get("/facts/restore", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_restore(ports: FromPorts, request: PageRequest) -> Page:
    return _ask(ports, request, Form.asked(request), "restore")


@post("/facts/delete", opt=needs(Right.edit), sync_to_thread=True)
def delete(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Delete facts, all or none."""
    form = Form(data)
    policy = form.choice("policy", POLICIES)
    return _edit(ports, request, form, "delete", lambda ids, reason: ports.kb.facts.delete(
        ids, actor=request.user.name, reason=reason, abstain=policy == "abstain"
    ))  # fmt: skip


@post("/facts/restore", opt=needs(Right.edit), sync_to_thread=True)
def restore(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Bring deleted facts back, all or none."""
    return _edit(ports, request, Form(data), "restore", lambda ids, reason: ports.kb.facts.restore(
        ids, actor=request.user.name, reason=reason
    ))  # fmt: skip


@get("/documents/{document_id:int}", opt=needs(Right.read), sync_to_thread=True)
def document(ports: FromPorts, request: PageRequest, document_id: PathId) -> Page:
    return show_document(ports, request, document_id, Form.asked(request))


HANDLERS = (
    find, download, new, insert, read, ask_to_delete, ask_to_restore, delete, restore, document,
)  # fmt: skip


def done(ports: Ports, form: Form) -> ChangeRecord | None:
    """Gives the change that the query string names, as the log holds it, for the note on what was just done."""
    seq = form.integer("change")
    return next(iter(ports.kb.log.changes(after=seq - 1, limit=1)), None) if seq else None


def corpus_options(ports: Ports) -> list[tuple[str, str]]:
    """Gives the options of a field that chooses a corpus."""
    return [("", "every corpus"), *((stats.corpus, stats.corpus) for stats in ports.kb.corpora.all())]


def show_document(ports: Ports, request: PageRequest, document_id: int, form: Form) -> Page:
    """Shows a document as it was ingested, with its facts marked, and a form for another or for one that moves."""
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
        done=done(ports, form),
        chosen=form.integer("fact"),
        moving=next((fact for fact in facts if str(fact.fact_id) == form.raw("move")), None),
    )


def show_fact(ports: Ports, request: PageRequest, fact_id: int, form: Form) -> Page:
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
        done=done(ports, form),
    )


def _ask(ports: Ports, request: PageRequest, form: Form, verb: str) -> Page:
    shown = shown_to(request, ports)
    if form.flag("every"):
        facts: list[FactRecord] = list(islice(Finding(ports, request, form).every(), MAX_FACTS_PER_EDIT))
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


def _edit(
    ports: Ports, request: PageRequest, form: Form, verb: str, do: Callable[[list[int], str], Edit]
) -> Page:
    try:
        ids, reason = form.ids("fact"), form.text("reason", limit=1000)
        if not ids:
            form.mistakes["fact"] = "Choose at least one fact."
        form.check()
        edit = do(ids, reason)
    except KBError as error:
        return _ask(ports, request, form.refuse(error), verb)
    if verb == "restore":
        key_at_once(ports, edit.fact_ids)  # a keyset made while they were deleted lacks their keys
    return to_fact(edit)


def to_fact(edit: Edit) -> Redirect:
    """Redirects to the fact, or for several facts to the list, with a note of what was done."""
    place = f"/{edit.fact_ids[0]}" if len(edit.fact_ids) == 1 else ""
    state = "&state=all" if not place else ""
    return Redirect(f"/console/facts{place}?change={edit.seq}{state}", status_code=303)


# What the page of facts searches for: its form read, the search done, and all that it finds as ids or as CSV.

WAYS = ("words", "exactly", "meaning")
FILTERS = ("text", "way", "corpus", "document", "state", "review", "actor", "kind", "since", "until", "sort")


class Finding:
    """The search that a form asks for."""

    def __init__(self, ports: Ports, request: PageRequest, form: Form) -> None:
        """Reads the form. Raises `Mistakes`, `RightMissing` or `ModelMissing`, and what the search raises later."""
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
            "order": cast(Order, form.choice("sort", ORDERS)),
        }
        form.check()
        require_shown(request, self._sought)
        self._shown, self._nearest = shown_to(request, ports), nearest(ports, near, self._sought)

    def page(self, *, after: int, limit: int) -> FactPage:
        self._sought["after"], self._sought["limit"] = after, limit
        return self._shown.search(nearest=self._nearest, **self._sought)

    def every(self) -> Iterator[FactFound]:
        """Gives all that are found, by pages."""
        return pages(self.page)


def filters(form: Form) -> dict[str, str]:
    """Gives the filters that a form holds, for the addresses of other pages with the same."""
    return {name: form.raw(name) for name in FILTERS if form.raw(name)}
