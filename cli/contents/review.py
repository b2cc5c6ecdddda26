"""`colmlm review`: the inbox of proposed facts, verdicts on them, and where only accepted facts answer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import REFUSED
from colmlm.cli.fact_view import fact_source, refuse_rows
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    DryRun,
    Limit,
    Place,
    Reason,
    WhyUnlessDry,
    each_once,
    examples,
    format_place,
    require_reason,
    wants_json,
)
from colmlm.cli.output import counted_facts, note, print_json, print_table, say, shorten

if TYPE_CHECKING:
    from colmlm.kb.facts.records import ReviewResult, ReviewVerdict, SettledBefore
    from colmlm.kb.review.records import InboxItem

app = typer.Typer(
    help="Review facts that a machine marked: list, settle, and say where only accepted ones answer.",
    epilog=examples("colmlm review list --corpus notes"),
)


class Kind(StrEnum):
    """The kinds of proposed facts to which a list of the inbox can be narrowed."""

    any = "any"
    cited = "cited"
    doubted = "doubted"
    contradicting = "contradicting"
    unasked = "unasked"


class VerdictChoice(StrEnum):
    """The verdicts on facts, as choices of an argument; those of `kb.facts.records.VerdictKind`."""

    accept = "accept"
    reject = "reject"
    propose = "propose"


Verdicts = Annotated[
    Path | None,
    typer.Option(
        "--file",
        exists=True,
        dir_okay=False,
        help="CSV or JSON lines of fact_id and verdict (accept, reject, propose), and of version and review as judged.",
    ),
]


@app.command(
    "list", epilog=examples("colmlm review list", "colmlm review list --corpus notes --kind doubted --json")
)
@anywhere
def list_proposed(
    base: Base,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only facts of this corpus.")] = None,
    document: Annotated[
        int | None, typer.Option("--document", min=1, max=MAX_BIGINT, help="Only facts of this document.")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            help="Any; cited by outputs; doubted by the annotator's check; contradicting others; without a question.",
        ),
    ] = Kind.any,
    after: Place = 0,
    limit: Limit = 50,
) -> None:
    """List proposed facts, those first where most is at stake: cited, doubted, contradicting, others."""
    found = base.review.inbox(corpus=corpus, document_id=document, kind=kind.value, after=after, limit=limit)
    if wants_json():
        print_json(found)
        return
    print_table(
        ("id", "version", "value", "question", "source", "cited", "doubt", "neighbours"),
        map(_row, found.items),
        "No facts to review found.",
    )
    done = found.progress
    note(
        f"{counted_facts(found.total, found.is_exact)} to review; "
        f"{done.accepted} accepted and {done.rejected} rejected so far."
    )
    if found.next_after is not None:
        note(f"More facts: --after {format_place(found.next_after)}")


def _row(item: InboxItem) -> tuple[object, ...]:
    fact = item.fact
    near = ", ".join(
        f"{one.fact_id} {'says the same' if one.same else shorten(one.value, 20)}" for one in item.neighbours
    )
    said = (fact.fact_id, fact.version, shorten(fact.value), shorten(fact.question), fact_source(fact))
    return (*said, item.uses or "", item.doubt or "", near)


@app.command(
    epilog=examples(
        'colmlm review settle accept 12 15 --reason "read in the report"',
        'colmlm review settle reject 13 --reason "cut short"',
        'colmlm review settle --file verdicts.csv --reason "read by ann"',
        "colmlm review settle --file verdicts.jsonl --dry-run",
    )
)
@anywhere
def settle(
    base: Base,
    verdict: Annotated[
        VerdictChoice | None, typer.Argument(metavar="[VERDICT]", help="accept, reject or propose.")
    ] = None,
    fact_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[FACT_ID]...", min=1, help="Ids of facts.")
    ] = None,
    file: Verdicts = None,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    dry_run: DryRun = False,
) -> None:
    """Accept facts, reject or propose them again; or carry out the verdicts of a file.

    Those of one kind are one change. Facts that somebody has settled meanwhile are left, and the exit code is then 3.
    To reject facts deletes them; `colmlm facts restore` brings them back as they were.
    """
    require_reason(reason, unless=dry_run)
    if not (verdict and fact_ids) if file is None else verdict is not None:
        raise typer.BadParameter("give a verdict with the ids of facts, or --file.", param_hint="VERDICT")
    verdicts = _verdicts_by_id(base, fact_ids or [], verdict) if verdict else _read(base, file, dry_run)
    if dry_run:
        _preview(base, verdicts)
        return
    assert reason is not None
    _settle(base, verdicts, reason, actor)


def _verdicts_by_id(base: Base, fact_ids: list[int], verdict: VerdictChoice) -> Sequence[ReviewVerdict]:
    from colmlm.kb.facts.files import judge_named

    return judge_named(each_once(fact_ids), verdict.value, base.facts.show_many)


def _read(base: Base, file: Path | None, dry_run: bool) -> Sequence[ReviewVerdict]:
    """Read the verdicts of a file. Exits with 3 if a row cannot be used."""
    from colmlm.kb.facts.files import read_verdicts

    assert file is not None
    found = read_verdicts(file.read_text(encoding="utf-8-sig"), base.facts.show_many)
    if found.refused:
        nothing = "Nothing was done."
        refuse_rows(found.refused, file, nothing, dry_run=dry_run, seqs=(), fact_ids=(), before=())
    return found.verdicts


def _preview(base: Base, verdicts: Sequence[ReviewVerdict]) -> None:
    """Print the facts of verdicts. Exits with 3 if `_settle` would leave some as they are."""
    facts = base.facts.show_many([one.fact_id for one in verdicts])
    both = list(zip(verdicts, facts, strict=True))
    left = [
        fact for one, fact in both if not one.fits(fact.version, fact.review, live=fact.deleted_seq is None)
    ]
    if wants_json():
        unfit = [fact.fact_id for fact in left]
        print_json({"dry_run": True, "verdicts": verdicts, "facts": facts, "left": unfit})
    else:
        rows = (
            (
                one.verdict,
                fact.fact_id,
                fact.review,
                shorten(fact.value),
                shorten(fact.question),
                fact_source(fact),
            )
            for one, fact in both
        )
        print_table(("verdict", "id", "review", "value", "question", "source"), rows)
        for fact in left:
            state = fact.review if fact.deleted_seq is None or fact.review == "rejected" else "deleted"
            note(f"Fact {fact.fact_id} would be left as it is: {state}, in version {fact.version}.")
    if left:
        raise typer.Exit(REFUSED)


def _settle(base: Base, verdicts: Sequence[ReviewVerdict], reason: str, actor: str | None) -> None:
    """Carry out verdicts. Exits with 3 if some were not, since others had settled or edited their facts."""
    done = base.review.settle(verdicts, actor=base.actor(actor), reason=reason)
    print_json({"dry_run": False, "refused": (), **_as_dict(done)}) if wants_json() else _say_settled(done)
    if done.before:
        raise typer.Exit(REFUSED)


def _as_dict(done: ReviewResult) -> dict[str, object]:
    return {"seqs": done.seqs, "fact_ids": done.fact_ids, "before": done.before}


def _say_settled(done: ReviewResult) -> None:
    if done.fact_ids:
        changes = ", ".join(map(str, done.seqs))
        say(f"Change {changes}: settled fact {', '.join(map(str, done.fact_ids))}")
    for one in done.before:
        note(f"Fact {one.fact_id} was left as it is: {_now(one)}.")


def _now(one: SettledBefore) -> str:
    state = one.review if one.live or one.review == "rejected" else "deleted"
    return f"{state}, in version {one.version}, by {one.actor or 'somebody'} with change {one.seq}"


@app.command(
    epilog=examples(
        'colmlm review limit --corpus notes --accepted-only --reason "only what we have read"',
        'colmlm review limit --keyset 2 --also-proposed --reason "still under review"',
    )
)
@anywhere
def limit(
    base: Base,
    accepted_only: Annotated[
        bool,
        typer.Option(
            "--accepted-only/--also-proposed", help="Whether proposed facts answer no more, or again."
        ),
    ],
    reason: Reason,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Facts of this corpus.")] = None,
    keyset: Annotated[
        int | None, typer.Option("--keyset", min=1, max=MAX_BIGINT, help="All facts, in this keyset.")
    ] = None,
    actor: Actor = None,
) -> None:
    """Let only accepted facts answer, of a corpus or in a keyset, or proposed ones too."""
    if (corpus is None) == (keyset is None):
        raise typer.BadParameter("name either --corpus or --keyset.")
    done = base.review.limit(
        accepted_only=accepted_only, corpus=corpus, keyset_id=keyset, actor=base.actor(actor), reason=reason
    )
    if wants_json():
        print_json({"seq": done.seq, "kind": done.kind, "accepted_only": accepted_only})
    else:
        which = f"corpus {corpus}" if corpus is not None else f"keyset {keyset}"
        answering = "only accepted" if accepted_only else "accepted and proposed"
        say(f"Change {done.seq}: {answering} facts answer in {which}")
