"""`colmlm facts`: lists and shows facts; the commands that edit and compare them are added to these."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.contents import compared, facts_edit
from colmlm.cli.contents import facts_show as show_
from colmlm.cli.options import MAX_BIGINT, After, AsJson, FactId, Limit, examples, some_text, time
from colmlm.cli.output import counted_facts, note, plain, print_json

if TYPE_CHECKING:
    from colmlm.kb.facts.records import FactPage, FactSearch, State


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


app = typer.Typer(
    help="List, show, add, edit, move, delete and restore facts, undo that, and compare them.",
    epilog=examples("colmlm facts list"),
)


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
    after: After = 0,
    limit: Limit = 50,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all that were found, as CSV, whatever --limit says.")
    ] = False,
    as_json: AsJson = False,
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
        "since": time(since) if since else None,
        "until": time(until) if until else None,
        "review": review.value if review else None,
        "order": sort.value,
        "after": after,
        "limit": limit,
    }
    if near is not None and text is not None:
        raise typer.BadParameter("--text and --near exclude each other.")
    if as_csv:
        _print_csv(base, near, sought, as_json=as_json)
        return
    page = base.facts.search(near=near, **sought)
    if as_json:
        print_json(page)
        return
    show_.table(base, page.facts)
    if page.total > len(page.facts):
        note(f"{counted_facts(page.total, page.is_exact)} in all.")
    if page.next_after is not None:
        note(f"More facts: --after {page.next_after}")


def _state(*, deleted: bool, erased: bool, every: bool) -> State:
    if deleted + erased + every > 1:
        raise typer.BadParameter("--deleted, --erased and --all exclude each other.")
    return "deleted" if deleted else "erased" if erased else "all" if every else "live"


def _print_csv(base: Base, near: str | None, sought: FactSearch, *, as_json: bool) -> None:
    from colmlm.api.nouns.fact_table import lines, pages

    if as_json:
        raise typer.BadParameter("--csv and --json exclude each other.")

    def part(*, after: int, limit: int) -> FactPage:
        sought["after"], sought["limit"] = after, limit
        return base.facts.search(near=near, **sought)

    for line in lines(pages(part)):
        sys.stdout.write(line)


@app.command(epilog=examples("colmlm facts show 12", "colmlm facts show 12 --json"))
@anywhere
def show(base: Base, fact_id: FactId, as_json: AsJson = False) -> None:
    """Show a fact, live or deleted, and where it comes from. `colmlm trace fact` shows its history."""
    fact = base.facts.show(fact_id)
    page = show_.printed_on(base, fact)
    print_json(plain(fact) | {"page": page}) if as_json else show_.one(fact, page)
    if fact.withheld:
        note(show_.WITHHELD)


facts_edit.add_to(app)
compared.add_to(app)
