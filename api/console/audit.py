"""Audit: the change log and its verification, stored outputs, uses of a fact, lookups as of a change, and denials."""

from __future__ import annotations

from typing import Any, cast

from litestar import get

from colmlm.api.console.ask import output_and_evidence
from colmlm.api.console.views import Form, Page, PageRequest, form_page, page
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.ports import FromPorts, Ports, QuestionEncoder
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.kb.errors import KBError
from colmlm.kb.evidence.records import Impact, Thumb
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.log import audit, denials
from colmlm.kb.lookup.records import AsOfLookup, Lookup
from colmlm.kb.tables import thumbs

ON_A_PAGE = 50
NEAREST = 5


@get("/audit", opt=needs(Right.audit), sync_to_thread=True)
def log(ports: FromPorts, request: PageRequest) -> Page:
    """Show the change log, newest first, with the filters of the query string."""
    form = Form.asked(request)
    changes, head, end, report = [], ports.kb.log.head_seq(), None, None
    try:
        fitting: dict[str, Any] = {
            "actor": form.optional("actor", limit=200),
            "principal": form.optional("principal", limit=200),
            "kind": form.optional("kind", limit=50),
            "fact_id": form.integer("fact"),
            "since": form.moment("since"),
            "until": form.moment("until"),
        }
        before = form.integer("before") or head + 1
        form.check()
        changes = ports.kb.log.changes_before(before, ON_A_PAGE + 1, **fitting)
        end = ports.kb.log.hash_at(head)
        report = ports.kb.log.verify() if form.flag("check") else None
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "audit.html",
        form,
        changes=changes[:ON_A_PAGE],
        more=changes[ON_A_PAGE - 1].seq if len(changes) > ON_A_PAGE else None,
        kinds=[(kind, kind) for kind in audit.KINDS],
        last=head,
        end=end,
        report=report,
    )


@get("/audit/outputs", opt=needs(Right.read), sync_to_thread=True)
def outputs(ports: FromPorts, request: PageRequest) -> Page:
    """Show stored outputs, newest first, or those with a thumb."""
    form = Form.asked(request)
    after, thumb = (
        form.integer("after", low=0) or 0,
        cast(Thumb | None, form.choice("thumb", ("", *thumbs)) or None),
    )
    found = shown_to(request, ports).generations(after=after, limit=ON_A_PAGE + 1, thumb=thumb)
    more = found[ON_A_PAGE - 1].generation_id if len(found) > ON_A_PAGE else None
    return page(request, "outputs.html", outputs=found[:ON_A_PAGE], more=more, thumb=thumb)


@get("/audit/outputs/{output_id:int}", opt=needs(Right.read), sync_to_thread=True)
def output(ports: FromPorts, request: PageRequest, output_id: PathId) -> Page:
    """Show a stored output with the evidence of one of its lookups."""
    ordinal = Form.asked(request).integer("splice", low=0)
    return page(
        request, "output.html", **output_and_evidence(ports, shown_to(request, ports), output_id, ordinal)
    )


@get("/audit/impact", opt=needs(Right.audit, Lane.long_reads), sync_to_thread=True)
def impact(ports: FromPorts, request: PageRequest) -> Page:
    """Show every stored output that a fact was spliced into."""
    form = Form.asked(request)
    found: Impact | None = None
    fact: FactRecord | None = None
    try:
        fact_id = form.integer("fact")
        form.check()
        if fact_id is not None:
            found, fact = ports.kb.outputs.impact(fact_id), ports.kb.facts.show(fact_id)
    except KBError as error:
        form.refuse(error)
    return form_page(request, "impact.html", form, impact=found, fact=fact)


@get("/audit/time", opt=needs(Right.audit, Lane.long_reads), sync_to_thread=True)
def time(ports: FromPorts, request: PageRequest) -> Page:
    """Show which facts a question found as of a change, and which it finds now."""
    form = Form.asked(request)
    head = ports.kb.log.head_seq()
    shown: dict[str, Any] = {"then": None, "now": None, "difference": None, "change": None}
    seq: int | None = head
    try:
        question = form.optional("question", limit=2000)
        seq = form.integer("seq", low=0)
        form.check()
        seq = head if seq is None else seq
        shown["difference"] = ports.kb.log.diff(seq, head, limit=20)
        shown["change"] = next(iter(ports.kb.log.changes(after=seq - 1, limit=1)), None) if seq else None
        if question is not None:
            shown["then"], shown["now"] = _answers(ports, question, seq)
    except KBError as error:
        form.refuse(error)
    return form_page(request, "time.html", form, last=head, seq=seq, **shown)


def _answers(ports: Ports, question: str, seq: int) -> tuple[AsOfLookup, Lookup]:
    def ask(encoder: QuestionEncoder) -> tuple[AsOfLookup, Lookup]:
        asked: dict[str, Any] = {
            "queries_BD": encoder.encode_questions([question]),
            "checkpoint_id": encoder.checkpoint.checkpoint_id,
            "k": NEAREST,
        }
        (now,) = ports.kb.lookups.find(**asked)
        (then,) = ports.kb.lookups.as_of(seq).find(**asked)
        return then, now

    return ports.encoded(ask)


@get("/audit/denials", opt=needs(Right.audit), sync_to_thread=True)
def denied(ports: FromPorts, request: PageRequest) -> Page:
    """Show denied requests, newest first."""
    after = Form.asked(request).integer("after", low=0) or 0
    found = ports.kb.log.denials(after=after, limit=ON_A_PAGE + 1)
    more = found[ON_A_PAGE - 1].denial_id if len(found) > ON_A_PAGE else None
    return page(request, "denials.html", denials=found[:ON_A_PAGE], more=more, kept=denials.KEPT.days)


HANDLERS = (log, outputs, output, impact, time, denied)
