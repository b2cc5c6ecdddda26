"""The command `colmlm`: mounts one module per noun and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from colmlm.cli.auditing import audit, changes, trace
from colmlm.cli.contents import corpus, demo, documents, facts, generation
from colmlm.cli.errors import BROKEN_PIPE, CHECK_FAILED, explain, one_line
from colmlm.cli.keysets import checkpoint, keysets
from colmlm.cli.operating import backup, database, doctor, jobs, keys, serving, sizing
from colmlm.cli.options import examples
from colmlm.cli.removal import certificates, erase, erasures, forget
from colmlm.kb import interpreter
from colmlm.lab.bench import command as bench
from colmlm.model.lm.memory import prefer_jemalloc

# Modules whose import costs seconds: name, then what `colmlm --help` says of them without importing them.
_HEAVY = {
    "train": ("colmlm.cli.training.train", "Train a checkpoint on an annotated corpus."),
    "evaluate": (
        "colmlm.lab.evaluate.command",
        "Measure a checkpoint: recall of its keys, answers, and unlearning.",
    ),
    "annotator": (
        "colmlm.cli.annotation.annotator",
        "Train, release and measure the annotators of raw text.",
    ),
    "crashlab": (
        "colmlm.lab.crashlab.command",
        "Kill processes at seeded instants and check that nothing was lost.",
    ),
}

# Commands that train or encode: the allocator decides how fast those are.
_TENSOR_COMMANDS = frozenset(
    {
        "train",
        "evaluate",
        "rekey",
        "check",
        "calibrate",
        "up",
        "serve",
        "forget",
        "encode",
        "decode",
        "add",
        "annotate",
        "worker",
    }
)

# What only the machine of a knowledge base can do by itself, and a worker there for anybody: command, kind of job.
_AS_A_JOB = {"rekey": "rekey", "fsck": "fsck", "backup create": "backup"}


class Root(TyperGroup):
    """The command group that knows the heavy commands by name and lets no traceback out."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_HEAVY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _HEAVY:
            return TyperCommand(cmd_name, help=_HEAVY[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in _HEAVY:
            return args[0], heavy_command(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _terminable():
                result = super().invoke(ctx)
                sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except (Exception, KeyboardInterrupt) as error:
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
        """Run and exit; of the parameters only those that say what to run are heeded."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:  # the command line itself is wrong
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "colmlm"
            _complain(_wrong(error, command))
            code = error.exit_code
        except typer.Abort:
            _complain("Not confirmed; nothing was done. Pass --yes to go on without being asked.")
            code = CHECK_FAILED
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a request to terminate unwind like Ctrl-C.

    Otherwise the demo would leave facts deleted, and nobody would stop the embedded database.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def heavy_command(name: str) -> Any:
    """Import the module of a heavy command and give the command."""
    command = typer.main.get_command(import_module(_HEAVY[name][0]).app)
    command.name = name
    return command


def _wrong(error: typer.TyperException, command: str) -> str:
    """What is wrong with the command line."""
    if getattr(error, "option_name", None) in ("--server", "--key-file"):
        kind = _AS_A_JOB.get(command.partition(" ")[2])
        remedy = f"a worker there does it as a job: colmlm jobs start {kind}" if kind else "run it there"
        return f"{command}: it works only on the machine of the knowledge base; {remedy}."
    return f"{command}: {error.format_message().rstrip('.')}. See: {command} --help"


def _report(error: BaseException, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    failure = explain(error)
    if failure.exit_code == BROKEN_PIPE:
        # What is left in the buffer has no reader; flushing it at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if failure.line:
        _complain(failure.line)
    return failure.exit_code


def _complain(line: str) -> None:
    sys.stderr.write(f"error: {one_line(line)}\n")


app = typer.Typer(
    cls=Root,
    name="colmlm",
    help="A knowledge base that a language model reads and people can edit, audit and trust.",
    epilog=examples(
        "colmlm up", "colmlm demo", 'colmlm generate "Question: Who discovered hydrogen? Answer:"'
    ),
    pretty_exceptions_enable=False,
)
app.command("up", epilog=serving.UP_EXAMPLES)(serving.up)
app.command("serve", epilog=serving.SERVE_EXAMPLES)(serving.serve)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("generate", epilog=generation.GENERATE_EXAMPLES)(generation.generate)
app.command("lookup", epilog=generation.LOOKUP_EXAMPLES)(generation.lookup)
app.add_typer(facts.app, name="facts")
app.command("erase", epilog=erase.ERASE_EXAMPLES)(erase.erase)
app.add_typer(erasures.app, name="erasures")
app.command("scan-residue", epilog=erase.SCAN_EXAMPLES)(erase.scan_residue)
app.add_typer(forget.app, name="forget")
app.command("verify-certificate", epilog=certificates.CHECK_EXAMPLES)(certificates.verify_certificate)
app.add_typer(corpus.app, name="corpus")
app.add_typer(documents.app, name="documents")
app.command("stats", epilog=documents.STATS_EXAMPLES)(documents.stats)
app.add_typer(trace.app, name="trace")
app.add_typer(changes.app, name="changes")
app.add_typer(audit.app, name="audit")
app.add_typer(backup.app, name="backup")
app.command("impact", epilog=audit.IMPACT_EXAMPLES)(audit.impact)
app.command("fsck", epilog=changes.FSCK_EXAMPLES)(changes.fsck)
app.command("rekey", epilog=keysets.REKEY_EXAMPLES)(keysets.rekey)
app.add_typer(keysets.app, name="keysets")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(database.app, name="db")
app.add_typer(keys.app, name="keys")
app.add_typer(jobs.app, name="jobs")
app.command("worker", epilog=jobs.WORKER_EXAMPLES)(jobs.worker)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("sizing", epilog=sizing.EXAMPLES)(sizing.sizing)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        typer.echo(_version())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _version() -> str:
    try:
        return version("colmlm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def main() -> None:
    """The console script."""
    interpreter.shut_out_current_directory()
    if any(argument in _TENSOR_COMMANDS for argument in sys.argv[1:3]):
        prefer_jemalloc(interpreter.again())
    if not sys.warnoptions:
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # libraries tell their callers' authors what will change
    app(prog_name="colmlm")


if __name__ == "__main__":
    main()
