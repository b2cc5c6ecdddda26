"""Facts: find, read, add, edit, compare, delete and restore them. After an edit an undo is offered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    query,
    show_again,
    stretches,
    verb_of,
)
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.facts import nearest
from colmlm.api.routes.parameters import PathId, require_shown, shown_to
from colmlm.api.routes.responses import key_at_once
from colmlm.api.wire import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import InvalidValue, KBError, refusals
from colmlm.kb.facts.files import csv_lines, find_page_by_page, plan_edits
from colmlm.kb.facts.records import (
    ORDERS,
    OUTCOMES,
    REVIEWS,
    STATES,
    Contradicting,
    Edit,
    FactFound,
    FactPage,
    FactRecord,
    FactSearch,
    Marking,
    Order,
    PairPage,
    Review,
    ReviewVerdict,
    StalePage,
    State,
    VerdictKind,
)
from colmlm.kb.jobs.kinds import Compare
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.review.records import KINDS, Kind

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
    """Redirect to the fact, or for several facts to the list, with a note of what was done."""
    place = f"/{edit.fact_ids[0]}" if len(edit.fact_ids) == 1 else ""
    state = "&state=all" if not place else ""
    return Redirect(f"/console/facts{place}?change={edit.seq}{state}", status_code=303)


class FactsSearch:
    """The search that a form asks for."""

    def __init__(self, ports: Ports, request: PageRequest, form: Form) -> None:
        """Read the form. Raise `Mistakes`, `RightMissing` or `ModelMissing`, and what the search raises later."""
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

    def all_found(self) -> Iterator[FactFound]:
        """Yield all facts found, reading them page by page."""
        return find_page_by_page(self.page)


def read_filters(form: Form) -> dict[str, str]:
    """Give the filters that a form holds, for the addresses of other pages with the same."""
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


@post("/facts/delete", opt=needs(Right.edit), sync_to_thread=True)
@show_again(confirm_edit)
def delete_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Delete facts, all or none."""
    policy, ids = form.choice("policy", POLICIES), _read_fact_ids(form)
    return lead_to_fact(ports.kb.facts.delete(ids, abstain=policy == "abstain", **form.sign(request)))


@post("/facts/restore", opt=needs(Right.edit), sync_to_thread=True)
@show_again(confirm_edit)
def restore_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Bring deleted facts back, all or none."""
    edit = ports.kb.facts.restore(_read_fact_ids(form), **form.sign(request))
    key_at_once(ports, edit.fact_ids)  # a keyset made while they were deleted lacks their keys
    return lead_to_fact(edit)


# Repairs: edit facts one at a time or many at once, mark new ones in documents, move their spans, and undo edits.

MOST_PASTED = 1_000_000  # characters


def _key_and_lead(ports: Ports, edit: Edit) -> Page:
    """Key the facts that lack keys after the edit, and redirect to them."""
    if not edit.keyed or edit.kind == "restore":
        key_at_once(ports, edit.fact_ids)
    return lead_to_fact(edit)


@post("/facts/{fact_id:int}", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_fact)
def edit_fact(ports: FromPorts, request: PageRequest, fact_id: PathId, form: FromForm) -> Page:
    """Give a fact another value, another question, or both."""
    value, question = form.text("value"), form.optional("question", limit=2000)
    signature, fact = form.sign(request), ports.kb.facts.show(fact_id)
    edit = ports.kb.facts.edit(
        fact_id,
        None if value == fact.value.strip() and question != fact.question else value,
        question=None if question == fact.question else question,
        anyway=form.flag("anyway"),
        **signature,
    )
    return _key_and_lead(ports, edit)


@post("/documents/{document_id:int}/facts", opt=needs(Right.edit), sync_to_thread=True)
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
    if moving is not None:
        edit = ports.kb.facts.move(moving, span, **how)
    else:
        edit = ports.kb.facts.add_to(document_id, span, question=question, **how)
    led = _key_and_lead(ports, edit)
    return solve_by_new_fact(ports, request, form, edit) or led


@post("/changes/{seq:int}/undo", opt=needs(Right.edit), sync_to_thread=True)
def undo_change(ports: FromPorts, request: PageRequest, seq: PathId) -> Page:
    """Undo an edit; a page says why where that cannot be done any more."""
    return _key_and_lead(
        ports, ports.kb.facts.undo(seq, actor=request.user.name, reason=f"undo of change {seq}")
    )


@get("/facts/edit", opt=needs(Right.edit), sync_to_thread=True)
def ask_for_rows(request: PageRequest) -> Page:
    return form_page(request, "facts_edit.html", Form(), planned=None)


@post("/facts/edit", opt=needs(Right.edit), sync_to_thread=True)
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
            raise InvalidValue("batch", f"it edits more than {MAX_FACTS_PER_EDIT} facts in one change")
        if not doing or planned.refused or not planned.edits:
            return form_page(request, "facts_edit.html", form, planned=planned)
        edit = ports.kb.facts.edit_many(
            planned.corrections, actor=request.user.name, reason=reason, anyway=form.flag("anyway")
        )
    except KBError as error:
        return form_page(request, "facts_edit.html", form.refuse(error), planned=planned)
    return _key_and_lead(ports, edit)


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
        raise InvalidValue("pair", "a pair needs two facts")
    edit = ports.kb.comparisons.note_both_right(*ids, both_right=not form.flag("not"), **signature)
    return Redirect(f"/console/contradictions?change={edit.seq}", status_code=303)


@post("/contradictions/compare", opt=needs(Right.edit), sync_to_thread=True)
def start_comparison(ports: FromPorts, request: PageRequest) -> Page:
    """Queue a comparison of all facts."""
    job = Jobs(ports.kb).submit(Compare(), actor=request.user.name)
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


# Review: the inbox of proposed facts, judged one by one or many at once, and mended where they are nearly right.

REVIEWED_ON_A_PAGE = 50
SHOWN_LEFT = 20  # facts that were left as they are
REASON = "reviewed"
_SEEN = re.compile(r"([1-9][0-9]{0,17}):([1-9][0-9]{0,8})", re.ASCII)  # a fact and its version
INBOX_FILTERS = ("corpus", "document", "kind")
PAGES = {"fact": "/console/facts", "document": "/console/documents"}  # where a verdict may be given, too
DOUBTS = {
    "unverified": "the reader did not come back to it by its question, which was dropped",
    "forward": "its question told what only a later sentence says, and was dropped",
    "reveals": "its question gave the answer away, and was dropped",
}


def _read_verdicts(form: Form) -> list[ReviewVerdict]:
    """Read the verdict of the button that was pressed: on its own fact, or on the facts that were chosen."""
    kind = next((one for one in OUTCOMES if form.raw(one)), "accept")
    sent = form.all_values("fact") if form.raw(kind) == "chosen" else form.all_values(kind)
    read = []
    for said in sent[:MAX_FACTS_PER_EDIT]:
        if (seen := _SEEN.fullmatch(said)) is None:
            form.mistakes["fact"] = "Choose facts of the page."
            return []
        read.append(ReviewVerdict(int(seen[1]), cast(VerdictKind, kind), int(seen[2])))
    return read


def _lead_back(form: Form, change: int | None, left: list[int] | None = None) -> Redirect:
    kept = _read_inbox_filters(form)
    if (pages := PAGES.get(form.raw("to"))) and (ids := form.ids("id")) and not left:
        return Redirect(f"{pages}/{ids[0]}{query(change=change)}", status_code=303)
    return Redirect(
        f"/console/review{query(**kept, change=change, left=(left or [])[:SHOWN_LEFT] or None)}",
        status_code=303,
    )


def _read_inbox_filters(form: Form) -> dict[str, str]:
    return {name: form.raw(name) for name in INBOX_FILTERS if form.raw(name) not in ("", "any")}


def _show_inbox(ports: Ports, request: PageRequest, form: Form, fixing: int | None = None) -> Page:
    """Show a part of the inbox; the fact `fixing` with its form as it was sent, where it is in that part."""
    shown, found = shown_to(request, ports), None
    after, document_id = form.integer("after", low=0) or 0, form.integer("document")
    kind = cast(Kind, form.choice("kind", KINDS))
    error = form.error
    try:
        found = shown.inbox(
            corpus=form.optional("corpus"),
            document_id=document_id,
            kind=kind,
            after=after,
            limit=REVIEWED_ON_A_PAGE,
        )
    except KBError as refused:
        form.refuse(error or refused)
    left = form.ids("left")[:SHOWN_LEFT]
    return form_page(
        request,
        "review.html",
        form,
        found=found,
        corpora=corpus_options(ports),
        filters=_read_inbox_filters(form),
        doubts=DOUBTS,
        reason=REASON,
        fixing=fixing if found and fixing in [item.fact.fact_id for item in found.items] else None,
        done=find_change(ports, form),
        left=shown.facts(ports.kb.facts.show_many(left)) if left else [],
    )


@dataclass(frozen=True, slots=True)
class Fix:
    """A reviewer's new span or question for a fact in the inbox, and the version that they saw."""

    version: int | None
    question: str | None
    span: Marking
    how: Contradicting

    @classmethod
    def read(cls, form: Form, request: PageRequest) -> Fix:
        """Raise `Mistakes` where a field is not valid."""
        version, question = form.integer("version"), form.optional("question", limit=2000)
        start, end, text = form.integer("start", low=0), form.integer("end"), form.optional("text")
        how: Contradicting = {
            **form.sign(request),
            "allow_erased": form.flag("allow_erased"),
            "anyway": form.flag("anyway"),
        }
        return cls(version, question, {"start": start, "end": end, "text": text}, how)

    def apply(self, ports: Ports, fact: FactRecord) -> Edit:
        """Give the fact span and question in one change, as far as they differ; where neither does, accepts it.

        Raise `FactChanged` where somebody has settled or edited it since.
        """
        if fact.review != "proposed":
            raise refusals.fact_changed([fact.fact_id])  # somebody else was faster
        question = None if self.question == fact.question else self.question
        if self._is_elsewhere(fact):
            return ports.kb.facts.move(
                fact.fact_id, self.span, question=question, version=self.version, **self.how
            )
        if question is None:
            return self._accept(ports, fact)
        return ports.kb.facts.edit(
            fact.fact_id,
            question=question,
            version=self.version,
            actor=self.how["actor"],
            reason=self.how["reason"],
            anyway=self.how["anyway"],
        )

    def _accept(self, ports: Ports, fact: FactRecord) -> Edit:
        verdict = ReviewVerdict(fact.fact_id, "accept", self.version or fact.version)
        settled = ports.kb.review.settle([verdict], actor=self.how["actor"], reason=self.how["reason"])
        if settled.before:
            raise refusals.fact_changed([fact.fact_id])
        return Edit(settled.seqs[0], "accept", settled.fact_ids)

    def _is_elsewhere(self, fact: FactRecord) -> bool:
        """Say whether the span is another one than that of the fact; offsets count before words."""
        offsets = (self.span["start"], self.span["end"])
        if offsets == (None, None):
            return self.span["text"] not in (None, fact.value)
        return fact.source is None or offsets != (fact.source.start, fact.source.end)


@get("/review", opt=needs(Right.read), sync_to_thread=True)
def list_inbox(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the facts to review, those first where most is at stake."""
    return _show_inbox(ports, request, form)


@post("/review", opt=needs(Right.edit), sync_to_thread=True)
@show_again(_show_inbox)
def settle_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Accept or reject one fact, or all that were chosen, as far as nobody has settled them meanwhile."""
    verdicts = _read_verdicts(form)
    if not verdicts:
        form.mistakes["fact"] = "Choose at least one fact."
    settled = ports.kb.review.settle(verdicts, **form.sign(request))
    left = [one.fact_id for one in settled.before]
    return _lead_back(form, change=settled.seqs[-1] if settled.seqs else None, left=left)


@post("/review/{fact_id:int}", opt=needs(Right.edit), sync_to_thread=True)
def fix_fact(ports: FromPorts, request: PageRequest, fact_id: PathId, form: FromForm) -> Page:
    """Move the span of a fact, give it another question, or both, which accepts it."""
    try:
        edit = Fix.read(form, request).apply(ports, ports.kb.facts.show(fact_id))
    except KBError as error:
        return _show_inbox(ports, request, form.refuse(error), fixing=fact_id)
    if not edit.keyed:
        key_at_once(ports, edit.fact_ids)
    return _lead_back(form, change=edit.seq)


HANDLERS = (
    find_facts,
    download_facts,
    ask_for_fact,
    insert_fact,
    get("/facts/{fact_id:int}", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)(
        show_fact
    ),
    *on_each(get, "/facts/delete", "/facts/restore", right=Right.edit)(confirm_edit),
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
    list_inbox,
    settle_facts,
    fix_fact,
)
