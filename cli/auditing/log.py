"""`colmlm log`: lists, compares, verifies and exports the change log, signs its head, and lists refused requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from colmlm.cli.auditing.trace import show_changes
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    DryRun,
    Limit,
    Output,
    Reason,
    Yes,
    each_once,
    examples,
    given_options,
    parse_time,
    principal_name,
    require_somebody,
    some_text,
    wants_json,
    without_json,
)
from colmlm.cli.output import count_of, note, plain, print_json, print_table, progress, say, shorten

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import FactDifference
    from colmlm.kb.log.audit import LogFilters
    from colmlm.kb.log.chain import Break
    from colmlm.kb.log.witness import AuditReport, Head
    from colmlm.kb.removal.records import CertificateCheck


Oldest = Annotated[bool, typer.Option("--oldest", help="Begin with the oldest change.")]
Before = Annotated[
    int | None,
    typer.Option("--before", min=1, max=MAX_BIGINT, help="Only changes before this one, newest first."),
]
Since = Annotated[
    datetime | None,
    typer.Option(
        "--since", parser=parse_time, metavar="TIME", help="From this time on: a date, 1d, yesterday."
    ),
]
AfterChange = Annotated[
    int | None,
    typer.Option("--after", min=0, max=MAX_BIGINT, help="Only changes after this one, oldest first."),
]


@dataclass(frozen=True, slots=True)
class LogRange:
    """At most `limit` changes for `log list`: newest first with `seq` below `before`, or oldest first above `after`."""

    before: int | None
    after: int | None
    limit: int
    oldest: bool

    def __post_init__(self) -> None:
        if self.before is not None and (self.oldest or self.after is not None):
            raise typer.BadParameter(
                "it lists the newest first; leave it, or --oldest and --after, out.", param_hint="--before"
            )

    @property
    def is_ascending(self) -> bool:
        return self.oldest or self.after is not None


def _show_log(base: Base, stretch: LogRange, **only: Unpack[LogFilters]) -> None:
    """Print the changes of a range that fit the filters; note the option for the next ones if there may be more."""
    if stretch.is_ascending:
        way, found = "after", base.log.changes(stretch.after or 0, stretch.limit, **only)
    else:
        before = MAX_BIGINT if stretch.before is None else stretch.before
        way, found = "before", base.log.changes_before(before, stretch.limit, **only)
    more = found[-1].seq if len(found) == stretch.limit else None
    if wants_json():
        print_json({"changes": found, "next_after": None, "next_before": None, f"next_{way}": more})
        return
    show_changes(found)
    if more is not None:
        note(f"More changes: --{way} {more}")


SHOWN = 20

app = typer.Typer(
    help="Read, verify, export and seal the change log, and compare two points in time.",
    epilog=examples("colmlm log verify"),
)

InputFile = Annotated[
    Path | None,
    typer.Option("--against", exists=True, dir_okay=False, help="A witnessed head; it must be in the log."),
]


@app.command(
    "list",
    epilog=examples(
        "colmlm log list --actor ann --kind delete", "colmlm log list --fact 12 --since 2026-01-01"
    ),
)
@anywhere
def list_changes(
    base: Base,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only changes by this person or token.")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal",
            callback=principal_name,
            help="Only changes this token, or user of the machine, was authenticated for.",
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind, such as delete.")] = None,
    fact: Annotated[int | None, typer.Option("--fact", min=1, help="Only changes of this fact.")] = None,
    since: Since = None,
    until: Annotated[
        datetime | None, typer.Option("--until", parser=parse_time, metavar="TIME", help="Before this time.")
    ] = None,
    before: Before = None,
    oldest: Oldest = False,
    after: AfterChange = None,
    limit: Limit = 100,
) -> None:
    """Show who changed what, when and why, newest first. It holds no fact text."""
    only: LogFilters = {
        "actor": actor, "principal": principal, "kind": kind, "fact_id": fact, "since": since, "until": until
    }  # fmt: skip
    _show_log(base, LogRange(before, after, limit, oldest=oldest), **only)


@app.command(
    epilog=examples(
        "colmlm log verify",
        "colmlm log verify --against head-2026-01.json",
        "colmlm log verify --log changes.jsonl --key 0123456789abcdef",
        "colmlm log verify run-1.json",
        "colmlm log verify run-1.json --offline --public-key base.pem --json",
    )
)
@anywhere
def verify(
    base: Base,
    certificate: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CERTIFICATE]",
            dir_okay=False,
            help="Check instead what `forget certificate`, `erase certificate` or `log export --change` wrote.",
        ),
    ] = None,
    against: InputFile = None,
    log_file: Annotated[
        Path | None,
        typer.Option("--log", exists=True, dir_okay=False, help="Check an exported log, not the database."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            callback=some_text,
            help="The key that must have signed: its fingerprint, of a certificate also its id.",
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key", exists=True, dir_okay=False, help="The key that must have signed, as PEM."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check a certificate without a base; the signer must be named.")
    ] = False,
) -> None:
    """Check the hash of every change, and whether a head that was witnessed earlier is still in the log.

    The exit code is 1 where it is not, or where a change was altered, removed or inserted, unless `log seal`
    acknowledged that. Every break is listed, and the changes after it are checked too. With --server the whole
    log is fetched and checked on this machine.

    Of a certificate it says who signed it and what it proves. The base's own key must have signed it, unless another
    is named. The base must have its change. A forget run must still be applied or erased, erased facts still be
    erased. With --offline only signature, change hash and counts are checked.
    """
    if certificate is not None:
        if against or log_file:
            named = given_options(against=against, log=log_file)
            raise typer.BadParameter("a certificate is checked alone; leave this out.", param_hint=named)
        from colmlm.kb.log.tree import is_proof

        if is_proof(said := certificate.read_text(encoding="utf-8", errors="replace")):
            _verify_proof(said, certificate, _fingerprints(key, public_key))
            return
        _verify_certificate(base, certificate, key, public_key, offline=offline)
        return
    if offline:
        raise typer.BadParameter("leave it out; it is for a certificate.", param_hint="--offline")
    if (key or public_key) and not (against or log_file):
        named = given_options(key=key, public_key=public_key)
        raise typer.BadParameter(
            "nothing signed is named; name a file with --against or --log too.", param_hint=named
        )
    from colmlm.kb.log.witness import NO_HEAD, check_log

    trusted = _fingerprints(key, public_key)
    heads = {file: _read_head(file, trusted) for file in (log_file, against) if file}
    witnessed = heads[against] if against else None
    if log_file:
        with log_file.open(encoding="utf-8") as lines:
            report = check_log(lines, log_file.name, witnessed)
    else:
        report = base.log.verify(witnessed)
    demanded = bool(trusted)
    if wants_json():
        signed = [{"file": file.name, "key": head.key, "demanded": demanded} for file, head in heads.items()]
        print_json(plain(report) | {"signed": signed})
    else:
        _show_report(report)
        for file, head in heads.items():
            say(f"the head in {file.name} was signed by key {head.key}, {_describe_signer(demanded)}")
        if report.ok:
            _show_proof(report)
        if not against:
            say(NO_HEAD)
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


def _fingerprints(key: str | None, public_key: Path | None) -> tuple[str, ...]:
    """Give the fingerprints of the keys that --key and --public-key name; empty if neither is given."""
    from colmlm.kb.log.signing import key_names, read_pem

    of_pem = () if public_key is None else (key_names(read_pem(public_key.read_text(), public_key.name)),)
    return (*([key] if key else []), *(names.fingerprint for names in of_pem))


def _read_head(file: Path, trusted: Sequence[str]) -> Head:
    from colmlm.kb.log.signing import require_signer
    from colmlm.kb.log.witness import read_head

    with file.open(encoding="utf-8") as lines:
        head = read_head(lines.readline(), file.name)
    if trusted:
        require_signer(head.key, trusted, file.name)
    return head


def _verify_certificate(
    base: Base, file: Path, key: str | None, public_key: Path | None, *, offline: bool
) -> None:
    from colmlm.kb.removal.certificate import check_offline, trusted_keys

    text, pem = file.read_bytes(), public_key.read_text(encoding="utf-8") if public_key else None
    if offline:
        found = check_offline(text, trusted_keys([key] if key else (), pem))
    else:
        found = base.forgetting.check_certificate(text, key=key, public_key=pem)
    print_json(found) if wants_json() else _show_certificate(found)
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


def _show_certificate(found: CertificateCheck) -> None:
    say("ok" if found.ok else "NOT ok")
    for check in found.checks:
        say(f"{'ok' if check.ok else 'NOT ok'}, {check.name}: {check.found}")
    if found.applied_seq is None:
        return
    say(f"signed by {found.signed_by}, {found.issued_at}, database {found.database}")
    forgotten = count_of(found.num_facts or 0, "fact")
    if found.run_id is None:
        say(f"{forgotten} erased by change {found.applied_seq}")
        if found.mentions is not None:
            outputs = ", ".join(map(str, found.redacted_outputs)) or "none"
            say(f"outputs redacted: {outputs}; mentions: {found.mentions}")
        for line in found.lineage:
            say(line)
    else:
        say(f"run {found.run_id}: {forgotten} forgotten by change {found.applied_seq}, policy {found.policy}")
    say(f"change hash {found.applied_hash}")
    say(f"level {found.level}: {found.reached}")
    _show_proof(found)


def _show_proof(found: CertificateCheck | AuditReport) -> None:
    for what, lines in (("It proves:", found.proves), ("It does not prove:", found.does_not_prove)):
        say(what)
        for line in lines:
            say(f"- {line}")


def _show_report(report: AuditReport) -> None:
    say("ok" if report.ok else "NOT ok")
    say(f"database {report.database}, {count_of(report.changes_checked, 'change')} checked")
    if report.first_break is not None:
        what = "the chain breaks at" if report.breaks else "the log is cut off or cannot be read at or after"
        say(f"{what} change {report.first_break}")
    _show_breaks(report.breaks)
    if report.sealed:
        say(f"{'ok ' if report.ok else ''}except {count_of(len(report.sealed), 'sealed break')}:")
        _show_breaks(report.sealed)
    say(f"it ends with change {report.seq}, hash {report.hash}")
    if (head := report.witnessed) is not None:
        say(f"change {head.seq}, witnessed {head.at}, {_describe_witnessed(report, head)}")


def _describe_signer(demanded: bool) -> str:
    return "the one that you named" if demanded else "which may be anybody's: name the right one with --key"


def _describe_witnessed(report: AuditReport, head: Head) -> str:
    """Describe whether a head that was kept elsewhere is in the log, its age in days, and how many changes follow."""
    if not report.holds_witnessed:
        return "IS NOT in this log"
    broken = min((found.first_seq for found in report.breaks), default=report.seq + 1)
    if broken <= head.seq:
        which = "the change" if broken == head.seq else f"change {broken} before it"
        return f"has its hash in this log, but {which} breaks the chain"
    days = max(0, (datetime.now(UTC) - datetime.fromisoformat(head.at)).days)
    return f"{count_of(days, 'day')} ago, is in this log; {count_of(report.seq - head.seq, 'change')} came after it"


_CAUSES = {
    "gap": "should be change {0.expected_seq}",
    "prev_hash": "goes on from hash {0.prev_hash}, the change before it has {0.expected_prev_hash}",
    "hash": "has hash {0.hash}, what it says has {0.expected_hash}",
}


def _show_breaks(breaks: Sequence[Break]) -> None:
    for found in breaks[:SHOWN]:
        told = "; ".join(_CAUSES[cause].format(found) for cause in found.causes)
        say(
            f"change {found.seq}: {told}"
            + (f" (sealed by change {found.sealed_by})" if found.sealed_by else "")
        )
    if len(breaks) > SHOWN:
        say(f"and {len(breaks) - SHOWN} more, see --json")


@app.command(
    epilog=examples(
        'colmlm log seal 13 --reason "inserted by hand" --dry-run',
        'colmlm log seal 13 --reason "inserted by hand" --yes',
    )
)
@anywhere
def seal(
    base: Base,
    seqs: Annotated[
        list[int], typer.Argument(metavar="SEQ...", min=1, max=MAX_BIGINT, help="Changes that do not fit.")
    ],
    reason: Reason,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Acknowledge breaks of the log that are known, such as a row that somebody inserted by hand.

    Nothing is repaired: a change is appended that says what was found and what should have been there. After that
    `log verify` and `fsck` accept these breaks, and report any other as before.
    """
    require_somebody(yes or dry_run, "seal")
    if not (dry_run or yes):
        typer.confirm(f"Seal the breaks at changes {', '.join(map(str, seqs))}?", abort=True, err=True)
    done = base.log.seal(each_once(seqs), actor=base.actor(actor), reason=reason, dry_run=dry_run)
    if wants_json():
        print_json({"dry_run": dry_run, **plain(done)})
        return
    say(f"{'Would seal' if dry_run else 'Sealed'} by change {done.seq}:")
    _show_breaks([replace(found, sealed_by=None) for found in done.breaks])


@app.command(
    epilog=examples(
        "colmlm log export --output head.json",
        "colmlm log export --changes --output changes.jsonl",
        "colmlm log export --change 12 --output proof.json",
        "colmlm log export --against head.json --output growth.json",
    )
)
@anywhere
@without_json
def export(
    base: Base,
    output: Output = None,
    whole_log: Annotated[
        bool, typer.Option("--changes", help="With every change as a line of JSON; no fact text.")
    ] = False,
    public_key: Annotated[
        bool, typer.Option("--public-key", help="Instead the key, as PEM, for all that is signed here.")
    ] = False,
    change: Annotated[
        int | None,
        typer.Option(
            "--change",
            metavar="SEQ",
            min=1,
            max=MAX_BIGINT,
            help="Instead the proof that this change is in the log, which needs no other change to be checked.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            exists=True,
            dir_okay=False,
            help="Instead the proof that the log goes on from the head or the proof in this file.",
        ),
    ] = None,
) -> None:
    """Write the head of the change log, signed by the key of this installation, to be kept elsewhere.

    `colmlm log verify --against` checks later that the log up to this head was not rewritten. `colmlm log verify
    PROOF` checks a proof without a base.
    """
    if change is not None or against is not None:
        _export_proof(base, output, change, against)
        return
    if public_key:
        _export_public_key(base, output)
        return
    head = base.log.head()  # before the file is created, so that a base out of reach leaves none
    written = output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout)
    with progress("Exporting changes") as advance, written as target:
        lines = base.log.export() if whole_log else [json.dumps(head, ensure_ascii=False) + "\n"]
        for done, line in enumerate(lines):
            target.write(line)
            advance(done, None)
    if output is not None:
        what = "the log" if whole_log else f"the head, change {head['seq']}"
        note(f"Wrote {output}: {what}, signed by key {head['key']}")


def _export_proof(base: Base, output: Path | None, change: int | None, against: Path | None) -> None:
    from colmlm.kb.log.tree import size_of_head

    size = None if against is None else size_of_head(against.read_text(encoding="utf-8"), against.name)
    proof = base.log.proof(seq=change, since=size)
    said = json.dumps(proof, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(said, nl=False)
        return
    output.write_text(said, encoding="utf-8")
    of = f"change {change}" if change is not None else f"the first {count_of(size or 0, 'change')}"
    note(
        f"Wrote {output}: {of} in the log of {count_of(proof['size'], 'change')}, signed by key {proof['key']}"
    )


def _verify_proof(said: str, file: Path, trusted: Sequence[str]) -> None:
    from colmlm.kb.log.signing import require_signer
    from colmlm.kb.log.tree import check_proof

    found = check_proof(said, file.name)
    if trusted:
        require_signer(found.key, trusted, file.name)
    if wants_json():
        print_json({"ok": True, **plain(found), "demanded": bool(trusted)})
        return
    say("ok")
    if found.entry is not None:
        by, at = found.entry["actor"], found.entry["at"]
        say(f"change {found.seq}, {found.entry['kind']} by {by}, {at}, is in this log")
    else:
        say(f"the log goes on from its first {count_of(found.since or 0, 'change')}, root {found.since_root}")
    say(f"database {found.database}, {count_of(found.size, 'change')}, root {found.root}")
    say(f"signed by key {found.key}, {_describe_signer(bool(trusted))}")


def _export_public_key(base: Base, output: Path | None) -> None:
    from colmlm.kb.log.signing import key_names, read_pem

    pem = base.log.public_key()
    if output is None:
        typer.echo(pem, nl=False)
        return
    output.write_text(pem, encoding="utf-8")
    names = key_names(read_pem(pem, output.name))
    note(f"Wrote {output}: key {names.keyid}, fingerprint {names.fingerprint}")


@app.command(epilog=examples("colmlm log denials", "colmlm log denials --limit 500 --json"))
@anywhere
def denials(base: Base, after: After = 0, limit: Limit = 50) -> None:
    """Show requests to the API that were refused for who made them or how often, newest first.

    With --after it shows those older than that id.
    """
    found = base.log.denials(after=after, limit=limit)
    if wants_json():
        print_json({"denials": found})
        return
    rows = [
        (
            d.denial_id,
            f"{d.at:%Y-%m-%d %H:%M:%S}",
            d.actor or "nobody",
            d.method,
            d.path,
            d.cause,
            d.request_id,
        )
        for d in found
    ]
    print_table(("id", "at", "who", "method", "path", "cause", "request"), rows, "No refused requests.")
    if unrecorded := sum(d.num_unrecorded for d in found):
        note(f"{unrecorded} more were only logged.")


@app.command(
    "diff", epilog=examples("colmlm log diff 12 40 --corpus demo", "colmlm log diff --since 1d --json")
)
@anywhere
def show_diff(
    base: Base,
    first: Annotated[
        int | None, typer.Argument(metavar="A", min=0, max=MAX_BIGINT, help="The earlier change.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Argument(metavar="B", min=0, max=MAX_BIGINT, help="The later change. Default: the last one."),
    ] = None,
    since: Since = None,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only facts of this corpus.")] = None,
    after: After = 0,
    limit: Limit = 100,
) -> None:
    """Compare the facts as of two changes: show those that differ, with both values, by their ids.

    An edit in between that was undone again is no difference. An erased fact is listed without its values.
    """
    if (first is None) == (since is None):
        raise typer.BadParameter("name the earlier change, or a time with --since.", param_hint="A")
    if last is None:
        last = next((change.seq for change in base.log.changes_before(MAX_BIGINT, 1)), 0)
    if first is None:
        first = next((change.seq - 1 for change in base.log.changes(0, 1, since=since)), last)
    found = base.log.diff(first, last, corpus=corpus, after=after, limit=limit)
    more = found.facts[-1].fact_id if len(found.facts) == limit else None
    if wants_json():
        print_json({**plain(found), "next_after": more})
        return
    say(f"From change {first} to {last}: " + ", ".join(f"{n} {kind}" for kind, n in found.counts.items()))
    columns = ("fact", "what", "corpus", f"at {first}", f"at {last}", "change", "actor")
    print_table(columns, [_diff_row(difference) for difference in found.facts])
    if more is not None:
        note(f"More facts: --after {more}")


def _diff_row(d: FactDifference) -> tuple[object, ...]:
    if d.is_redacted:
        return d.fact_id, d.kind, d.corpus, "(erased)", "(erased)", d.seq, d.actor
    return d.fact_id, d.kind, d.corpus, shorten(d.old), shorten(d.new), d.seq, d.actor
