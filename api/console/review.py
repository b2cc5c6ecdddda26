"""Review: the inbox of proposed facts, judged one by one or many at once, and mended where they are nearly right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import (
    Form,
    FromForm,
    Page,
    PageRequest,
    corpus_options,
    find_change,
    form_page,
    query,
    show_again,
)
from colmlm.api.middleware.auth import CorpusLimit, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId, editing_in_scope, shown_to
from colmlm.api.routes.responses import key_at_once
from colmlm.api.wire import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import KBError, refusals
from colmlm.kb.facts.records import (
    OUTCOMES,
    Contradicting,
    Edit,
    FactRecord,
    Marking,
    ReviewVerdict,
    VerdictKind,
)
from colmlm.kb.review.records import KINDS, Kind

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
    """Show a page of the inbox, with the sent form at the fact `fixing` if the page has that fact."""
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
class FactCorrection:
    """A reviewer's new span or question for a fact in the inbox, and the version that they saw."""

    version: int | None
    question: str | None
    span: Marking
    how: Contradicting

    @classmethod
    def from_form(cls, form: Form, request: PageRequest) -> FactCorrection:
        """Read the fields of a form. Raises `Mistakes` if one is not valid."""
        version, question = form.integer("version"), form.optional("question", limit=2000)
        start, end, text = form.integer("start", low=0), form.integer("end"), form.optional("text")
        how: Contradicting = {
            **form.sign(request),
            "allow_erased": form.flag("allow_erased"),
            "anyway": form.flag("anyway"),
        }
        return cls(version, question, {"start": start, "end": end, "text": text}, how)

    def apply(self, ports: Ports, fact: FactRecord) -> Edit:
        """Set the fact's span and question, as far as they differ, in one change; accept it if neither does.

        Raise `FactChanged` if somebody has settled or edited it since.
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
        """Tell whether the form's span differs from the fact's: by its offsets if they are given, else by its text."""
        offsets = (self.span["start"], self.span["end"])
        if offsets == (None, None):
            return self.span["text"] not in (None, fact.value)
        return fact.source is None or offsets != (fact.source.start, fact.source.end)


@get("/review", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def list_inbox(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the facts to review, those first where most is at stake."""
    return _show_inbox(ports, request, form)


@post("/review", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(_show_inbox)
def settle_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Accept or reject one fact, or all that were chosen, as far as nobody has settled them meanwhile."""
    verdicts = _read_verdicts(form)
    if not verdicts:
        form.mistakes["fact"] = "Choose at least one fact."
    signature = form.sign(request)
    with editing_in_scope(ports, fact_ids=[one.fact_id for one in verdicts]):
        settled = ports.kb.review.settle(verdicts, **signature)
    left = [one.fact_id for one in settled.before]
    return _lead_back(form, change=settled.seqs[-1] if settled.seqs else None, left=left)


@post("/review/{fact_id:int}", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
def fix_fact(ports: FromPorts, request: PageRequest, fact_id: PathId, form: FromForm) -> Page:
    """Move the span of a fact, give it another question, or both, which accepts it."""
    try:
        fix, fact = FactCorrection.from_form(form, request), ports.kb.facts.show(fact_id)
        with editing_in_scope(ports, fact_ids=[fact_id]):
            edit = fix.apply(ports, fact)
            if not edit.keyed:
                key_at_once(ports, edit.fact_ids)
    except KBError as error:
        return _show_inbox(ports, request, form.refuse(error), fixing=fact_id)
    return _lead_back(form, change=edit.seq)


HANDLERS = (list_inbox, settle_facts, fix_fact)
