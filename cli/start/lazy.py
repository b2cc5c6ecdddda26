"""Commands that are imported only when they are called: the module of each, and its help until then."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple


class Lazy(NamedTuple):
    """A command that is imported when it is called. `where` is its module, and its function or Typer app there.

    `help` is its line in a list of commands; `examples` is the name of a function's examples in that module.
    """

    where: str
    help: str
    examples: str | None = None

    def command(self, name: str) -> Any:
        """Import the module and give its command, under this name."""
        return _import_command(self, name)


@cache
def _import_command(lazy: Lazy, name: str) -> Any:
    from importlib import import_module

    import typer

    from colmlm.cli.start.command import Command

    module_name, _, attribute = lazy.where.partition(":")
    module = import_module(module_name)
    app = getattr(module, attribute)
    if not isinstance(app, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=getattr(module, lazy.examples) if lazy.examples else None)(app)
        app = alone
    for group in (app, *(nested.typer_instance for nested in app.registered_groups if nested.typer_instance)):
        for registered in group.registered_commands:
            registered.cls = Command
    command = typer.main.get_command(app)
    command.name = name
    return command
