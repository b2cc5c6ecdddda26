"""`colmlm erasures`: erasures that one admin asked for and another approves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.erase_show import as_dict, show_facts, show_report
from cli.facts import is_attended
from cli.options import AsJson, examples
from cli.output import note, print_json, print_table, say, shorten
from cli.runtime import Runtime

if TYPE_CHECKING:
    from kb.two_person import ErasureRequest

app = typer.Typer(
    help="Erasures that wait for a second person, with COLMLM_ERASE_NEEDS_TWO=yes.",
    epilog=examples("colmlm erasures list --waiting", "COLMLM_TOKEN=... colmlm erasures approve 3 --yes"),
)

RequestId = Annotated[int, typer.Argument(metavar="REQUEST_ID", min=1, help="Of `colmlm erasures list`.")]


@app.command("list", epilog=examples("colmlm erasures list --waiting", "colmlm erasures list --json"))
def list_requests(
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what was asked to be erased, and who decided it."""
    from kb.two_person import ErasureRequests

    with Runtime.from_environment() as runtime:
        found = ErasureRequests(runtime.kb).requests(waiting=waiting)
    if as_json:
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
    print_table(("id", "state", "facts", "asked by", "at", "decided by", "reason"), rows)


@app.command(
    epilog=examples(
        "colmlm erasures approve 3 --dry-run", "COLMLM_TOKEN=... colmlm erasures approve 3 --now --yes"
    )
)
def approve(
    request_id: RequestId,
    now: Annotated[
        bool, typer.Option("--now", help="Rewrite tables and clear the log too: as far as the server lets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase for good what another admin asked for. COLMLM_TOKEN holds your key, which must be another one."""
    from kb.two_person import ErasureRequests, admin_key

    _require_somebody(yes or dry_run, as_json, "approve")
    with Runtime.from_environment() as runtime:
        requests = ErasureRequests(runtime.kb)
        asked = requests.read(request_id)
        if dry_run:
            _preview(runtime, asked, as_json)
            return
        with runtime.kb.sessions() as session:
            key = admin_key(session, runtime.settings.token)
        if not yes:
            show_facts(runtime.kb, asked.fact_ids)
            typer.confirm(
                f"Erase {_count(asked.fact_ids)} for good? This cannot be undone.", abort=True, err=True
            )
        done, report = requests.approve(request_id, key=key, now=now, on_step=note)
    if as_json:
        print_json({"request": done, **as_dict(report)})
    else:
        show_report(report)


@app.command(epilog=examples("COLMLM_TOKEN=... colmlm erasures withdraw 3 --yes"))
def withdraw(
    request_id: RequestId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a request; nothing is erased. COLMLM_TOKEN holds an admin's key, also that of who asked."""
    from kb.two_person import ErasureRequests, admin_key

    _require_somebody(yes, as_json, "withdraw")
    with Runtime.from_environment() as runtime:
        requests = ErasureRequests(runtime.kb)
        asked = requests.read(request_id)
        with runtime.kb.sessions() as session:
            key = admin_key(session, runtime.settings.token)
        if not yes:
            typer.confirm(f"Keep {_count(asked.fact_ids)} and end the request?", abort=True, err=True)
        done = requests.withdraw(request_id, key=key)
    print_json({"request": done}) if as_json else say(f"Request {request_id} is withdrawn.")


def ask(runtime: Runtime, fact_ids: Sequence[int], actor: str, reason: str, as_json: bool) -> None:
    """What `colmlm erase` does where two are needed: ask with the key in COLMLM_TOKEN."""
    from kb.two_person import ErasureRequests, admin_key

    with runtime.kb.sessions() as session:
        key = admin_key(session, runtime.settings.token)
    asked = ErasureRequests(runtime.kb).ask(fact_ids, key=key, actor=actor, reason=reason)
    if as_json:
        print_json({"request": asked, "seq": None})
        return
    say(f"Asked to erase {_count(asked.fact_ids)}; nothing is erased yet.")
    note(f"Another admin approves it with: colmlm erasures approve {asked.erasure_request_id}")


def _preview(runtime: Runtime, asked: ErasureRequest, as_json: bool) -> None:
    if as_json:
        facts = [runtime.kb.fact(fact_id) for fact_id in asked.fact_ids]
        print_json({"dry_run": True, "request": asked, "facts": facts})
        return
    say(f"Asked with the key {asked.asked_by}, {asked.at:%Y-%m-%d %H:%M}, for {asked.actor}: {asked.reason}")
    show_facts(runtime.kb, asked.fact_ids)


def _require_somebody(unasked: bool, as_json: bool, verb: str) -> None:
    if not unasked and (as_json or not is_attended()):
        raise typer.BadParameter(f"there is nobody to ask; pass it to {verb}.", param_hint="--yes")


def _count(fact_ids: Sequence[int]) -> str:
    return "this fact" if len(fact_ids) == 1 else f"these {len(fact_ids)} facts"
