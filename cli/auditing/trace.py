"""`colmlm trace`: traces stored outputs to facts and facts to outputs; and `colmlm person`: a person to all places."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from html import escape
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.fact_view import WITHHELD, fact_source, in_sample, lineage_lines, page_of_fact
from colmlm.cli.options import (
    Actor,
    After,
    FactId,
    Limit,
    examples,
    principal_name,
    some_text,
    some_texts,
    wants_json,
)
from colmlm.cli.output import count_of, note, plain, print_json, print_table, say, shorten, some_ids
from colmlm.kb.evidence.records import describe_change
from colmlm.kb.lookup.options import filter_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colmlm.kb.evidence.records import (
        FactTrace,
        GenerationRecord,
        Impact,
        ImpactedOutput,
        OutputTrace,
        TracedSplice,
    )
    from colmlm.kb.facts.records import PersonPlace, PersonReport, Source
    from colmlm.kb.log.records import ChangeRecord


class TraceForm(StrEnum):
    """The formats of a trace in the terms of W3C PROV: PROV-O as JSON-LD, or PROV-JSON."""

    prov = "prov"
    prov_json = "prov-json"


InForm = Annotated[
    TraceForm | None,
    typer.Option("--format", help="In the terms of W3C PROV: JSON-LD of PROV-O, or PROV-JSON."),
]


OutputId = Annotated[int, typer.Argument(metavar="OUTPUT_ID", min=1, help="The stored output's id.")]


class ThumbGiven(StrEnum):
    up = "up"
    down = "down"


ABSTAINED = "(nothing: it abstained)"

app = typer.Typer(
    help="Trace outputs to facts and facts to outputs, and mend what is wrong.",
    epilog=examples("colmlm trace output 3"),
)


@app.command(
    epilog=examples(
        "colmlm trace output 3", "colmlm trace output 3 --json", "colmlm trace output 3 --format prov"
    )
)
@anywhere
def output(
    base: Base,
    generation_id: OutputId,
    form: InForm = None,
) -> None:
    """Show a stored output with the fact, document and offsets behind every spliced span, and the fact's state now."""
    if form is not None:
        print_json(base.outputs.provenance(generation_id, form.value))
        return
    traced = base.outputs.trace(generation_id)
    print_json(traced) if wants_json() else show_output(traced)
    if any(splice.withheld for splice in traced.splices):
        note(WITHHELD)


@app.command(
    epilog=examples(
        "colmlm trace outputs",
        "colmlm trace outputs --feedback down",
        "colmlm trace outputs --principal frontdesk",
        "colmlm trace outputs --limit 10 --json",
    )
)
@anywhere
def outputs(
    base: Base,
    feedback: Annotated[
        ThumbGiven | None, typer.Option("--feedback", help="Only outputs that somebody gave this thumb.")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal",
            callback=principal_name,
            help="Only what this token, or user of the machine, asked for.",
        ),
    ] = None,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List stored outputs, newest first; with --after, those older than that id."""
    found = base.outputs.find(after, limit, None if feedback is None else feedback.value, principal)
    more = found[-1].generation_id if len(found) == limit else None
    if wants_json():
        print_json({"outputs": found, "next_after": more})
        return
    rows = [
        (g.generation_id, f"{g.at:%Y-%m-%d %H:%M}", g.mode, f"{g.num_hits} of {g.num_splices}",
         g.ranking, _describe_thumbs(g), g.principal, shorten(g.prompt, 40), _shorten_output(g))
        for g in found
    ]  # fmt: skip
    none = "No outputs found. Store one: colmlm ask QUESTION"
    print_table(
        ("output", "at", "mode", "lookups with a hit", "ranking", "thumbs", "asked by", "prompt", "output"),
        rows,
        none,
    )
    if more is not None:
        note(f"More outputs: --after {more}")


def _describe_thumbs(stored: GenerationRecord) -> str:
    return ", ".join(f"{n} {what}" for n, what in ((stored.up, "up"), (stored.down, "down")) if n)


def _shorten_output(stored: GenerationRecord) -> str:
    """Shorten an output for a list; mark one that abstained, and one that is wholly uncited."""
    if stored.abstained:
        return ABSTAINED
    return shorten(stored.output, 40) + (" (uncited)" if stored.uncited else "")


def show_output(trace: OutputTrace) -> None:
    """Print an output with marked splices, the source that it quotes or its uncited stretches, each splice's source,
    and the feedback.
    """
    made = f"checkpoint {trace.checkpoint_id}" if trace.checkpoint_id else "no checkpoint"
    of = ", ".join(filter(None, (f"mode {trace.mode}", f"ranking {trace.ranking}", filter_note(trace))))
    by = f", asked by {trace.principal}" if trace.principal is not None else ""
    say(f"output {trace.generation_id}, {of}, {made}, {trace.at:%Y-%m-%d %H:%M}{by}")
    say(f"prompt: {trace.prompt}")
    say(f"output: {mark_splices(trace)}")
    if trace.quotes is not None:
        entered = ", ".join(f"({one.ordinal})" for one in trace.splices if one.document_says is not None)
        say(f"quotes: {describe_source(trace.quotes)}" + (f", but for {entered}" if entered else ""))
    elif trace.uncited:
        say("uncited: all of it; no fact stands behind these words")
    elif trace.output:
        say(f"uncited: {_describe_uncited(trace)}")
    columns = ("n", "value", "span", "fact", "version", "score", "source", "now")
    if trace.splices:
        print_table(columns, map(_splice_row, trace.splices))
    for splice in trace.splices:
        edition = splice.source.revision if splice.source else None
        sentence = splice.sentence and f'sentence "{splice.sentence}"'
        if told := "; ".join(filter(None, (splice.entry, edition and f"revision {edition}", sentence))):
            say(f"{splice.ordinal}: {told}")
    for one in trace.feedback:
        said = "; ".join(filter(None, (one.comment, one.value and f"right would be: {one.value}")))
        say(f"thumb {one.thumb} by {one.on_behalf_of or one.actor}" + (f": {said}" if said else ""))


def _describe_uncited(trace: OutputTrace) -> str:
    spans = trace.uncited_spans
    number = sum(end - start for start, end in spans)
    where = ", ".join(f"[{start}:{end}]" for start, end in spans)
    return f"{where}, {number} of {count_of(len(trace.output), 'character')}" if spans else "nothing"


def stored_output_note(generation_id: int, server: str | None) -> str:
    """Write the note that names a stored output's id, and the command that traces it or the server that stored it."""
    if server is not None:
        return f"Stored as output {generation_id} at {server}."
    return f"Stored as output {generation_id}: colmlm trace output {generation_id}"


def mark_splices(trace: OutputTrace) -> str:
    """Write an output's text with each splice in brackets, followed by its ordinal; `ABSTAINED` if it abstained."""
    if trace.abstained:
        return ABSTAINED
    pieces, at = [], 0
    for splice in trace.splices:
        if splice.outcome != "hit":
            continue
        span = trace.output[splice.output_start : splice.output_end]
        pieces += [trace.output[at : splice.output_start], f"[{span}]({splice.ordinal})"]
        at = splice.output_end
    return "".join((*pieces, trace.output[at:]))


_MISSED = {"no_match": "(no match)", "abstained": "(abstained)"}


def _splice_row(splice: TracedSplice) -> tuple[object, ...]:
    score = None if splice.score is None else f"{splice.score:.3f}"
    found = shorten(splice.value) if splice.outcome == "hit" else _MISSED[splice.outcome]
    if splice.part_start is not None:
        found += f" (characters {splice.part_start} to {splice.part_end} of it)"
    source = describe_source(splice.source) if splice.sample is None else in_sample(splice.sample)
    span = f"[{splice.output_start}:{splice.output_end}]" if splice.outcome == "hit" else ""
    return splice.ordinal, found, span, splice.fact_id, splice.version, score, source, _state_now(splice)


def describe_source(source: Source | None) -> str:
    """Write a source for a trace: its title, (corpus/external id) and [start:end]; "" for none."""
    if source is None:
        return ""
    return f"{source.title or source.external_id} ({source.corpus}/{source.external_id})[{source.start}:{source.end}]"


def _state_now(splice: TracedSplice) -> str:
    if splice.fact_id is None:
        return ""
    if splice.live:
        now = "live" if splice.is_current else f"now {shorten(splice.current_value)}"
        now = f"{now}, by {splice.correction}" if splice.correction else now
        now = f"{now}, unreviewed" if splice.review == "proposed" else now
        return f"{now}, found by a predicted key" if splice.key_predicted else now
    kinds = ("erase",) if splice.erased else ("delete", "forget", "ingest", "reject")
    last = next((change for change in reversed(splice.history) if change.kind in kinds), None)
    gone = "erased" if splice.erased else "deleted"
    return f"{gone} by {describe_change(last)}" if last else "deleted"


@app.command(
    epilog=examples(
        "colmlm trace fact 12",
        "colmlm trace fact 12 --impact --json",
        "colmlm trace fact 12 --format prov-json",
    )
)
@anywhere
def fact(
    base: Base,
    fact_id: FactId,
    form: InForm = None,
    of_impact: Annotated[
        bool,
        typer.Option("--impact", help="Show each output that it was spliced into, and whether that holds."),
    ] = False,
) -> None:
    """Show a fact's source sentence, its versions, who changed it and why, and every stored output that used it."""
    if form is not None and of_impact:
        raise typer.BadParameter("--format and --impact exclude each other; give one of them.")
    if form is not None:
        print_json(base.outputs.provenance_of_fact(fact_id, form.value))
        return
    if of_impact:
        impact = base.outputs.impact(fact_id)
        print_json(impact) if wants_json() else _show_impact(impact)
        return
    traced = base.outputs.trace_fact(fact_id)
    page = page_of_fact(base, traced.fact)
    print_json(plain(traced) | {"page": page}) if wants_json() else _show_fact(traced, page)
    if traced.fact.withheld:
        note(WITHHELD)


def _show_fact(trace: FactTrace, page: int | None) -> None:
    say(f"fact {trace.fact.fact_id}: {trace.fact.value}")
    say(f"source: {fact_source(trace.fact)}{'' if page is None else f', page {page}'}")
    if trace.context:
        say(f"it says: {trace.context}")
    say("versions:")
    print_table(
        ("version", "value", "from change", "to change"),
        [(v.version, shorten(v.value), v.from_seq, v.to_seq) for v in trace.versions],
    )
    say("changes:")
    show_changes(trace.history)
    for line in lineage_lines(trace.lineage, "its document"):
        say(line)
    say(f"outputs that used it: {len(trace.uses)}")
    if trace.uses:
        print_table(
            ("output", "version", "span", "at"),
            [
                (u.generation_id, u.version, f"[{u.output_start}:{u.output_end}]", f"{u.at:%Y-%m-%d %H:%M}")
                for u in trace.uses
            ],
        )


def show_changes(changes: tuple[ChangeRecord, ...] | list[ChangeRecord]) -> None:
    """Print changes of the log as a table."""
    columns = ("seq", "kind", "facts", "actor", "principal", "reason", "at")
    rows = [
        (c.seq, _kind(c), _facts(c), _actor(c), c.principal, shorten(c.reason), f"{c.at:%Y-%m-%d %H:%M:%S}")
        for c in changes
    ]
    print_table(columns, rows, "No changes found.")


def _facts(change: ChangeRecord) -> str:
    """Name up to three facts of a change; give only their number if there are more or the change does not list them."""
    ids = change.fact_ids
    return some_ids(ids) if len(ids) == change.num_facts <= 3 else count_of(change.num_facts, "fact")


def _kind(change: ChangeRecord) -> str:
    """Name the kind of a change with the change that it undoes, or with its keyset, the checkpoint and a note."""
    of = [] if change.undoes is None else [f"undo of {change.undoes}"]
    if change.keyset_id is not None:
        of += [f"keyset {change.keyset_id}", *filter(None, [change.checkpoint, change.note])]
    return f"{change.kind} ({', '.join(of)})" if of else change.kind


def _actor(change: ChangeRecord) -> str:
    """Name the actor of a change, and on whose behalf it was made if that is somebody else."""
    behalf = change.on_behalf_of
    return change.actor if behalf in (None, change.actor) else f"{change.actor} for {behalf}"


def _show_impact(found: Impact) -> None:
    state = "live" if found.is_live else "deleted" if found.erased_seq is None else "erased"
    say(f"fact {found.fact_id}, {state}: {count_of(len(found.outputs), 'use')} in stored outputs")
    for used in found.outputs:
        say(f"output {used.generation_id}, {used.at:%Y-%m-%d %H:%M}, as of change {used.seq}, {_since(used)}")
        say(f"  prompt: {shorten(used.prompt)}")
        before, after = used.output[: used.output_start], used.output[used.output_end :]
        span = used.output[used.output_start : used.output_end]
        say(f"  output: {shorten(before[-40:])} [{span}] {shorten(after[:40])}")


def _since(used: ImpactedOutput) -> str:
    since = {
        "current": "still so",
        "corrected": "CORRECTED since",
        "deleted": "DELETED since",
        "erased": "ERASED since",
    }[used.since]
    return f"{since}; differs from its document" if used.entered else since


@app.command(
    epilog=examples(
        "colmlm trace feedback 3 --up", 'colmlm trace feedback 3 --down --value "June 1988" --json'
    )
)
@anywhere
def feedback(
    base: Base,
    generation_id: OutputId,
    up: Annotated[bool, typer.Option("--up/--down", help="Whether it is right.")],
    comment: Annotated[
        str | None, typer.Option("--comment", callback=some_text, help="What is right or wrong with it.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", callback=some_text, help="What it should have said.")
    ] = None,
    actor: Actor = None,
) -> None:
    """Say whether an output is right: thumb up or down. The last one of each person counts.

    With --down it shows what to mend: the facts behind the output, or one to add where there is none. It prints the
    commands that mend it. Each of them is a change, which `colmlm facts undo` takes back.
    """
    from colmlm.kb.evidence.records import NewFeedback

    made = NewFeedback("up" if up else "down", comment, value)
    given = base.outputs.give_feedback(generation_id, made, actor=base.actor(actor))
    thumb = f"thumb {given.thumb} for output {given.generation_id}"
    if up:
        print_json(given) if wants_json() else say(thumb)
        return
    trace = base.outputs.trace(generation_id)
    mending: dict[str, object] = {
        "output": generation_id,
        "question": trace.question,
        "facts": [_fact_behind(splice, value) for splice in trace.splices if splice.fact_id is not None],
    }
    mending["add"] = None if mending["facts"] else _command_to_add(trace, value)
    if wants_json():
        print_json(plain(given) | plain(mending))
    else:
        say(thumb)
        _show_mending(trace, mending)


def _fact_behind(splice: TracedSplice, value: str | None) -> dict[str, object]:
    """Describe the fact of a splice: its value in the output and now, and the commands that correct or restore it."""
    fact, right = splice.fact_id, quote(value or "...")
    commands = [
        f'colmlm facts edit {fact} --value {right} --reason "..."',
        f'colmlm facts edit {fact} --question "..." --reason "..."',
        f'colmlm facts delete {fact} --reason "..."',
    ]
    if splice.source is not None:
        commands.insert(2, f'colmlm facts edit {fact} --text "..." --reason "..."')
    return {
        "fact_id": fact,
        "said": splice.value,
        "says_now": splice.current_value,
        "live": splice.live,
        "fixed": bool(splice.history) and not splice.is_current,
        "commands": commands if splice.live else [f'colmlm facts restore {fact} --reason "..."'],
    }


def _command_to_add(trace: OutputTrace, value: str | None) -> str:
    asked, right = quote(trace.question), quote(value or "...")
    return f'colmlm facts add --question {asked} --value {right} --reason "..."'


def _show_mending(trace: OutputTrace, found: dict[str, object]) -> None:
    say(f"asked:  {found['question']}")
    say(f"said:   {mark_splices(trace)}")
    facts = found["facts"]
    assert isinstance(facts, list)
    for fact in facts:
        now = f"fact {fact['fact_id']} said: {fact['said']}"
        if fact["fixed"]:
            now += f"; says now: {fact['says_now']}" if fact["live"] else "; deleted since"
        say(now)
        for command in fact["commands"]:
            say(f"  {command}")
    if found["add"] is not None:
        say("No fact stands behind it. To add one:")
        say(f"  {found['add']}")


# Finds a person in everything that is stored: a report to hand over, and the plan by which `erase facts` erases.

person_app = typer.Typer(
    help="Find a person in everything that is stored, and plan what to erase.",
    epilog=examples('colmlm person find "Maria Keller" --output plan.json --output report.html'),
)
SHOWN = 50  # places of each kind that are printed


@person_app.callback()
def _person() -> None:
    """Find a person in everything that is stored, and plan what to erase."""


@person_app.command(
    epilog=examples(
        'colmlm person find "Maria Keller" --output plan.json --output report.html',
        'colmlm person find "Maria Keller" --also "Mia Keller" --decide document.text/12=erase --json',
    )
)
@anywhere
def find(
    base: Base,
    name: Annotated[str, typer.Argument(metavar="NAME", help='First names and surname: "Maria Keller".')],
    also: Annotated[
        list[str] | None,
        typer.Option("--also", callback=some_texts, help="Another spelling or name; may be repeated."),
    ] = None,
    decide: Annotated[
        list[str] | None,
        typer.Option(
            "--decide",
            metavar="PLACE=erase|keep",
            help="What to do with a place of the report; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", dir_okay=False, help="Write the plan, or as .html the page; both by two."
        ),
    ] = None,
) -> None:
    """Find every place that names a person, and plan to erase what is sure. Changes nothing.

    What is not sure is listed apart, with the cause, and is not in the plan: initials, one of the names alone, a name
    with one letter changed, and names that may be longer. To take such a place in, or leave a namesake out, use
    --decide. The plan holds no text. It is for `colmlm erase facts --plan`.
    """
    found = base.erasures.find_person(name, also=also or (), decide=_read_decisions(decide or ()))
    for path in output or ():
        path.touch(mode=0o600)
        is_page = path.suffix.lower() in (".html", ".htm")
        path.write_text(
            report_page(found.report) if is_page else json.dumps(found.plan) + "\n", encoding="utf-8"
        )
    if wants_json():
        print_json({**asdict(found.report), "plan": found.plan})
        return
    told = found.report
    say(
        f"{told.name}, as of change {told.seq}: {count_of(len(told.sure), 'sure place')}, {told.num_unsure} not sure."
    )
    _show_places(told.sure, len(told.sure))
    if told.unsure:
        say("\nNot sure, and not in the plan:")
        _show_places(told.unsure, told.num_unsure)
    if told.staying:
        say("\nNot erased by a plan:")
        print_table(("place", "what to do"), [(place.place, place.remedy) for place in told.staying])
    for path in output or ():
        note(f"Wrote {path}.")
    if plans := [path for path in output or () if path.suffix.lower() not in (".html", ".htm")]:
        note(f"To erase by the plan: colmlm erase facts --plan {plans[0]}")


def _show_places(places: Sequence[PersonPlace], number: int) -> None:
    from colmlm.kb.texts.names import DOUBTS

    rows = []
    for place in places[:SHOWN]:
        first = place.stretches[0]
        doubt = DOUBTS[first.doubt] if first.doubt else ""
        held = f"held by {some_ids(place.holds)}" if place.holds else ""
        rows.append(
            (
                place.place,
                shorten(first.said),
                shorten(f"{first.before}{first.said}{first.after}"),
                doubt or held,
            )
        )
    print_table(("place", "name", "text", "remark"), rows)
    if number > SHOWN:
        say(f"and {number - SHOWN} more: see --json, or the page")


def _read_decisions(said: Sequence[str]) -> dict[str, str]:
    decisions = {}
    for one in said:
        place, _, decision = one.rpartition("=")
        if not place or decision not in ("erase", "keep"):
            raise typer.BadParameter(
                f"{one!r} is not PLACE=erase or PLACE=keep; write it so.", param_hint="--decide"
            )
        decisions[place] = decision
    return decisions


# The page: the report for people, one file without a script.

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}mark{background:#fd6}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #999;padding:.3em .5em;text-align:left;"
    "vertical-align:top}td{overflow-wrap:anywhere}"
)
_TREATMENTS = {"erase": "The whole fact is erased.", "blank": "The name is blanked.", "stay": "It stays."}


def report_page(report: PersonReport) -> str:
    """Write a report on a person as one HTML page, for that person or for those who decide on the erasure."""
    head = f"What is stored about {escape(report.name)}"
    also = f" Also searched: {escape(', '.join(report.also))}." if report.also else ""
    of = f"Database {report.database}, as of change {report.seq}, {report.at}.{also}"
    left_out = f"<p>Left out: {escape(', '.join(report.left_out))}.</p>" if report.left_out else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{head}</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body>\n<h1>{head}</h1>\n<p>{of}</p>\n"
        + _page_section(f"Sure: {len(report.sure)}", report.sure)
        + _page_section(f"Not sure: {report.num_unsure}", report.unsure)
        + _page_section(f"Not erased by the plan: {len(report.staying)}", report.staying)
        + f"{left_out}</body></html>\n"
    )


def _page_section(title: str, places: Sequence[PersonPlace]) -> str:
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(place))}</tr>\n" for place in places)
    head = "<tr><th>Place</th><th>Text</th><th>Remark</th></tr>\n"
    return f"<h2>{title}</h2>\n" + (f"<table>\n{head}{rows}</table>\n" if rows else "<p>None.</p>\n")


def _cells(place: PersonPlace) -> tuple[str, str, str]:
    from colmlm.kb.texts.names import DOUBTS

    texts = [f"{escape(s.before)}<mark>{escape(s.said)}</mark>{escape(s.after)}" for s in place.stretches]
    doubts = [DOUBTS[doubt] for doubt in dict.fromkeys(s.doubt for s in place.stretches) if doubt]
    held = [f"Kept by hold {', '.join(map(str, place.holds))}."] if place.holds else []
    remarks = [_TREATMENTS[place.treatment], place.remedy, *held, *(f"Not sure: {one}." for one in doubts)]
    where = "<br>".join(escape(one) for one in (place.what, place.source, place.place) if one)
    return where, "<br>".join(texts), escape(" ".join(filter(None, remarks)))
