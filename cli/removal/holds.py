"""`colmlm hold`: keeps facts, documents and corpora from being deleted by a rule, or erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    Limit,
    examples,
    require_reason,
    some_text,
    some_texts,
    wants_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten, some_ids

if TYPE_CHECKING:
    from colmlm.kb.removal.records import Hold

app = typer.Typer(
    help="Hold facts, documents or corpora, so that nothing deletes them by a rule or erases them.",
    epilog=examples(
        'colmlm hold place --document 3 --reason "case 12"',
        "colmlm hold list --standing",
        'colmlm hold release 1 --reason "case closed"',
    ),
)

HoldId = Annotated[
    int, typer.Argument(metavar="HOLD_ID", min=1, max=MAX_BIGINT, help="See `colmlm hold list`.")
]
Why = Annotated[
    str | None, typer.Option("--reason", callback=some_text, help="Why; it is kept with the change.")
]


@app.command(
    epilog=examples(
        'colmlm hold place --fact 12 --document 3 --reason "case 12"',
        'colmlm hold place --corpus handbook --reason "audit of 2026"',
        "COLMLM_TOKEN=... colmlm hold place --approve 4",
    )
)
@anywhere
def place(
    base: Base,
    fact_ids: Annotated[
        list[int] | None,
        typer.Option("--fact", min=1, help="A fact, with its document; may be repeated."),
    ] = None,
    document_ids: Annotated[
        list[int] | None,
        typer.Option("--document", min=1, help="A document, in all its texts; may be repeated."),
    ] = None,
    corpora: Annotated[
        list[str] | None,
        typer.Option("--corpus", callback=some_texts, help="A whole corpus; may be repeated."),
    ] = None,
    approve: Annotated[
        int | None, typer.Option("--approve", min=1, help="Place this hold, which another token asked for.")
    ] = None,
    reason: Why = None,
    actor: Actor = None,
) -> None:
    """Place a hold on facts, documents or whole corpora, or approve one that was asked for.

    While it stands, what it keeps is not deleted by a rule and not erased. `facts delete` still hides it. With
    COLMLM_HOLD_NEEDS_TWO=both this asks, with the token in COLMLM_TOKEN, and another token approves it.
    """
    if approve is not None:
        if fact_ids or document_ids or corpora or reason or actor:
            raise typer.BadParameter("it names the hold; leave the rest out.", param_hint="--approve")
        _print_done(base.holds.approve(approve))
        return
    if not (fact_ids or document_ids or corpora):
        raise typer.BadParameter("name a fact, a document or a corpus.", param_hint="--fact")
    require_reason(reason)
    hold = base.holds.place(
        fact_ids=fact_ids or (),
        document_ids=document_ids or (),
        corpora=corpora or (),
        actor=base.actor(actor),
        reason=reason or "",
    )
    _print_done(hold)


@app.command(
    "list",
    epilog=examples("colmlm hold list --standing", "colmlm hold list 4", "colmlm hold list --fact 12 --json"),
)
@anywhere
def list_holds(
    base: Base,
    hold_id: Annotated[
        int | None, typer.Argument(metavar="[HOLD_ID]", min=1, max=MAX_BIGINT, help="Show this one.")
    ] = None,
    standing: Annotated[bool, typer.Option("--standing", help="Only those that stand.")] = False,
    fact_id: Annotated[
        int | None, typer.Option("--fact", min=1, max=MAX_BIGINT, help="Only those that keep this fact.")
    ] = None,
    document_id: Annotated[
        int | None,
        typer.Option("--document", min=1, max=MAX_BIGINT, help="Only those that keep this document."),
    ] = None,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List holds, oldest first, or show one: what it keeps, who placed it, and why."""
    if hold_id is not None:
        found = base.holds.read(hold_id)
        print_json(found) if wants_json() else _print_hold(found)
        return
    holds = base.holds.all(
        standing=standing, fact_id=fact_id, document_id=document_id, after=after, limit=limit
    )
    more = holds[-1].hold_id if len(holds) == limit else None
    if wants_json():
        print_json({"holds": holds, "next_after": more})
        return
    rows = [
        (h.hold_id, h.state, _describe_kept(h), h.actor, f"{h.at:%Y-%m-%d %H:%M}", shorten(h.reason))
        for h in holds
    ]
    print_table(("id", "state", "keeps", "by", "at", "reason"), rows, "No holds found.")
    if more is not None:
        note(f"More holds: --after {more}")


@app.command(
    epilog=examples(
        'colmlm hold release 4 --reason "case closed"', "COLMLM_TOKEN=... colmlm hold release 4 --withdraw"
    )
)
@anywhere
def release(
    base: Base,
    hold_id: HoldId,
    reason: Why = None,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Take back what waits for a second token: the hold or its release."),
    ] = False,
    actor: Actor = None,
) -> None:
    """End a hold, so that what it kept may go again.

    With COLMLM_HOLD_NEEDS_TWO=release or both, the first token asks for it, and the same command with another token
    ends the hold.
    """
    if withdraw:
        if reason or actor:
            raise typer.BadParameter(
                "it changes nothing that stands; leave the rest out.", param_hint="--withdraw"
            )
        _print_done(base.holds.withdraw(hold_id))
        return
    require_reason(reason)
    _print_done(base.holds.release(hold_id, actor=base.actor(actor), reason=reason or ""))


def _print_done(hold: Hold) -> None:
    if wants_json():
        print_json(hold)
        return
    match hold.state:
        case "asked":
            say(f"Asked for hold {hold.hold_id}; it does not stand yet.")
            note(f"Another token approves it with: colmlm hold place --approve {hold.hold_id}")
        case "release-asked":
            say(f"Asked to release hold {hold.hold_id}; it still stands.")
            note(f"Another token releases it with: colmlm hold release {hold.hold_id}")
        case "standing":
            say(f"Hold {hold.hold_id} stands since change {hold.seq}: it keeps {_describe_kept(hold)}.")
        case "released":
            say(f"Change {hold.released_seq}: hold {hold.hold_id} is released.")
        case _:
            say(f"Hold {hold.hold_id} is {hold.state}.")


def _describe_kept(hold: Hold) -> str:
    """Write what a hold keeps, such as "facts 12, 15; corpus handbook"."""
    parts = [
        f"{name if len(ids) == 1 else f'{name}s'} {some_ids(ids)}"
        for name, ids in (("fact", hold.fact_ids), ("document", hold.document_ids))
        if ids
    ]
    if hold.corpora:
        parts.append(f"{'corpus' if len(hold.corpora) == 1 else 'corpora'} {', '.join(hold.corpora)}")
    return "; ".join(parts) or count_of(0, "fact")


def _print_hold(hold: Hold) -> None:
    say(f"hold {hold.hold_id}: {hold.state}, keeps {_describe_kept(hold)}")
    placed = f", change {hold.seq}" if hold.seq else ""
    asked = (
        f" (asked with {hold.asked_by}, approved with {hold.approved_by or 'nobody yet'})"
        if hold.asked_by
        else ""
    )
    say(f"placed by {hold.actor} at {hold.at:%Y-%m-%d %H:%M}{placed}{asked}: {hold.reason}")
    if hold.release_reason is not None:
        tokens = f" (asked with {hold.release_asked_by})" if hold.release_asked_by else ""
        ended = f", change {hold.released_seq}" if hold.released_seq else ", waits for another token"
        say(f"release by {hold.release_actor}{ended}{tokens}: {hold.release_reason}")
