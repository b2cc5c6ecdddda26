"""The command `colmlm` as Typer runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from colmlm.cli.options import Json, ProgramOptions, Server, TokenFile, examples
from colmlm.cli.start.commands import COMMANDS
from colmlm.cli.start.root import Debug, Root
from colmlm.cli.version import version


class Colmlm(Root):
    """The root command group of `colmlm`."""

    lazy = COMMANDS


app = typer.Typer(
    cls=Colmlm,
    name="colmlm",
    help="A knowledge base that a language model reads and people can edit, audit and trust.",
    epilog=examples(
        "colmlm up", "colmlm demo", 'colmlm generate "Question: Who discovered hydrogen? Answer:"'
    ),
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Debug = False,
    as_json: Json = False,
    server: Server = None,
    token_file: TokenFile = None,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    context.obj = ProgramOptions(as_json, server, token_file)
    if show_version:
        typer.echo(version())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
