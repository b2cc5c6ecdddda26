"""`colmlm erasures`: lists, approves and withdraws requests to erase, which need a second admin; and certifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import AsJson, Yes, examples
from colmlm.cli.output import print_json, print_table, say, shorten, these_facts
from colmlm.cli.removal.certificates import ERASURE_EXAMPLES, erasure_certificate
from colmlm.cli.removal.erase import as_dict, require_level, show_facts, show_report

if TYPE_CHECKING:
    from colmlm.kb.removal.records import ErasureRequest

app = typer.Typer(
    help="Erasures: those that wait for a second person (COLMLM_ERASE_NEEDS_TWO=yes), and certificates.",
    epilog=examples("colmlm erasures list --waiting", "COLMLM_TOKEN=... colmlm erasures approve 3 --yes"),
)

RequestId = Annotated[int, typer.Argument(metavar="REQUEST_ID", min=1, help="Of `colmlm erasures list`.")]


@app.command("list", epilog=examples("colmlm erasures list --waiting", "colmlm erasures list --json"))
@anywhere
def list_requests(
    base: Base,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the requests to erase facts, and who decided them."""
    found = base.erasures.requests(waiting=waiting)
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
@anywhere
def approve(
    base: Base,
    request_id: RequestId,
    now: Annotated[
        bool, typer.Option("--now", help="Rewrite tables and clear the log too: as far as the server lets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased and stop.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase for good what another admin asked for. COLMLM_TOKEN holds your token, which must differ from theirs.

    With --server the token of --token-file approves. The exit code is 1 where the level is not reached: 2, or 4
    with --now.
    """
    require_somebody(yes or dry_run, as_json, "approve")
    base.only_here(now=now)
    asked = base.erasures.read(request_id)
    if dry_run:
        _preview(base, asked, as_json)
        return
    if not yes:
        show_facts(base.facts, asked.fact_ids)
        typer.confirm(
            f"Erase {these_facts(len(asked.fact_ids))} for good? This cannot be undone.", abort=True, err=True
        )
    done, report = base.erasures.approve(request_id, now=now)
    if as_json:
        print_json({"request": done, **as_dict(report)})
    else:
        show_report(report)
    require_level(report)


@app.command(epilog=examples("COLMLM_TOKEN=... colmlm erasures withdraw 3 --yes"))
@anywhere
def withdraw(
    base: Base,
    request_id: RequestId,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End a request; nothing is erased. COLMLM_TOKEN holds an admin's token, which may be the one that asked."""
    require_somebody(yes, as_json, "withdraw")
    asked = base.erasures.read(request_id)
    if not yes:
        typer.confirm(f"Keep {these_facts(len(asked.fact_ids))} and end the request?", abort=True, err=True)
    done = base.erasures.withdraw(request_id)
    print_json({"request": done}) if as_json else say(f"Request {request_id} is withdrawn.")


app.command("certificate", epilog=ERASURE_EXAMPLES)(erasure_certificate)


def _preview(base: Base, asked: ErasureRequest, as_json: bool) -> None:
    if as_json:
        facts = base.facts.show_many(asked.fact_ids)
        print_json({"dry_run": True, "request": asked, "facts": facts})
        return
    behalf = f", for {asked.on_behalf_of}" if asked.on_behalf_of else ""
    say(f"Asked with the token {asked.asked_by}, {asked.at:%Y-%m-%d %H:%M}{behalf}: {asked.reason}")
    show_facts(base.facts, asked.fact_ids)
