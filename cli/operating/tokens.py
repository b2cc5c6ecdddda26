"""`colmlm tokens`: creates, lists, rotates and revokes tokens. `colmlm up` makes the first."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.options import DryRun, Yes, examples, parse_span, require_somebody, wants_json
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.access.records import MAX_RATE

if TYPE_CHECKING:
    from colmlm.kb.access.records import TokenRecord

app = typer.Typer(
    help="Make, list, rotate and revoke tokens, by which the API knows who calls it.",
    epilog=examples("colmlm tokens list", "colmlm tokens create curator --role operator --expires-in 90d"),
)


class Role(StrEnum):
    """The roles of `kb.access.records.ROLES`, as choices of an option."""

    decoder = "decoder"
    reader = "reader"
    operator = "operator"
    auditor = "auditor"
    trainer = "trainer"
    admin = "admin"


TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose token; the change log names it as the actor.")
]
Span = timedelta | None


@app.command(
    epilog=examples(
        "colmlm tokens create ann --role auditor",
        "colmlm tokens create gpu-host --role decoder --expires-in 90d --rate-limit 60000",
        "colmlm tokens create sales-desk --role reader --corpus sales --corpus products",
        "colmlm tokens create curator --role operator --json",
    )
)
@anywhere
def create(
    base: Base,
    name: TokenName,
    role: Annotated[
        Role, typer.Option("--role", help="What it may do; the roles are in docs/production/access.md.")
    ] = Role.reader,
    expires_in: Annotated[
        Span,
        typer.Option(
            "--expires-in", parser=parse_span, metavar="SPAN", help="Ends by itself after 90d, 12h or 30m."
        ),
    ] = None,
    rate_limit: Annotated[
        int | None,
        typer.Option(
            "--rate-limit",
            min=1,
            max=MAX_RATE,
            help="Requests a minute. Default: COLMLM_RATE_LIMIT, or none.",
        ),
    ] = None,
    corpora: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            help="It may read this corpus and nothing else; may be repeated. Default: all of them.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Make a token and print its secret, this once: only a digest of it is kept."""
    secret, made = base.tokens.create(
        name,
        role,
        actor=base.actor(None),
        expires_in=expires_in,
        rate_limit=rate_limit,
        corpora=corpora or (),
        dry_run=dry_run,
    )
    if dry_run:
        print_json({"dry_run": True, **_fields(made)}) if wants_json() else say(_would("make", made))
        return
    _show_secret(secret, made)


@app.command("list", epilog=examples("colmlm tokens list", "colmlm tokens list --json"))
@anywhere
def list_tokens(base: Base) -> None:
    """List every token, the ended ones too; never a secret."""
    tokens = base.tokens.all()
    if wants_json():
        print_json({"keys": [_fields(token) for token in tokens]})
        return
    columns = ("name", "role", "corpora", "secret", "made", "used last", "ends", "a minute", "state")
    print_table(columns, map(_row, tokens), "No tokens. Make one: colmlm tokens create NAME")
    for token in tokens:
        if token.state() == "in use" and token.previous_until is not None:
            used = (
                f"used last {_moment(token.previous_used_at)}" if token.previous_used_at else "not used since"
            )
            note(
                f"{token.name}: the secret before the rotation works until {_moment(token.previous_until)}, {used}."
            )


@app.command(
    epilog=examples(
        "colmlm tokens rotate curator --grace 24h",
        "colmlm tokens rotate gpu-host --expires-in 90d --yes --json",
    )
)
@anywhere
def rotate(
    base: Base,
    name: TokenName,
    grace: Annotated[
        timedelta,
        typer.Option(
            "--grace",
            parser=parse_span,
            metavar="SPAN",
            help="How long the old secret works beside the new one.",
        ),
    ] = "0",  # type: ignore[assignment]  # parsed as if it were typed
    expires_in: Annotated[
        Span,
        typer.Option(
            "--expires-in",
            parser=parse_span,
            metavar="SPAN",
            help="A new end, which brings an expired token back.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give a token a new secret, printed this once. Name, role and limit stay.

    At most two secrets of a token work: rotating again ends the older one at once.
    """
    if not grace:
        require_somebody(yes or dry_run, "end the old secret at once")
    if not (grace or dry_run or yes):
        base.tokens.show(name)
        typer.confirm(f"End the secret of {name} that is in use now?", abort=True, err=True)
    actor = base.actor(None)
    secret, rotated = base.tokens.rotate(
        name, actor=actor, grace=grace, expires_in=expires_in, dry_run=dry_run
    )
    if dry_run:
        print_json({"dry_run": True, **_fields(rotated)}) if wants_json() else say(_would("rotate", rotated))
        return
    _show_secret(secret, rotated)


@app.command(epilog=examples("colmlm tokens revoke ann --dry-run", "colmlm tokens revoke ann --yes"))
@anywhere
def revoke(base: Base, name: TokenName, dry_run: DryRun = False, yes: Yes = False) -> None:
    """End a token and all its secrets for good, at once and in every process."""
    require_somebody(yes or dry_run, "revoke")
    if not (dry_run or yes):
        base.tokens.show(name)
        typer.confirm(f"Revoke the token {name}?", abort=True, err=True)
    revoked = base.tokens.revoke(name, actor=base.actor(None), dry_run=dry_run)
    if dry_run:
        print_json({"dry_run": True, **_fields(revoked)}) if wants_json() else say(_would("revoke", revoked))
        return
    print_json({"name": name, "revoked": True}) if wants_json() else say(f"Revoked {name}.")


def _show_secret(secret: str, token: TokenRecord) -> None:
    if wants_json():
        print_json({**_fields(token), "token": secret})
        return
    say(secret)
    note("This secret is not shown again.")


def _fields(token: TokenRecord) -> dict[str, object]:
    return {
        "name": token.name,
        "role": token.role,
        "state": token.state(),
        "prefix": token.prefix,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "rate_limit": token.rate_limit,
        "rotated_at": token.rotated_at,
        "previous_until": token.previous_until,
        "previous_used_at": token.previous_used_at,
        "revoked_at": token.revoked_at,
        "corpora": token.corpora,
        "issuer": token.issuer,
    }


def _row(token: TokenRecord) -> tuple[object, ...]:
    return (
        token.name,
        token.role,
        ", ".join(token.corpora) if token.corpora else "all",
        f"{token.prefix}…" if token.prefix else "signs on" if token.issuer else None,
        _moment(token.created_at),
        _moment(token.last_used_at),
        _moment(token.expires_at),
        token.rate_limit,
        token.state(),
    )


def _would(verb: str, token: TokenRecord) -> str:
    ends = f", ending {_moment(token.expires_at)}" if token.expires_at else ""
    until = (
        f"; the old secret would work until {_moment(token.previous_until)}" if token.previous_until else ""
    )
    of = f" on {', '.join(token.corpora)}" if token.corpora else ""
    return f"Would {verb} the token {token.name} of role {token.role}{of}{ends}{until}."


def _moment(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M}" if time else ""
