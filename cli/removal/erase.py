"""`colmlm erase`: removes facts for good, on request of one admin or of two, and searches files for what is left."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.fact_view import brief_table, lineage_lines
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    DryRun,
    Output,
    WhyUnlessDry,
    Yes,
    each_once,
    examples,
    require_reason,
    require_somebody,
    wants_json,
    without_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten, some_ids, these_facts
from colmlm.cli.removal.forget import give_certificate
from colmlm.cli.start.command import DefaultGroup
from colmlm.kb.errors import InvalidValue
from colmlm.kb.removal.records import Erasing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colmlm.kb.removal.records import Erased, ErasureReport, ErasureRequest
    from colmlm.kb.removal.scan import ResidueReport


class MentionScope(Enum):
    """The documents in which a value is redacted beside its own span."""

    same_document = "same-document"
    all = "all"
    none = "none"


ERASE_EXAMPLES = examples(
    "colmlm erase facts 12 15 --dry-run",
    'colmlm erase 12 15 --reason "request of the person" --now --yes',
    "colmlm erase --now",
)
SCAN_EXAMPLES = examples(
    "colmlm erase scan --traces traces.json", 'colmlm erase scan --text "born in Lima in 1901" --json'
)

app = typer.Typer(
    cls=DefaultGroup,
    add_completion=False,
    help="Erase facts for good, live or deleted, all of them or none. Nothing brings them back.",
    epilog=ERASE_EXAMPLES,
)

Words = Annotated[list[int] | None, typer.Argument(metavar="[FACT_ID]...", min=1, help="Ids of facts.")]


@app.command("facts", epilog=ERASE_EXAMPLES)
@anywhere
def erase(
    base: Base,
    fact_ids: Words = None,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    now: Annotated[
        bool, typer.Option("--now", help="Rewrite tables and clear the log too: as far as the server lets.")
    ] = False,
    scan: Annotated[
        bool, typer.Option("--scan", help="Search all files before and after; --now does so too.")
    ] = False,
    traces_out: Annotated[
        Path | None,
        typer.Option(
            "--traces-out",
            dir_okay=False,
            help="Write the byte strings to search for here, for `erase scan`. The file holds the erased texts "
            "themselves: only you can read it, and you should remove it.",
        ),
    ] = None,
    mentions: Annotated[
        MentionScope,
        typer.Option(
            "--mentions", help="Redact the values where else their own documents, all, or none mention them."
        ),
    ] = MentionScope.same_document,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", exists=True, dir_okay=False, help="Erase by this plan of `colmlm person find`."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase facts for good, live or deleted, all of them or none. Nothing brings them back.

    For facts that were erased before, it redacts what was stored before that and still says them.

    Their texts are redacted in documents, outputs and plans, and their keys removed from every index. The report says
    the level that was reached: 1 not retrievable, 2 out of indexes, 3 out of the tables' files, 4 out of the
    write-ahead log. Without --now it stops at 2; without ids, --now takes earlier erasures on. The report lists what
    still says the facts. With --plan it erases the facts of the plan, and blanks the person's name at its places; it
    is refused where one was edited since. The exit code is 1 where the level is not reached (2, or 4 with --now), or
    where a scan finds residue.

    With COLMLM_ERASE_NEEDS_TWO=yes it only requests the erasure, with the admin's token in COLMLM_TOKEN, and another
    admin approves it: see `colmlm erase settle --help`. With --server the server's own setting decides that,
    the token is the one of --token-file, and the erasure goes as far as level 2.
    """
    if plan is not None and fact_ids:
        raise typer.BadParameter("facts and a plan exclude each other; name either.", param_hint="--plan")
    if not fact_ids and plan is None and (dry_run or scan or traces_out or not now):
        raise typer.BadParameter("name facts, or pass just --now for earlier erasures.", param_hint="FACT_ID")
    if (fact_ids or plan) and not dry_run:
        require_reason(reason)
        require_somebody(yes, "erase")
    planned = None if plan is None else _read_plan(plan)
    wanted = each_once(fact_ids or ()) if planned is None else _facts_of_plan(planned)
    base.only_here(now=now, scan=scan, traces_out=traces_out)
    if dry_run:
        _preview(base, wanted, mentions, planned)
        return
    if (wanted or planned) and not yes:
        brief_table(base.facts.show_many(wanted))
        places = "" if planned is None else f" and blank {count_of(len(planned['places']), 'place')}"
        typer.confirm(_question(base, these_facts(len(wanted)) + places), abort=True, err=True)
    done = base.erasures.erase(
        [] if planned else wanted,
        actor=base.actor(actor),
        reason=reason or "",
        mentions=mentions.value,
        now=now,
        scan=scan or now,
        traces_out=traces_out,
        plan=planned,
    )
    _show(done)
    if done.report is not None:
        require_level(done.report)
    if done.after is not None and done.after.num_found:
        _note_residue(done.after)
        raise typer.Exit(CHECK_FAILED)


def _question(base: Base, facts: str) -> str:
    """Write the question to confirm: to erase, or to request it of a second admin; both if a server decides."""
    if base.server is not None:
        return f"Erase {facts} for good, or request it where this server needs two admins?"
    if base.erasures.needs_two:
        return f"Request the erasure of {facts}? Nothing is erased until another admin approves."
    return f"Erase {facts} for good? This cannot be undone."


def _show(done: Erasing) -> None:
    if done.request is not None:
        show_asked(done.request)
        return
    assert done.report is not None, "what was not asked for was done"
    if wants_json():
        residue = {"before": done.before, "after": done.after} if done.after else None
        print_json({**as_dict(done.report), "residue": residue, "shared_probes": done.shared})
        return
    show_report(done.report)
    _show_residue(done.before, done.after, done.shared)


def _preview(
    base: Base, fact_ids: list[int], mentions: MentionScope, plan: dict[str, Any] | None = None
) -> None:
    preview = base.erasures.preview([] if plan else fact_ids, mentions=mentions.value, plan=plan)
    if wants_json():
        facts = base.facts.show_many(fact_ids)
        print_json({"dry_run": True, "facts": facts, **count_erased(preview)})
        return
    brief_table(base.facts.show_many(fact_ids))
    say(f"Would redact {describe_erased(preview)}, and drop {count_of(preview.num_keys, 'key')}.")
    _show_blanked(preview)
    if preview.generations:
        outputs = name_ids("output", preview.generations)
        say(f"The value, or the fact's question in a prompt, stands in {outputs}.")
    show_twins(preview)
    show_left(preview)


def _show_residue(before: ResidueReport | None, after: ResidueReport | None, shared: int) -> None:
    if before is not None and after is not None:
        say(
            f"Residue of {count_of(after.num_probes, 'byte string')} "
            f"(beside {shared:,} that are said elsewhere too and prove nothing):"
        )
        print_table(("area", "before", "after"), [(a, before.found[a], after.found[a]) for a in after.found])
        _show_files(after)


def _show_files(report: ResidueReport) -> None:
    print_table(("file", "area", "found"), [(f.path, f.area, f.num_probes) for f in report.files])
    for cause in report.unseen:
        say(f"Not seen: {cause}.")


def _note_residue(report: ResidueReport) -> None:
    """Note the cause of the exit code, with the file that has most residue."""
    file, *others = report.files
    more = f" and {count_of(len(others), 'other file')}" if others else ""
    yours = " (a backup of yours?)" if file.area == "other" else ""
    note(f"Exit code {CHECK_FAILED}: residue in {file.path}{yours}{more}.")


@app.command("scan", epilog=SCAN_EXAMPLES)
def scan_residue(
    traces: Annotated[
        Path | None,
        typer.Option("--traces", exists=True, dir_okay=False, help="A file of `erase --traces-out`."),
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Option("--text", help="A text to search for; may be repeated.")
    ] = None,
) -> None:
    """Search the files of server, index and home for erased texts and keys. Changes nothing.

    The exit code is 1 where any is found.
    """
    from colmlm.cli.bases.local_removal import scan_files
    from colmlm.kb.removal.traces import Trace, load_traces

    if bool(traces) == bool(texts):
        raise typer.BadParameter("pass either --traces or --text.", param_hint="--traces")
    wanted = load_traces(traces) if traces else [Trace(0, "text", said.encode()) for said in texts or ()]
    with Runtime.from_environment() as runtime:
        report = scan_files(runtime, wanted)
    if wants_json():
        print_json(report)
    else:
        say(
            f"{report.num_found} of {count_of(report.num_probes, 'byte string')} found "
            f"in {report.num_bytes / 1e6:.0f} MB."
        )
        print_table(("area", "different strings"), list(report.found.items()))
        _show_files(report)
    if report.num_found:
        raise typer.Exit(CHECK_FAILED)


# Shows previews and reports of erasures, for people and as JSON.


def show_asked(asked: ErasureRequest) -> None:
    """Print a request that waits for a second token."""
    if wants_json():
        print_json({"request": asked, "seq": None})
        return
    places = f" and to blank {count_of(asked.num_places, 'place')}" if asked.num_places else ""
    say(f"Asked to erase {these_facts(len(asked.fact_ids))}{places}; nothing is erased yet.")
    note(f"Another admin approves it with: colmlm erase settle approve {asked.erasure_request_id}")


def count_erased(erased: Erased) -> dict[str, object]:
    """Give what an erasure removed and what still says the facts, by kind, as ids and numbers for JSON."""
    return {
        "again": erased.again,
        "documents": erased.documents,
        "generations": erased.generations,
        "forget_runs": erased.forget_runs,
        "jobs": erased.jobs,
        "erasure_requests": erased.erasure_requests,
        "questions": erased.questions,
        "question_outcomes": erased.question_outcomes,
        "feedback": erased.feedback,
        "keys": erased.num_keys,
        "also_said_by": erased.also_said_by,
        "held_documents": erased.held_documents,
        "lineage": erased.lineage,
        "left": erased.left,
        "places": erased.places,
    }


def as_dict(report: ErasureReport) -> dict[str, object]:
    """Give what was erased and the level that was reached, for JSON."""
    done = report.erased
    of_change = {"seq": done.seq, "fact_ids": done.fact_ids, **count_erased(done)} if done else {"seq": None}
    return {**of_change, "level": report.level, "asked_level": report.asked_level, "levels": report.levels}


def describe_erased(erased: Erased) -> str:
    """Write the counts of what an erasure removed as words."""
    return (
        f"{count_of(len(erased.fact_ids), 'fact')} in {count_of(len(erased.documents), 'text')}, "
        f"{count_of(len(erased.generations), 'output')}, {count_of(len(erased.forget_runs), 'forget run')} "
        f"and {count_of(len(erased.jobs), 'job')}"
        + (f", and {count_of(len(erased.questions), 'kept question')}" if erased.questions else "")
    )


def _show_blanked(erased: Erased) -> None:
    """Print where the plan for a person blanks the name."""
    if erased.places:
        listed = ", ".join(f"{place} {number}" for place, number in erased.places.items())
        say(f"The name is blanked at {count_of(sum(erased.places.values()), 'place')}: {listed}.")


def name_ids(noun: str, ids: Sequence[int]) -> str:
    """Write ids behind the noun that they are of: "fact 905", "outputs 1, 2"."""
    return f"{noun if len(ids) == 1 else f'{noun}s'} {some_ids(ids)}"


def show_twins(erased: Erased) -> None:
    """Print the other facts that say the same as the erased ones."""
    if erased.also_said_by:
        say(
            f"The same is said by {name_ids('fact', erased.also_said_by)}, and stays. Erase it too if it must go."
        )


def show_lineage(erased: Erased) -> None:
    """Print which weights were trained on the texts, and what can be done about it."""
    for line in lineage_lines(erased.lineage, "it"):
        say(line)
    if any(one.says == "listed" for one in erased.lineage):
        note("An erasure changes no weights: train them again without it.")


def show_left(erased: Erased) -> None:
    """Print the documents, facts, outputs and rows in which the erased words stay, and the weights trained on them."""
    show_lineage(erased)
    if erased.held_documents:
        say(f"Held, and not redacted: {name_ids('document', erased.held_documents)}. See: colmlm hold list")
    left = erased.left
    for mention in left.documents:
        at = ", ".join(f"{one.start}-{one.end}" for one in mention.spans[:10])
        say(f"Document {mention.document_id} ({mention.source}) has the same words, at {at}.")
    if left.documents:
        note("Pass --mentions all to redact these words there too. Words that belong to another fact stay.")
    named = {
        "the title, the address or another property of document": left.titles,
        "fact": left.facts,
        "output": left.generations,
        "the log, which stays as it is, at change": left.reasons,
    }
    for what, ids in named.items():
        if ids:
            say(f"The same words stay in {name_ids(what, ids)}")
    for one in left.rows:
        rows = count_of(one.num_rows, "row")
        at = f": {some_ids(one.ids)}" if one.ids else ""
        say(f"The same words stay in column {one.column} of table {one.table}, in {rows}{at}")


def show_report(report: ErasureReport) -> None:
    """Print what was erased and the level that was reached."""
    if (done := report.erased) is not None:
        if done.seq is None:
            say("Erased before: nothing was changed. What was stored before and says it is redacted.")
            say("Documents, and texts that were stored since, were not searched for it.")
            say('To search all files for words: colmlm erase scan --text "..."')
            if report.asked_level == 2:
                say("Levels 3 and 4 are checked with --now alone. What an earlier --now reached still holds.")
        else:
            say(
                f"Change {done.seq}: erased {describe_erased(done)}; {count_of(done.num_keys, 'key')} dropped."
            )
            _show_blanked(done)
        show_twins(done)
        show_left(done)
    say(f"Level {report.level} of {len(report.levels)} is reached:")
    rows = [(level.level, level.name, level.state, level.left, level.remedy) for level in report.levels]
    print_table(("level", "", "state", "remark", "what to do"), rows)


def require_level(report: ErasureReport) -> None:
    """Exit with 1 if the level of a printed report is below the level that was asked for, and note what to do."""
    if report.level < report.asked_level:
        again = "colmlm erase --now" if report.asked_level > 2 else "the same command again"
        note(
            f"Level {report.asked_level} was asked for, and level {report.level} is reached. The facts are erased, "
            f"but files may still hold them. Settle the causes in the report, then run {again}."
        )
        raise typer.Exit(CHECK_FAILED)


def _list_requests(base: Base, *, waiting: bool) -> None:
    found = base.erasures.requests(waiting=waiting)
    if wants_json():
        print_json({"erasures": found})
        return
    rows = [
        (
            r.erasure_request_id,
            r.state,
            len(r.fact_ids),
            r.asked_by,
            f"{r.at:%Y-%m-%d %H:%M}",
            r.decided_by,
            shorten(r.reason),
        )
        for r in found
    ]
    print_table(
        ("id", "state", "facts", "asked by", "at", "decided by", "reason"), rows, "No requests found."
    )


class RequestVerdict(Enum):
    """The decision on a request to erase; or "waiting", to list those that wait."""

    approve = "approve"
    withdraw = "withdraw"
    waiting = "waiting"


@app.command(
    epilog=examples(
        "colmlm erase settle waiting",
        "colmlm erase settle approve 3 --dry-run",
        "COLMLM_TOKEN=... colmlm erase settle approve 3 --now --yes",
        "COLMLM_TOKEN=... colmlm erase settle withdraw 3 --yes",
    )
)
@anywhere
def settle(
    base: Base,
    verdict: Annotated[
        RequestVerdict | None,
        typer.Argument(
            metavar="[VERDICT]", help="approve, which erases for good; withdraw; or waiting, to list these."
        ),
    ] = None,
    request_id: Annotated[
        int | None, typer.Argument(metavar="[REQUEST_ID]", min=1, help="Of the list of requests.")
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Approve: rewrite tables and clear the log too, as far as the server lets."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Approve a request to erase facts, which are then gone for good; withdraw it; or list requests.

    Without a verdict it lists all requests, and who decided them. COLMLM_TOKEN holds your admin's token; with --server,
    --token-file does. To approve, it must not be the token that made the request; to withdraw, it may be. Approving
    erases to level 2, or 4 with --now: see `colmlm erase facts --help`. The exit code is 1 below that level.
    """
    if verdict in (None, RequestVerdict.waiting):
        if request_id is not None or now or dry_run or yes:
            raise typer.BadParameter("say approve or withdraw.", param_hint="VERDICT")
        _list_requests(base, waiting=verdict is not None)
        return
    if request_id is None:
        raise typer.BadParameter(
            "name a request; list them with `colmlm erase settle`.", param_hint="REQUEST_ID"
        )
    assert verdict is not None, "none lists the requests"
    require_somebody(yes or dry_run, verdict.value)
    if now and verdict is RequestVerdict.withdraw:
        raise typer.BadParameter("withdraw erases nothing: leave --now out.", param_hint="--now")
    base.only_here(now=now)
    asked = base.erasures.read(request_id)
    if dry_run:
        _preview_request(base, asked)
    elif verdict is RequestVerdict.approve:
        _approve(base, asked, now=now, yes=yes)
    else:
        _withdraw(base, asked, yes=yes)


def _approve(base: Base, asked: ErasureRequest, *, now: bool, yes: bool) -> None:
    if not yes:
        brief_table(base.facts.show_many(asked.fact_ids))
        typer.confirm(
            f"Erase {these_facts(len(asked.fact_ids))} for good? This cannot be undone.", abort=True, err=True
        )
    done, report = base.erasures.approve(asked.erasure_request_id, now=now)
    if wants_json():
        print_json({"request": done, **as_dict(report)})
    else:
        show_report(report)
    require_level(report)


def _withdraw(base: Base, asked: ErasureRequest, *, yes: bool) -> None:
    if not yes:
        typer.confirm(f"Keep {these_facts(len(asked.fact_ids))} and end the request?", abort=True, err=True)
    done = base.erasures.withdraw(asked.erasure_request_id)
    print_json({"request": done}) if wants_json() else say(
        f"Request {asked.erasure_request_id} is withdrawn."
    )


@app.command(
    epilog=examples("colmlm erase certificate 41", "colmlm erase certificate 41 --output erased.json")
)
@anywhere
@without_json
def certificate(
    base: Base,
    seq: Annotated[
        int,
        typer.Argument(
            metavar="SEQ", min=1, max=MAX_BIGINT, help="The change that erased; see `colmlm erase`."
        ),
    ],
    output: Output = None,
) -> None:
    """Give the signed certificate of an erasure as of now, as JSON on stdout or as a file."""
    give_certificate(base.erasures.certificate(seq), output)


def _preview_request(base: Base, asked: ErasureRequest) -> None:
    if wants_json():
        facts = base.facts.show_many(asked.fact_ids)
        print_json({"dry_run": True, "request": asked, "facts": facts})
        return
    behalf = f", for {asked.on_behalf_of}" if asked.on_behalf_of else ""
    say(f"Asked with the token {asked.asked_by}, {asked.at:%Y-%m-%d %H:%M}{behalf}: {asked.reason}")
    brief_table(base.facts.show_many(asked.fact_ids))


def _facts_of_plan(plan: dict[str, Any]) -> list[int]:
    from colmlm.kb.removal.persons import PersonPlan

    return list(PersonPlan.from_json(plan).fact_ids)


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        plan = None
    if not isinstance(plan, dict):
        raise InvalidValue(
            "plan", f"{path} does not hold one. Make one with `colmlm person find NAME --output FILE`"
        )
    return plan
