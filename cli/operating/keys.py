"""`colmlm keys`: creates, lists, rotates and revokes API keys. `colmlm up` makes the first."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import AsJson, DryRun, Yes, examples, span
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.access.records import MAX_RATE

if TYPE_CHECKING:
    from colmlm.kb.access.records import ApiKeyRecord

app = typer.Typer(
    help="Make, list, rotate and revoke access keys of the API.",
    epilog=examples("colmlm keys list", "colmlm keys create curator --role operator --expires-in 90d"),
)


class Role(StrEnum):
    """The roles of `kb.access.records.ROLES`, as choices of an option."""

    decoder = "decoder"
    reader = "reader"
    operator = "operator"
    auditor = "auditor"
    trainer = "trainer"
    admin = "admin"


KeyName = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose key; the change log names it as the actor.")
]
Span = timedelta | None


@app.command(
    epilog=examples(
        "colmlm keys create ann --role auditor",
        "colmlm keys create gpu-host --role decoder --expires-in 90d --rate-limit 60000",
        "colmlm keys create curator --role operator --json",
    )
)
@anywhere
def create(
    base: Base,
    name: KeyName,
    role: Annotated[
        Role, typer.Option("--role", help="What it may do; the roles are in docs/access.md.")
    ] = Role.reader,
    expires_in: Annotated[
        Span,
        typer.Option(
            "--expires-in", parser=span, metavar="SPAN", help="Ends by itself after 90d, 12h or 30m."
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
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a key and print its token, this once: only a digest of it is kept."""
    token, made = base.keys.create(name, role, expires_in=expires_in, rate_limit=rate_limit, dry_run=dry_run)
    if dry_run:
        print_json({"dry_run": True, **_shown(made)}) if as_json else say(_would("make", made))
        return
    _give(token, made, as_json)


@app.command("list", epilog=examples("colmlm keys list", "colmlm keys list --json"))
@anywhere
def list_keys(base: Base, as_json: AsJson = False) -> None:
    """List every key, the ended ones too; never a token."""
    keys = base.keys.all()
    if as_json:
        print_json({"keys": [_shown(key) for key in keys]})
        return
    columns = ("name", "role", "token", "made", "used last", "ends", "a minute", "state")
    print_table(columns, map(_row, keys))
    for key in keys:
        if key.state() == "in use" and key.previous_until is not None:
            used = f"used last {_moment(key.previous_used_at)}" if key.previous_used_at else "not used since"
            note(
                f"{key.name}: the token before the rotation works until {_moment(key.previous_until)}, {used}."
            )


@app.command(
    epilog=examples(
        "colmlm keys rotate curator --grace 24h", "colmlm keys rotate gpu-host --expires-in 90d --yes --json"
    )
)
@anywhere
def rotate(
    base: Base,
    name: KeyName,
    grace: Annotated[
        timedelta,
        typer.Option(
            "--grace", parser=span, metavar="SPAN", help="How long the old token works beside the new one."
        ),
    ] = "0",  # type: ignore[assignment]  # parsed as if it were typed
    expires_in: Annotated[
        Span,
        typer.Option(
            "--expires-in", parser=span, metavar="SPAN", help="A new end, which brings an expired key back."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give a key a new token, printed this once. Name, role and limit stay.

    At most two tokens of a key work: rotating again ends the older one at once.
    """
    if not grace:
        require_somebody(yes or dry_run, as_json, "end the old token at once")
    if not (grace or dry_run or yes):
        base.keys.show(name)
        typer.confirm(f"End the token of {name} that is in use now?", abort=True, err=True)
    token, rotated = base.keys.rotate(name, grace=grace, expires_in=expires_in, dry_run=dry_run)
    if dry_run:
        print_json({"dry_run": True, **_shown(rotated)}) if as_json else say(_would("rotate", rotated))
        return
    _give(token, rotated, as_json)


@app.command(epilog=examples("colmlm keys revoke ann --dry-run", "colmlm keys revoke ann --yes"))
@anywhere
def revoke(
    base: Base, name: KeyName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """End a key and all its tokens for good, at once and in every process."""
    require_somebody(yes or dry_run, as_json, "revoke")
    if not (dry_run or yes):
        base.keys.show(name)
        typer.confirm(f"Revoke the key {name}?", abort=True, err=True)
    revoked = base.keys.revoke(name, dry_run=dry_run)
    if dry_run:
        print_json({"dry_run": True, **_shown(revoked)}) if as_json else say(_would("revoke", revoked))
        return
    print_json({"name": name, "revoked": True}) if as_json else say(f"Revoked {name}.")


def _give(token: str, key: ApiKeyRecord, as_json: bool) -> None:
    if as_json:
        print_json({**_shown(key), "token": token})
        return
    say(token)
    note("This token is not shown again.")


def _shown(key: ApiKeyRecord) -> dict[str, object]:
    return {
        "name": key.name,
        "role": key.role,
        "state": key.state(),
        "prefix": key.prefix,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "rate_limit": key.rate_limit,
        "rotated_at": key.rotated_at,
        "previous_until": key.previous_until,
        "previous_used_at": key.previous_used_at,
        "revoked_at": key.revoked_at,
    }


def _row(key: ApiKeyRecord) -> tuple[object, ...]:
    return (
        key.name,
        key.role,
        f"{key.prefix}…" if key.prefix else None,
        _moment(key.created_at),
        _moment(key.last_used_at),
        _moment(key.expires_at),
        key.rate_limit,
        key.state(),
    )


def _would(verb: str, key: ApiKeyRecord) -> str:
    ends = f", ending {_moment(key.expires_at)}" if key.expires_at else ""
    until = f"; the old token would work until {_moment(key.previous_until)}" if key.previous_until else ""
    return f"Would {verb} the key {key.name} of role {key.role}{ends}{until}."


def _moment(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M}" if time else ""
