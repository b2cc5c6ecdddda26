"""A command that also takes the options of the whole program after its name: --json, --server and --token-file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from colmlm.cli.options import Json, ProgramOptions, Server, TokenFile, using_options

NAMES = {"as_json": "--json", "server": "--server", "token_file": "--token-file"}


class OptionRefused(typer.TyperException):
    """An option of the program before a command that cannot use it."""

    exit_code = 2

    def __init__(self, option_name: str, context: Any) -> None:
        self.option_name, self.ctx = option_name, context
        super().__init__(f"No such option: {option_name}")


class _OwnOptions:
    """The options of the whole program, for a command and for a group that runs by itself.

    They are hidden, since the help of each command names them in one line, and no function gets them as arguments.
    """

    callback: Any

    def program_options(self) -> Iterator[Any]:
        """List the program's options that this command can use."""
        shared = _declared_options()
        if getattr(self.callback, "takes_json", True):
            yield shared["as_json"]
        if getattr(self.callback, "takes_server", False):
            yield from (shared["server"], shared["token_file"])

    def refuse_others(self, context: Any) -> None:
        """Raise `OptionRefused` for an option before the command that the command cannot use."""
        usable = {option.name for option in self.program_options()}
        given = context.find_root().ensure_object(ProgramOptions)
        for name in NAMES:
            if name not in usable and getattr(given, name) not in (None, False):
                raise OptionRefused(NAMES[name], context)

    def complete_options(self, begun: str) -> list[Any]:
        """Give the options of the program that a shell may go on with."""
        from typer._click.shell_completion import CompletionItem

        offered = ((option, NAMES[option.name]) for option in self.program_options())
        return [CompletionItem(name, help=option.help) for option, name in offered if name.startswith(begun)]

    def end_of_help(self, epilog: str | None) -> str:
        """Write the end of a command's help: the options of the program that it takes, then the examples."""
        names = [NAMES[option.name] for option in self.program_options()]
        also = f"Also {', '.join(names)}, options of the whole program." if names else ""
        return "\n\n".join(filter(None, (also, epilog)))


class Command(_OwnOptions, TyperCommand):
    """A command of the program."""

    def __init__(self, name: str | None, **given: Any) -> None:
        super().__init__(name, **given)
        self.epilog = self.end_of_help(self.epilog)

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *self.program_options()]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        own = super().shell_complete(ctx, incomplete)
        return [*own, *self.complete_options(incomplete)] if incomplete.startswith("-") else own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        left: list[str] = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            self.refuse_others(ctx)
            given = ctx.find_root().ensure_object(ProgramOptions)
            given.command = tuple(ctx.command_path.split()[1:])
            ctx.with_resource(using_options(given))
        return left


class RunningGroup(_OwnOptions, TyperGroup):
    """A group that runs a function of its own if none of its commands is named."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.epilog = self.end_of_help(self.epilog)

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *self.program_options()]

    def invoke(self, ctx: Any) -> Any:
        if not ctx._protected_args:
            self.refuse_others(ctx)
        with using_options(ctx.find_root().ensure_object(ProgramOptions)):
            return super().invoke(ctx)


@cache
def _declared_options() -> dict[str, Any]:
    """Declare the options of the program once more, for use after a command."""

    def declare(as_json: Json = False, server: Server = None, token_file: TokenFile = None) -> None:
        """Take the options."""

    app = typer.Typer(add_completion=False)
    app.command()(declare)
    options: dict[str, Any] = {str(option.name): option for option in typer.main.get_command(app).params}
    for option in options.values():
        option.hidden, option.expose_value, option.callback = True, False, _keep
    return options


def _keep(context: Any, option: Any, value: Any) -> Any:
    if value not in (None, False):
        setattr(context.find_root().ensure_object(ProgramOptions), option.name, value)
    return value


class DefaultGroup(TyperGroup):
    """A group whose first command runs if none is named: `erase 12` is `erase facts 12`."""

    def with_default(self, args: list[str]) -> list[str]:
        """Put the name of the first command before arguments that begin with no command's name."""
        is_named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return args if is_named else [next(iter(self.commands)), *args]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.with_default(args))
