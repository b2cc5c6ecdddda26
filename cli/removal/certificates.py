"""Commands that issue signed evidence of forget runs and of erasures, and the one that checks it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import MAX_BIGINT, AsJson, examples, some_text
from colmlm.cli.output import counted, note, print_json, say
from colmlm.cli.removal.forget_options import RunId
from colmlm.kb.texts.characters import json_visible

if TYPE_CHECKING:
    from colmlm.kb.forgetting.certificates import CertificateCheck

CHECK_EXAMPLES = examples(
    "colmlm verify-certificate run-1.json",
    "colmlm verify-certificate run-1.json --offline --public-key base.pem --json",
)
ERASURE_EXAMPLES = examples(
    "colmlm erasures certificate 41", "colmlm erasures certificate 41 --out erased.json"
)
CertificateFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", dir_okay=False, help="As `forget certificate` or `erasures certificate` wrote it."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", dir_okay=False, help="Write it to this file.")]
Seq = Annotated[
    int,
    typer.Argument(metavar="SEQ", min=1, max=MAX_BIGINT, help="The change that erased; see `colmlm erase`."),
]


@anywhere
def certificate(base: Base, run_id: RunId, out: Out = None) -> None:
    """Give the signed certificate of a verified run, as JSON on stdout or as a file."""
    _give(base.forgetting.certificate(run_id), out)


@anywhere
def erasure_certificate(base: Base, seq: Seq, out: Out = None) -> None:
    """Give the signed certificate of an erasure as of now, as JSON on stdout or as a file."""
    _give(base.erasures.certificate(seq), out)


def _give(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(json_visible(text), nl=False)
        return
    out.write_text(text, encoding="utf-8")
    note(f"Wrote {out}. To check it anywhere: colmlm verify-certificate FILE")


@anywhere
def verify_certificate(
    base: Base,
    file: CertificateFile,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key", exists=True, dir_okay=False, help="Who must have signed it, as a PEM file."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", callback=some_text, help="The same by the key's id or fingerprint."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no knowledge base; the signer must be named.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a certificate: who signed it, what it says, and whether the base agrees. If it fails, the exit code is 1.

    The base's own key must have signed it, unless another is named. The base must have its change. A forget run must
    still be applied or erased, erased facts still be erased. With --offline only signature, change hash and counts are
    checked.
    """
    from colmlm.kb.forgetting.certificates import check_offline, trusted_keys

    text, pem = file.read_bytes(), public_key.read_text(encoding="utf-8") if public_key else None
    if offline:
        found = check_offline(text, trusted_keys([key] if key else (), pem))
    else:
        found = base.forgetting.check_certificate(text, key=key, public_key=pem)
    if as_json:
        print_json(found)
    else:
        _show_check(found)
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _show_check(found: CertificateCheck) -> None:
    say("ok" if found.ok else "NOT ok")
    for check in found.checks:
        say(f"{'ok' if check.ok else 'NOT ok'}, {check.name}: {check.found}")
    if found.applied_seq is None:
        return
    say(f"signed by {found.signed_by}, {found.issued_at}, database {found.database}")
    forgotten = counted(found.num_facts or 0, "fact")
    if found.run_id is None:
        say(f"{forgotten} erased by change {found.applied_seq}")
    else:
        say(f"run {found.run_id}: {forgotten} forgotten by change {found.applied_seq}, policy {found.policy}")
    say(f"change hash {found.applied_hash}")
    say(f"level {found.level}: {found.reached}")
    say("It proves:")
    for line in found.proves:
        say(f"- {line}")
    say("It does not prove:")
    for line in found.does_not_prove:
        say(f"- {line}")
