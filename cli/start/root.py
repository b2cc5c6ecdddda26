"""The root of a command line: imports a command when it is called, and turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from colmlm.cli.errors import BROKEN_PIPE, CHECK_FAILED, explain, one_line
from colmlm.cli.options import Json, ProgramOptions, Server, TokenFile, examples
from colmlm.cli.start.commands import COMMANDS, VERBS, Lazy
from colmlm.kb import interpreter

# Commands that train or encode, whose speed depends on the memory allocator. So do those with `--calibrate`.
_TENSOR_COMMANDS = frozenset(
    {
        "train",
        "evaluate",
        "unlearn",
        "up",
        "serve",
        "forget",
        "worker",
        "mcp",
        "keysets create",
        "keysets fill",
        "keysets check",
        "bench encode",
        "bench decode",
        "bench train",
        "bench serve",
        "corpus add",
        "corpus annotate",
        "facts add",
    }
)

# What a short command makes, nearly all of it modules that stay: looking for garbage in it took a tenth of the time.
_FEW_OBJECTS = 200_000

# Commands that work only on the machine of a knowledge base, with the kind of job that does the same.
_AS_A_JOB = {
    "doctor": "fsck",
    "backup create": "backup",
    "corpus sync": "sync folder=NAME corpus=NAME",
}

_NO_NUMBER = "Input should be a valid integer, unable to parse string as an integer"  # Typer's words

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


class Root(TyperGroup):
    """A command group that imports its commands when they are called, and prints no traceback."""

    lazy: ClassVar[Mapping[str, Lazy]] = MappingProxyType({})
    verbs: ClassVar[Mapping[str, Mapping[str, str]]] = MappingProxyType({})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a command for the list of commands, with its help only; `resolve_command` gives the one that runs."""
        found = self.lazy.get(cmd_name)
        return None if found is None else TyperCommand(cmd_name, help=found.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in self.lazy:
            return args[0], self.lazy[args[0]].command(args[0]), args[1:]
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            from difflib import get_close_matches

            words = [
                word for word in args[:2] if word.replace("-", "").isalpha() and not word.startswith("-")
            ]
            near = get_close_matches(args[0], self.lazy) if args else []
            _suggest(error, near or self.find_meant(words))
            raise

    def find_meant(self, words: Sequence[str]) -> list[str]:
        """Find the commands that unknown words may mean: by a similar name, else by a word of their help."""
        from difflib import get_close_matches

        lines = {name: lazy.help for name, lazy in self.lazy.items()}
        for group, verbs in self.verbs.items():
            lines |= {f"{group} {verb}": line for verb, line in verbs.items()}
        for word in reversed(words):
            names = get_close_matches(word, {path.rpartition(" ")[2] for path in lines}, cutoff=0.8)
            if found := [path for path in lines if path.rpartition(" ")[2] in names[:1]]:
                return found
            told = (line.lower().replace(",", "").split()[:4] for line in lines.values())
            if found := [path for path, verbs in zip(lines, told, strict=True) if word in verbs]:
                return found
        return get_close_matches(" ".join(words), lines, cutoff=0.8)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _terminable():
                result = super().invoke(ctx)
                sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except (Exception, KeyboardInterrupt) as error:  # each error becomes one line and an exit code
            raise typer.Exit(_report(error, debug=ctx.params.get("debug", False))) from error
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code. `standalone_mode` is ignored."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:  # the command line itself is wrong
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "colmlm"
            if (unknown := _UNKNOWN.fullmatch(error.message)) and " " in command:
                _suggest(
                    error,
                    [path for path in self.find_meant([unknown[1]]) if path != command.split(" ", 1)[1]],
                )
            _complain(_wrong(error, command))
            code = error.exit_code
        except typer.Abort:
            _complain("Not confirmed; nothing was done. Pass --yes to go on without being asked.")
            code = CHECK_FAILED
        sys.exit(code if isinstance(code, int) else 0)


_UNKNOWN = re.compile(r"No such command '([a-z-]+)'\.")  # and nothing like it in its group
_MOST_MEANT = 4


def _suggest(error: typer.TyperException, meant: Sequence[str]) -> None:
    if 0 < len(meant) <= _MOST_MEANT:
        names = " or ".join(f"colmlm {name}" for name in meant)
        error.message = f"{error.message.rstrip('.')}. Did you mean {names}?"


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise like Ctrl-C, so that the program cleans up, also where its terminal is closed.

    Otherwise the demo would leave facts deleted, and nobody would stop the embedded database. An ignored signal, as
    SIGHUP under `nohup`, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _wrong(error: typer.TyperException, command: str) -> str:
    """Describe what is wrong with the command line, with the remedy."""
    if getattr(error, "option_name", None) in ("--server", "--token-file"):
        kind = _AS_A_JOB.get(command.partition(" ")[2])
        remedy = f"a worker there does it as a job: colmlm jobs start {kind}" if kind else "run it there"
        return f"{command}: it works only on the machine of the knowledge base; {remedy}."
    message = error.format_message().replace(_NO_NUMBER, "it takes whole numbers").rstrip(".")
    message = message.replace("Value error, ", "")  # pydantic's words
    return f"{command}: {message}{'' if message.endswith('?') else '.'} See: {command} --help"


def _report(error: BaseException, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    failure = explain(error)
    if failure.exit_code == BROKEN_PIPE:
        # Nobody reads what is left in the buffer, and flushing it at exit would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if failure.line:
        _complain(failure.line)
    return failure.exit_code


def _complain(line: str) -> None:
    sys.stderr.write(f"error: {one_line(line)}\n")


def start(app: typer.Typer, name: str) -> None:
    """Run the program as a console script of this name."""
    interpreter.shut_out_current_directory()
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    command = (*words[:1], " ".join(words[:2]))
    if "--calibrate" in sys.argv or not _TENSOR_COMMANDS.isdisjoint(command):
        from colmlm.model.lm.llama import prefer_jemalloc

        prefer_jemalloc(interpreter.restart_command())
    else:
        gc.set_threshold(_FEW_OBJECTS)
    if not sys.warnoptions:
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # such warnings are for the authors of programs that call a library, and not for users
    try:
        app(prog_name=name)
    finally:
        gc.freeze()  # the process ends here, and collecting garbage first took a quarter of `--help`


class Colmlm(Root):
    """The root command group of `colmlm`."""

    lazy = COMMANDS
    verbs = VERBS


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


def version() -> str:
    """Give the version; "unknown" where the program runs from a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("colmlm")
    except PackageNotFoundError:
        return "unknown"
