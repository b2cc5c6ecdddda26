"""`colmlm keys`: the access keys of the API. `colmlm up` makes the first."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from cli.options import AsJson, examples
from cli.output import note, print_json, print_table, say
from cli.runtime import Runtime
from kb import access

app = typer.Typer(help="Make, list and revoke access keys of the API.", epilog=examples("colmlm keys list"))


class Role(StrEnum):
    """As in `kb.access.ROLES`."""

    decoder = "decoder"
    reader = "reader"
    operator = "operator"
    auditor = "auditor"
    trainer = "trainer"
    admin = "admin"


KeyName = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose key; the change log names it as the actor.")
]


@app.command(
    epilog=examples("colmlm keys create auditor", "colmlm keys create curator --role operator --json")
)
def create(
    name: KeyName,
    role: Annotated[Role, typer.Option("--role", help="How far it reaches.")] = Role.reader,
    as_json: AsJson = False,
) -> None:
    """Make a key and print its token, this once: only a digest of it is kept."""
    with Runtime.from_environment() as runtime, Session(runtime.kb.engine) as session, session.begin():
        token = access.create_key(session, name, role)
    if as_json:
        print_json({"name": name, "role": role, "token": token})
        return
    say(token)
    note("This token is not shown again.")


@app.command("list", epilog=examples("colmlm keys list", "colmlm keys list --json"))
def list_keys(as_json: AsJson = False) -> None:
    """List every key, the revoked ones too; never a token."""
    with Runtime.from_environment() as runtime, Session(runtime.kb.engine) as session:
        keys = access.list_keys(session)
    if as_json:
        print_json({"keys": keys})
        return
    rows = [
        (k.name, k.role, f"{k.created_at:%Y-%m-%d %H:%M}", "revoked" if k.revoked_at else "") for k in keys
    ]
    print_table(("name", "role", "made", ""), rows)


@app.command(epilog=examples("colmlm keys revoke auditor"))
def revoke(name: KeyName, as_json: AsJson = False) -> None:
    """End a key, from now on and in every process."""
    with Runtime.from_environment() as runtime, Session(runtime.kb.engine) as session, session.begin():
        access.revoke_key(session, name)
    print_json({"name": name, "revoked": True}) if as_json else say(f"Revoked {name}.")
