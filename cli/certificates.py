"""`colmlm forget certificate` and `colmlm verify-certificate`: signed evidence, and its check without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.anywhere import anywhere
from cli.errors import CHECK_FAILED
from cli.forget_options import RunId
from cli.forget_show import in_words
from cli.nouns.base import Base
from cli.options import AsJson, examples, some_text
from cli.output import note, print_json, say
from kb import certificates

CHECK_EXAMPLES = examples(
    "colmlm verify-certificate run-1.json",
    "colmlm verify-certificate run-1.json --key 0123456789abcdef --json",
)
CertificateFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", dir_okay=False, help="As `colmlm forget certificate` wrote it."),
]


@anywhere
def certificate(
    base: Base,
    run_id: RunId,
    out: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="Write it to this file.")] = None,
) -> None:
    """Give the signed certificate of a verified run, as JSON on stdout or as a file."""
    text = base.forgetting.certificate(run_id)
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    note(f"Wrote {out}. To check it anywhere: colmlm verify-certificate FILE")


def verify_certificate(
    file: CertificateFile,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FINGERPRINT", callback=some_text, help="Who must have signed it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate without any database: signature, change hash, counts. The exit code is 1 where it fails."""
    found = certificates.check(file.read_bytes(), key)
    if as_json:
        print_json(found)
    else:
        _show_check(found)
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _show_check(found: certificates.CertificateCheck) -> None:
    say("ok" if found.ok else "NOT ok")
    for problem in found.problems:
        say(problem)
    if found.signed_by is None:
        return
    say(f"signed by {found.signed_by}, {found.issued_at}, database {found.database}")
    forgotten = in_words(found.num_facts or 0)
    say(f"run {found.run_id}: {forgotten} forgotten by change {found.applied_seq}, policy {found.policy}")
    say(f"change hash {found.applied_hash}")
    say(f"level {found.level}: {found.reached}")
    say("It proves:")
    for line in found.proves:
        say(f"- {line}")
    say("It does not prove:")
    for line in found.does_not_prove:
        say(f"- {line}")
