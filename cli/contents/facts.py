"""`colmlm facts`: lists, shows, edits and compares facts."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli import fact_view as show_
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    AllowErased,
    AllowPrivate,
    Anyway,
    DryRun,
    FactId,
    FactIds,
    Limit,
    Place,
    Reason,
    WhyUnlessDry,
    Yes,
    each_once,
    examples,
    format_place,
    parse_time,
    require_reason,
    require_somebody,
    some_text,
    wants_json,
)
from colmlm.cli.output import (
    count_of,
    counted_facts,
    note,
    plain,
    print_json,
    say,
    these_facts,
)
from colmlm.kb.errors import InvalidValue, refusals

if TYPE_CHECKING:
    from colmlm.kb.facts.records import (
        Addition,
        AlsoSaid,
        ComparedPart,
        Editing,
        FactPage,
        FactRecord,
        FactSearch,
        Marking,
        Moving,
        State,
    )
    from colmlm.kb.log.records import OnRecord


app = typer.Typer(
    help="List, show, add, edit, delete and restore facts, undo that, and compare them.",
    epilog=examples("colmlm facts list"),
)


class ReviewState(StrEnum):
    """The reviews that facts have."""

    proposed = "proposed"
    accepted = "accepted"
    rejected = "rejected"


class Sort(StrEnum):
    """The orders of a list of facts."""

    best = "best"
    id = "id"
    newest = "newest"


@app.command(
    "list",
    epilog=examples(
        "colmlm facts list --corpus demo",
        "colmlm facts list --text 'rivers of Peru' --json",
        "colmlm facts list --near 'Who weighed the Earth?'",
        "colmlm facts list --by ann --since 2026-01-31 --csv > facts.csv",
    ),
)
@anywhere
def list_facts(
    base: Base,
    text: Annotated[
        str | None,
        typer.Option("--text", help="Its words are in the value, the question, or the sentence or title."),
    ] = None,
    literally: Annotated[
        bool, typer.Option("--literally", help="Find the text as it stands, in value or question alone.")
    ] = False,
    near: Annotated[
        str | None,
        typer.Option("--near", callback=some_text, help="A question: the facts nearest to it by their keys."),
    ] = None,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only facts of this corpus.")] = None,
    document: Annotated[
        int | None, typer.Option("--document", min=1, max=MAX_BIGINT, help="Only facts of this document.")
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Only deleted facts, also erased ones.")] = False,
    erased: Annotated[bool, typer.Option("--erased", help="Only erased facts.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Live and deleted facts.")] = False,
    by: Annotated[str | None, typer.Option("--by", help="Only what this actor added or edited.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only what such a change added or edited: update, insert ...")
    ] = None,
    review: Annotated[
        ReviewState | None,
        typer.Option(
            "--review", help="Only facts with this review; rejected ones are deleted: see --deleted."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only what was added or edited from this time on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only what was added or edited up to this time.")
    ] = None,
    sort: Annotated[
        Sort, typer.Option("--sort", help="Best first (without a text or question by id), by id, or newest.")
    ] = Sort.best,
    after: Place = 0,
    limit: Limit = 50,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all that were found, as CSV, whatever --limit says.")
    ] = False,
) -> None:
    """Search and list live facts, with how many there are. Facts without a question show their sentence."""
    sought: FactSearch = {
        "text": text,
        "literally": literally,
        "corpus": corpus,
        "document_id": document,
        "state": _state(deleted=deleted, erased=erased, every=every),
        "actor": by,
        "kind": kind,
        "since": parse_time(since) if since else None,
        "until": parse_time(until) if until else None,
        "review": review.value if review else None,
        "sort": sort.value,
        "after": after,
        "limit": limit,
    }
    if near is not None and text is not None:
        raise typer.BadParameter("--text and --near exclude each other; give one of them.")
    if as_csv:
        _print_csv(base, near, sought)
        return
    page = base.facts.search(near=near, **sought)
    if wants_json():
        print_json(page)
        return
    show_.print_fact_table(base, page.facts)
    if page.total > len(page.facts):
        note(f"{counted_facts(page.total, page.is_exact)} in all.")
    if page.next_after is not None:
        note(f"More facts: --after {format_place(page.next_after)}")


def _state(*, deleted: bool, erased: bool, every: bool) -> State:
    if deleted + erased + every > 1:
        raise typer.BadParameter("--deleted, --erased and --all exclude each other; give one of them.")
    return "deleted" if deleted else "erased" if erased else "all" if every else "live"


def _print_csv(base: Base, near: str | None, sought: FactSearch) -> None:
    from colmlm.kb.facts.files import csv_lines, find_page_by_page

    if wants_json():
        raise typer.BadParameter("--csv and --json exclude each other; give one of them.")

    def part(*, after: int, limit: int) -> FactPage:
        sought["after"], sought["limit"] = after, limit
        return base.facts.search(near=near, **sought)

    for line in csv_lines(find_page_by_page(part)):
        sys.stdout.write(line)


@app.command(epilog=examples("colmlm facts show 12", "colmlm facts show 12 --json"))
@anywhere
def show(base: Base, fact_id: FactId) -> None:
    """Show a fact, live or deleted, and where it comes from. `colmlm trace fact` shows its history."""
    fact = base.facts.show(fact_id)
    page = show_.page_of_fact(base, fact)
    print_json(plain(fact) | {"page": page}) if wants_json() else show_.print_fact(fact, page)
    if fact.withheld:
        note(show_.WITHHELD)


# `colmlm facts add`, `edit`, `undo`, `delete` and `restore`: each is one change with an actor and a reason.

MAX_OFFSET = 2**31 - 1

Start = Annotated[
    int | None,
    typer.Option("--start", min=0, max=MAX_OFFSET, help="Where the span begins, in code points of the text."),
]
End = Annotated[int | None, typer.Option("--end", min=1, max=MAX_OFFSET, help="Where it ends.")]
ExactText = Annotated[
    str | None,
    typer.Option(
        "--text",
        callback=some_text,
        help="The document's exact words; in place of offsets where they are there once.",
    ),
]
NoKey = Annotated[bool, typer.Option("--no-key", help="Leave the key to the next `colmlm keysets fill`.")]


@app.command(
    epilog=examples(
        'colmlm facts add --question "Who wrote Emma?" --value "Jane Austen" --reason "asked for"',
        'colmlm facts add --document 3 --text "Lima" --question "What is Peru\'s capital?" --reason "was missing"',
        'colmlm facts add --document 3 --start 23 --end 27 --reason "was missing"',
    )
)
@anywhere
def add(
    base: Base,
    reason: Reason,
    question: Annotated[
        str | None, typer.Option("--question", callback=some_text, help="The question it answers.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", callback=some_text, help="The text to splice.")
    ] = None,
    document: Annotated[
        int | None,
        typer.Option(
            "--document", min=1, max=MAX_BIGINT, help="Mark it in this document, whose words are its value."
        ),
    ] = None,
    start: Start = None,
    end: End = None,
    text: ExactText = None,
    answer: Annotated[
        str | None, typer.Option("--answer", help="A longer answer, kept beside the value.")
    ] = None,
    proposed: Annotated[
        bool, typer.Option("--proposed", help="Let somebody accept or reject it (colmlm review).")
    ] = False,
    actor: Actor = None,
    no_key: NoKey = False,
    allow_erased: AllowErased = False,
    anyway: Anyway = False,
) -> None:
    """Add a fact: by question and value, or one that a document says. It is keyed at once, so lookups find it."""
    span: Marking = {"start": start, "end": end, "text": text}
    how: Addition = {
        "actor": base.actor(actor), "reason": reason, "answer": answer, "allow_erased": allow_erased, "anyway": anyway
    }  # fmt: skip
    if document is not None:
        if value is not None:
            raise typer.BadParameter(
                "a document's own words are the value: name them with --text or offsets."
            )
        if proposed:
            raise typer.BadParameter(
                "what is marked in a document is accepted; send it to the inbox with `colmlm review settle propose`.",
                param_hint="--proposed",
            )
        edit = base.facts.add_to(document, span, keyed=not no_key, question=question, **how)
    elif question is None or value is None or any(one is not None for one in span.values()):
        raise typer.BadParameter(
            "give --question and --value, or --document with --text, or --start and --end."
        )
    else:
        edit = base.facts.add(question, value, proposed=proposed, keyed=not no_key, **how)
    show_.print_edit(edit)


@app.command(
    epilog=examples(
        'colmlm facts edit 12 --value "Lima" --reason "typing error in the source"',
        'colmlm facts edit 12 --question "What is Peru\'s capital?" --reason "said nothing of Peru"',
        'colmlm facts edit 12 --text "Lima Metropolitan Area" --reason "cut too short"',
        'colmlm facts edit 12 --start 23 --end 27 --question "What is Peru\'s capital?" --reason "cut too long"',
        "colmlm facts edit --file corrections.csv --dry-run",
    )
)
@anywhere
def edit(
    base: Base,
    fact_id: Annotated[
        int | None, typer.Argument(metavar="[FACT_ID]", min=1, help="The fact's id; none with --file.")
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", callback=some_text, help="The new text to splice.")
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", callback=some_text, help="The new question it answers.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            exists=True,
            dir_okay=False,
            help="Edit many in one change: CSV or JSON lines of fact_id, value and question; empty: as it is.",
        ),
    ] = None,
    start: Start = None,
    end: End = None,
    text: ExactText = None,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    no_key: NoKey = False,
    allow_erased: AllowErased = False,
    anyway: Anyway = False,
    dry_run: DryRun = False,
) -> None:
    """Give a fact another value or question, or move it within its document, from this commit on in every process.

    A value needs no new key. A question does: it is keyed at once, and the old one finds it no more. With --text, or
    --start and --end, its span is moved, and the words there become its value; its history keeps where it was.
    """
    require_reason(reason, unless=dry_run)
    span: Marking = {"start": start, "end": end, "text": text}
    is_moved = any(one is not None for one in span.values())
    if allow_erased and not is_moved:
        raise typer.BadParameter(
            "it is for a fact that is moved: leave it out, or move the fact with --text.",
            param_hint="--allow-erased",
        )
    if file is not None:
        if is_moved or (fact_id, value, question) != (None, None, None):
            raise typer.BadParameter("leave out ids, --value and --question; --file names them.")
        edit_from(base, file, actor, reason, keyed=not no_key, anyway=anyway, dry_run=dry_run)
        return
    if fact_id is None or dry_run or not (is_moved or value is not None or question is not None):
        raise typer.BadParameter(
            "give a fact's id with --value, --question or --text; or --file, also with --dry-run."
        )
    assert reason is not None
    how: Editing = {"actor": base.actor(actor), "reason": reason, "anyway": anyway}
    if is_moved:
        if value is not None:
            raise typer.BadParameter("leave it out; the text becomes the value.", param_hint="--value")
        moving: Moving = {
            "actor": base.actor(actor), "reason": reason, "anyway": anyway, "allow_erased": allow_erased,
            "question": question,
        }  # fmt: skip
        show_.print_edit(base.facts.move(fact_id, span, keyed=not no_key, **moving))
        return
    done = base.facts.edit(fact_id, value, question=question, keyed=not no_key, **how)
    show_.print_edit(done)


@app.command(epilog=examples('colmlm facts undo 41 --reason "the first spelling was right"'))
@anywhere
def undo(
    base: Base,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, max=MAX_BIGINT, help="The change's number.")],
    reason: Reason,
    actor: Actor = None,
    no_key: NoKey = False,
) -> None:
    """Undo an add, edit, move, delete, restore, note or verdict, all of that change."""
    done = base.facts.undo(seq, keyed=not no_key, actor=base.actor(actor), reason=reason)
    show_.print_edit(done, undoes=seq)


@app.command(
    epilog=examples(
        "colmlm facts delete 12 15 --dry-run",
        'colmlm facts delete 12 15 --reason "request of the person" --yes',
    )
)
@anywhere
def delete(
    base: Base,
    fact_ids: FactIds,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    abstain: Annotated[
        bool,
        typer.Option("--abstain", help="Let queries that point at one get no match, not the runner-up."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete facts: all of them in one change, or none. `colmlm facts restore` undoes it."""
    require_reason(reason, unless=dry_run)
    require_somebody(yes or dry_run, "delete")
    if not yes or dry_run:
        facts = base.facts.show_many(each_once(fact_ids))
        if gone := [fact.fact_id for fact in facts if fact.deleted_seq is not None]:
            raise refusals.fact_deleted(gone)
        _preview(base, facts, base.comparisons.also_said([fact.fact_id for fact in facts]))
        if dry_run:
            return
        typer.confirm(f"Delete {these_facts(len(facts))}?", abort=True, err=True)
    assert reason is not None
    done = base.facts.delete(each_once(fact_ids), actor=base.actor(actor), reason=reason, abstain=abstain)
    show_.print_change(done)


def _preview(base: Base, facts: list[FactRecord], also_said: list[AlsoSaid]) -> None:
    if wants_json():
        print_json({"dry_run": True, "facts": facts, "also_said": also_said})
    else:
        show_.print_fact_table(base, facts)
        show_.tell_also_said(also_said)


@app.command(epilog=examples('colmlm facts restore 12 15 --reason "deleted by mistake"'))
@anywhere
def restore(base: Base, fact_ids: FactIds, reason: Reason, actor: Actor = None) -> None:
    """Bring deleted facts back with the value they had last: all of them in one change, or none."""
    done = base.facts.restore(fact_ids, actor=base.actor(actor), reason=reason)
    show_.print_change(done)


# Edits of many facts from a file, shown before they are done or refused.


def edit_from(
    base: Base,
    file: Path,
    actor: str | None,
    reason: str | None,
    *,
    keyed: bool,
    anyway: bool,
    dry_run: bool,
) -> None:
    """Make the edits of a file in one change. Exits with 3 and edits nothing if a row cannot be used."""
    from colmlm.kb.facts.files import plan_edits

    planned = plan_edits(file.read_text(encoding="utf-8-sig"), base.facts.show_many)
    if planned.refused:
        nothing = "Nothing was edited."
        show_.refuse_rows(planned.refused, file, nothing, dry_run=dry_run, edits=(), unchanged=0, seq=None)
    said = {"dry_run": dry_run, "edits": planned.edits, "unchanged": planned.unchanged, "refused": ()}
    if dry_run or not planned.edits:
        print_json({**said, "seq": None}) if wants_json() else show_.print_planned(planned)
        return
    assert reason is not None
    how: Editing = {"actor": base.actor(actor), "reason": reason, "anyway": anyway}
    done = base.facts.edit_many(planned.fact_edits, keyed=keyed, **how)
    if wants_json():
        print_json(
            {**said, "seq": done.seq, "kind": done.kind, "fact_ids": done.fact_ids, "keyed": done.keyed}
        )
        return
    say(f"Change {done.seq}: {done.kind} of {count_of(len(planned.edits), 'fact')}")
    if not done.keyed:
        note(
            "Facts whose question was edited have no key yet, so lookups do not find them. Run: colmlm keysets fill"
        )


# Facts beside their sources, and beside one another.


@app.command(epilog=examples("colmlm facts verify 12", "colmlm facts verify 12 --json"))
@anywhere
def verify(base: Base, fact_id: FactId, allow_private: AllowPrivate = False) -> None:
    """Read the document's file or address again, and say whether it still says a fact. Nothing is changed.

    The exit code is 1 where it says something else, is gone, or cannot be reached.
    """
    fact = base.facts.show(fact_id)
    if fact.source is None or fact.erased_seq is not None:
        raise InvalidValue(
            "fact", f"fact {fact_id} has no document any more, or never had one. Verify another"
        )
    found = show_.check_at_source(base, fact.source, fact.value, allow_private=allow_private)
    print_json({"fact_id": fact_id} | plain(found)) if wants_json() else show_.print_check(found)
    if not found.still_says:
        raise typer.Exit(CHECK_FAILED)


class Comparison(StrEnum):
    """The comparisons of facts that the command makes."""

    contradictions = "contradictions"
    duplicates = "duplicates"
    stale = "stale"


@app.command(
    epilog=examples(
        "colmlm facts compare contradictions",
        "colmlm facts compare duplicates --corpus demo --json",
        "colmlm facts compare stale",
        'colmlm facts compare contradictions 12 905 --reason "two capitals, each in its time"',
    )
)
@anywhere
def compare(
    base: Base,
    kind: Annotated[
        Comparison,
        typer.Argument(
            metavar="KIND",
            help="contradictions: two values for one question, or in one sentence. duplicates: one value for one "
            "question, or in one sentence. stale: their document has a newer text.",
        ),
    ],
    pair: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[FACT_ID OTHER_ID]", min=1, help="Note that these two are both right, and list nothing."
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="Only where one of the facts is of this corpus.")
    ] = None,
    noted: Annotated[
        bool,
        typer.Option("--noted", help="Contradictions noted as both right, not the others."),
    ] = False,
    takes_back: Annotated[bool, typer.Option("--not", help="Take the note back: they contradict.")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; required for a note.")
    ] = None,
    actor: Actor = None,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List live facts that contradict each other, say the same, or are behind their document's text.

    The stale ones were restored after the newer text came, or corrected before. With two facts that contradict, note
    that both are right. They are no contradiction then, until one of them is edited.
    """
    if (noted or pair) and kind is not Comparison.contradictions:
        raise typer.BadParameter("only contradictions are noted; say `contradictions`.", param_hint="KIND")
    if pair:
        _note_both_right(base, pair, reason, actor, both_right=not takes_back)
        return
    if takes_back or reason or actor:
        raise typer.BadParameter("name the two facts of the note.", param_hint="FACT_ID")
    sought: ComparedPart = {"corpus": corpus, "after": after, "limit": limit}
    if kind is Comparison.contradictions:
        show_.print_pairs(base, base.comparisons.pairs("contradictions", noted=noted, **sought))
    elif kind is Comparison.duplicates:
        show_.print_pairs(base, base.comparisons.pairs("duplicates", **sought))
    else:
        show_.print_stale_facts(base.comparisons.stale(**sought))


def _note_both_right(
    base: Base, pair: list[int], reason: str | None, actor: str | None, *, both_right: bool
) -> None:
    if len(pair) != 2:
        raise typer.BadParameter("name the two facts that both hold.", param_hint="FACT_ID")
    require_reason(reason)
    who: OnRecord = {"actor": base.actor(actor), "reason": reason or ""}
    done = base.comparisons.note_both_right(pair[0], pair[1], both_right=both_right, **who)
    if wants_json():
        fields = {"seq": done.seq, "kind": done.kind, "fact_ids": done.fact_ids}
        print_json({**fields, "both_right": both_right})
    else:
        both = "are both right" if both_right else "contradict each other"
        say(f"Change {done.seq}: facts {done.fact_ids[0]} and {done.fact_ids[1]} {both}")
