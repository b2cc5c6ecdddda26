"""Keysets: which one is active, the progress and gate of the others, and the switch from one to another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.forms import Form, FromForm, find_change, form_page, show_again
from colmlm.api.console.views import Page, PageRequest, page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId
from colmlm.kb.errors import NoActiveKeyset, refusals
from colmlm.kb.jobs.kinds import Gate, Rekey, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import Work
from colmlm.kb.keys.records import GateStanding, KeysetHead, KeysetRecord

HEIGHT, WIDTH = 120, 640  # of a histogram's drawing, in SVG units


@dataclass(frozen=True, slots=True)
class KeysetLine:
    keyset: KeysetRecord
    gate: GateStanding
    is_loaded: bool
    refused: str | None  # why its model is not loaded

    @property
    def total(self) -> int:
        return self.keyset.num_keys + self.keyset.num_unkeyed


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram as a drawing: bars (x, y, width, height) for right and for wrong facts, and the threshold's place."""

    title: str
    low: float
    high: float
    threshold: float
    threshold_x: float
    genuine: tuple[tuple[float, float, float, float], ...]
    impostor: tuple[tuple[float, float, float, float], ...]


def _queue_work(ports: Ports, request: PageRequest, keyset_id: int, work: Work, form: Form) -> Page:
    """Queue the work. The form must name the keyset too, or the request did not come from its button."""
    if form.integer("keyset") != keyset_id:
        raise refusals.keyset_not_found(form.integer("keyset") or 0)
    job = Jobs(ports.kb).submit(work, actor=request.user.name)
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


def active_keyset(ports: Ports) -> KeysetHead | None:
    """Give the active keyset; None where none is active yet."""
    try:
        return ports.kb.keysets.active()
    except NoActiveKeyset:
        return None


def _keyset_lines(ports: Ports) -> list[KeysetLine]:
    return [_keyset_line(ports, keyset) for keyset in ports.kb.keysets.all()]


def _keyset_line(ports: Ports, keyset: KeysetRecord) -> KeysetLine:
    return KeysetLine(
        keyset,
        ports.kb.keysets.standing(keyset.keyset_id),
        is_loaded=keyset.state != "retired" and keyset.checkpoint_id in ports.models,
        refused=ports.models.refused.get(keyset.checkpoint_id),
    )


def _confirm_switch(ports: Ports, request: PageRequest, verb: str, keyset_id: int | None, form: Form) -> Page:
    rows = _keyset_lines(ports)
    row = next((row for row in rows if row.keyset.keyset_id == keyset_id), None)
    if keyset_id is not None and row is None:
        raise refusals.keyset_not_found(keyset_id)
    return form_page(
        request,
        "keyset_switch.html",
        form,
        verb=verb,
        row=row,
        active=next((row for row in rows if row.keyset.state == "active"), None),
    )


def _lead_to_change(ports: Ports) -> Page:
    return Redirect(f"/console/keysets?change={ports.kb.log.head_seq()}", status_code=303)


def _draw_histograms(gate: dict[str, Any] | None) -> list[Bars]:
    """Draw the histograms in a report: the checked keyset's and, if it was measured too, the active one's."""
    kept = (gate or {}).get("histograms") or []
    return [_draw_histogram(one) for one in kept]


def _draw_histogram(one: dict[str, Any]) -> Bars:
    low, high = float(one["low"]), float(one["high"])
    tallest = max(*one["genuine"], *one["impostor"], 1)
    width = WIDTH / len(one["genuine"])

    def drawn(counts: list[int]) -> tuple[tuple[float, float, float, float], ...]:
        heights = [HEIGHT * count / tallest for count in counts]
        return tuple(
            (round(n * width + 0.5, 2), round(HEIGHT - height, 2), round(width - 1, 2), round(height, 2))
            for n, height in enumerate(heights)
            if height
        )

    where = WIDTH * (float(one["threshold"]) - low) / (high - low)
    return Bars(
        title=one["title"],
        low=low,
        high=high,
        threshold=float(one["threshold"]),
        threshold_x=round(min(max(where, 0), WIDTH), 2),
        genuine=drawn(one["genuine"]),
        impostor=drawn(one["impostor"]),
    )


@get("/keysets", opt=needs(Right.read), sync_to_thread=True)
def list_keysets(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    rows = _keyset_lines(ports)
    return page(request, "keysets.html", rows=rows, done=find_change(ports, form))


@get("/keysets/{keyset_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Show a keyset with the report of its gate."""
    row = _keyset_line(ports, ports.kb.keysets.show(keyset_id))
    gate = ports.kb.keysets.gate(keyset_id)
    checkpoint = ports.kb.keysets.checkpoint(keyset_id)
    return page(
        request,
        "keyset.html",
        row=row,
        gate=gate,
        plots=_draw_histograms(gate),
        checkpoint=checkpoint,
        form=Form(),
        sets=[(one.name, one.name) for one in ports.kb.questions.all()],
        width=WIDTH,
        height=HEIGHT,
        done=find_change(ports, form),
    )


@get("/keysets/{keyset_id:int}/activate", opt=needs(Right.train), sync_to_thread=True)
def ask_to_activate(ports: FromPorts, request: PageRequest, keyset_id: PathId) -> Page:
    return _confirm_switch(ports, request, "activate", keyset_id, Form())


@get("/keysets/{keyset_id:int}/retire", opt=needs(Right.train), sync_to_thread=True)
def ask_to_retire(ports: FromPorts, request: PageRequest, keyset_id: PathId) -> Page:
    return _confirm_switch(ports, request, "retire", keyset_id, Form())


@get("/keysets/rollback", opt=needs(Right.train), sync_to_thread=True)
def ask_to_roll_back(ports: FromPorts, request: PageRequest) -> Page:
    return _confirm_switch(ports, request, "rollback", None, Form())


@post("/keysets/{keyset_id:int}/activate", opt=needs(Right.train), sync_to_thread=True)
@show_again(partial(_confirm_switch, verb="activate"))
def activate_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Activate a keyset, if its gate passed or it is forced."""
    ports.kb.keysets.activate(keyset_id, force=form.flag("force"), **form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/{keyset_id:int}/retire", opt=needs(Right.train), sync_to_thread=True)
@show_again(partial(_confirm_switch, verb="retire"))
def retire_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Drop a keyset's keys."""
    ports.kb.keysets.retire(keyset_id, **form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/rollback", opt=needs(Right.train), sync_to_thread=True)
@show_again(partial(_confirm_switch, verb="rollback", keyset_id=None))
def roll_back(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Activate the keyset that was active before."""
    ports.kb.keysets.rollback(**form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/{keyset_id:int}/gate", opt=needs(Right.train), sync_to_thread=True)
def start_gate(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Measure a keyset, as a job; with kept questions, where the form names a set of them."""
    asked: dict[str, Any] = {}
    if (questions := form.optional("questions", limit=100)) is not None:
        least, most = (form.number(name, 0, 1) for name in ("min_right", "max_wrong"))
        asked = {"questions": questions, "min_right": least, "max_wrong": most}
    form.check()
    work = work_of(Gate.kind, {"keyset_id": keyset_id, **asked})
    return _queue_work(ports, request, keyset_id, work, form)


@post("/keysets/{keyset_id:int}/rekey", opt=needs(Right.train), sync_to_thread=True)
def start_rekey(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Make the keys that a keyset lacks, as a job."""
    return _queue_work(ports, request, keyset_id, Rekey(keyset_id=keyset_id), form)


HANDLERS = (
    list_keysets,
    read_keyset,
    start_gate,
    start_rekey,
    ask_to_activate,
    ask_to_retire,
    ask_to_roll_back,
    activate_keyset,
    retire_keyset,
    roll_back,
)
