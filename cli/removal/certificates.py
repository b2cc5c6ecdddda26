"""Commands that issue signed evidence of forget runs and of erasures, and the one that checks it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import MAX_BIGINT, examples, finite, some_text, time, wants_json, without_json
from colmlm.cli.output import counted, note, print_json, say
from colmlm.kb.texts.characters import json_visible

if TYPE_CHECKING:
    from colmlm.kb.removal.records import CertificateCheck


# The options of the commands of `colmlm forget`: the parts of a selector, and how a plan is made.


class Policy(StrEnum):
    abstain = "abstain"
    successor = "successor"


class Equivalents(StrEnum):
    include = "include"
    only_list = "only-list"
    exclude = "exclude"


RunId = Annotated[int, typer.Argument(metavar="RUN", min=1, max=MAX_BIGINT, help="See `colmlm forget list`.")]

Facts = Annotated[
    list[int] | None, typer.Option("--fact", min=1, max=MAX_BIGINT, help="A fact's id; may be repeated.")
]
OfDocument = Annotated[
    str | None, typer.Option("--document", callback=some_text, help="A document's id, or corpus/name.")
]
OfCorpus = Annotated[str | None, typer.Option("--corpus", callback=some_text, help="Facts of this corpus.")]
OfUri = Annotated[
    str | None, typer.Option("--uri", callback=some_text, help="Facts of documents with this address.")
]
UriPrefix = Annotated[
    str | None,
    typer.Option("--uri-prefix", callback=some_text, help="Facts of documents whose address begins so."),
]
WithText = Annotated[
    str | None,
    typer.Option("--text", callback=some_text, help="Value or question holds this text, in either case."),
]
WithQuestion = Annotated[
    str | None, typer.Option("--question", callback=some_text, help="The question is exactly this.")
]
Licence = Annotated[
    str | None,
    typer.Option("--licence", callback=some_text, help="Facts of documents under this licence."),
]
FromSeq = Annotated[
    int | None,
    typer.Option("--from-seq", min=1, max=MAX_BIGINT, help="Added by this change or a later one."),
]
ToSeq = Annotated[
    int | None,
    typer.Option("--to-seq", min=1, max=MAX_BIGINT, help="Added by this change or an earlier one."),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", parser=time, metavar="TIME", help="Added at this time or later (ISO 8601; UTC)."),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        "--until", parser=time, metavar="TIME", help="Added at this time or before (ISO 8601; UTC)."
    ),
]
Like = Annotated[
    int | None,
    typer.Option("--like", min=1, max=MAX_BIGINT, help="Facts whose key is near this fact's."),
]
Radius = Annotated[
    float | None,
    typer.Option(
        "--radius",
        min=-1,
        max=1,
        callback=finite,
        help="Least cosine for --like and for equivalents. Default: the keyset's threshold.",
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="Every live fact; leaves no room for other parts.")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Matching nothing is no error.")]
WithEquivalents = Annotated[
    Equivalents, typer.Option("--equivalents", help="What to do with facts that say the same elsewhere.")
]
WithPolicy = Annotated[
    Policy, typer.Option("--policy", help="What a question gets: no match, or the next fact.")
]

NoModel = Annotated[
    bool, typer.Option("--no-model", help="Load no model: stored keys stand for the questions of facts.")
]
Sample = Annotated[
    int,
    typer.Option("--sample", min=1, max=100_000, help="How many facts to preview and ask about at most."),
]
WhyOrDefault = Annotated[
    str | None, typer.Option("--reason", callback=some_text, help="Why. Default: the plan's reason.")
]


CHECK_EXAMPLES = examples(
    "colmlm log certificate run-1.json",
    "colmlm log certificate run-1.json --offline --public-key base.pem --json",
)
ERASURE_EXAMPLES = examples("colmlm erase certificate 41", "colmlm erase certificate 41 --output erased.json")
CertificateFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", dir_okay=False, help="As `forget certificate` or `erase certificate` wrote it."
    ),
]
Out = Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write it to this file.")]
Seq = Annotated[
    int,
    typer.Argument(metavar="SEQ", min=1, max=MAX_BIGINT, help="The change that erased; see `colmlm erase`."),
]


@anywhere
@without_json
def certificate(base: Base, run_id: RunId, out: Out = None) -> None:
    """Give the signed certificate of a verified run, as JSON on stdout or as a file."""
    _give(base.forgetting.certificate(run_id), out)


@anywhere
@without_json
def erasure_certificate(base: Base, seq: Seq, out: Out = None) -> None:
    """Give the signed certificate of an erasure as of now, as JSON on stdout or as a file."""
    _give(base.erasures.certificate(seq), out)


def _give(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(json_visible(text), nl=False)
        return
    out.write_text(text, encoding="utf-8")
    note(f"Wrote {out}. To check it anywhere: colmlm log certificate FILE")


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
) -> None:
    """Check a certificate: who signed it, what it says, and whether the base agrees. If it fails, the exit code is 1.

    The base's own key must have signed it, unless another is named. The base must have its change. A forget run must
    still be applied or erased, erased facts still be erased. With --offline only signature, change hash and counts are
    checked.
    """
    from colmlm.kb.removal.certificate import check_offline, trusted_keys

    text, pem = file.read_bytes(), public_key.read_text(encoding="utf-8") if public_key else None
    if offline:
        found = check_offline(text, trusted_keys([key] if key else (), pem))
    else:
        found = base.forgetting.check_certificate(text, key=key, public_key=pem)
    if wants_json():
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
