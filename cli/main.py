"""The command `colmlm`: mounts one module per noun."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Annotated

import typer

from colmlm.cli.auditing import audit, changes, trace
from colmlm.cli.contents import corpus, demo, documents, facts, generation
from colmlm.cli.keysets import checkpoint, keysets
from colmlm.cli.operating import backup, database, doctor, jobs, keys, serving, sizing
from colmlm.cli.options import examples
from colmlm.cli.removal import certificates, erase, erasures, forget
from colmlm.cli.root import LABORATORY, Debug, Heavy, Root, start


class Colmlm(Root):
    """The root of `colmlm`. What measures is in the laboratory, and keeps its names here."""

    heavy = MappingProxyType(
        {
            "train": Heavy("colmlm.cli.training.train", "Train a checkpoint on an annotated corpus."),
            "annotator": Heavy(
                "colmlm.cli.annotation.annotator", "Train, release and measure the annotators of raw text."
            ),
            **LABORATORY,
        }
    )


app = typer.Typer(
    cls=Colmlm,
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


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Debug = False,
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
    start(app, "colmlm")


if __name__ == "__main__":
    main()
