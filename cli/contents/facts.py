"""`colmlm facts`: lists, shows and edits facts. Every edit is one change with an actor and a reason."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_reason, require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    AllowErased,
    AsJson,
    FactId,
    FactIds,
    Limit,
    Reason,
    WhyUnlessDry,
    Yes,
    each_once,
    examples,
    some_text,
    time,
)
from colmlm.cli.output import counted_facts, note, print_json, print_table, say, shorten, these_facts
from colmlm.kb.errors import FactDeleted

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Edit, FactPage, FactRecord, FactSearch, Source, State

WITHHELD = "Marks stand for what was deleted or corrected: the server shows that to tokens with the right 'audit' only."


class Sort(StrEnum):
    """The orders of a list of facts."""

    best = "best"
    id = "id"
    newest = "newest"


app = typer.Typer(
    help="List, show, add, edit, delete and restore facts.", epilog=examples("colmlm facts list")
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
    """Search and list live facts, with how many there are."""
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
    print_table(("id", "value", "question", "source", "deleted"), map(_row, page.facts))
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


def _row(fact: FactRecord) -> tuple[object, ...]:
    return fact.fact_id, shorten(fact.value), shorten(fact.question), where(fact), _deleted(fact)


def where(fact: FactRecord) -> str:
    """Gives the fact's source as corpus/document[start:end]."""
    return place(fact.source)


def place(source: Source | None) -> str:
    """Gives a source as corpus/document[start:end]."""
    return f"{source.corpus}/{source.external_id}[{source.start}:{source.end}]" if source else "(no document)"


def _deleted(fact: FactRecord) -> str:
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "" if fact.deleted_seq is None else f"by change {fact.deleted_seq}"


@app.command(epilog=examples("colmlm facts show 12", "colmlm facts show 12 --json"))
@anywhere
def show(base: Base, fact_id: FactId, as_json: AsJson = False) -> None:
    """Show a fact, live or deleted, and where it comes from. `colmlm trace fact` shows its history."""
    fact = base.facts.show(fact_id)
    print_json(fact) if as_json else _show(fact)
    if fact.withheld:
        note(WITHHELD)


def _show(fact: FactRecord) -> None:
    say(f"fact {fact.fact_id}, version {fact.version}: {fact.value}")
    if fact.question:
        say(f"question: {fact.question}")
    say(f"source:   {where(fact)}" + (f" {fact.source.uri}" if fact.source and fact.source.uri else ""))
    gone = _deleted(fact) if fact.erased_seq is not None else f"deleted {_deleted(fact)}"
    say(f"live since change {fact.created_seq}" if fact.deleted_seq is None else gone)


@app.command(
    epilog=examples(
        'colmlm facts add --question "Who wrote Emma?" --value "Jane Austen" --reason "asked for"'
    )
)
@anywhere
def add(
    base: Base,
    question: Annotated[str, typer.Option("--question", callback=some_text, help="The question it answers.")],
    value: Annotated[str, typer.Option("--value", callback=some_text, help="The text to splice.")],
    reason: Reason,
    answer: Annotated[
        str | None, typer.Option("--answer", help="A longer answer, kept beside the value.")
    ] = None,
    actor: Actor = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Leave the key to the next `colmlm rekey`.")
    ] = False,
    allow_erased: AllowErased = False,
    as_json: AsJson = False,
) -> None:
    """Add a fact that has no document. It is keyed from its question at once, so lookups find it."""
    edit = base.facts.add(
        question,
        value,
        answer=answer,
        actor=base.actor(actor),
        reason=reason,
        allow_erased=allow_erased,
        keyed=not no_key,
    )
    _done(edit, as_json, keyed=edit.keyed)
    if not edit.keyed and not as_json:
        note("It has no key yet, so no lookup finds it. Run: colmlm rekey")


@app.command(epilog=examples('colmlm facts edit 12 --value "Lima" --reason "typing error in the source"'))
@anywhere
def edit(
    base: Base,
    fact_id: FactId,
    value: Annotated[str, typer.Option("--value", callback=some_text, help="The new text to splice.")],
    reason: Reason,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Give a fact another value, from this commit on and in every process. It needs no new key."""
    done = base.facts.edit(fact_id, value, actor=base.actor(actor), reason=reason)
    _done(done, as_json)


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted and stop.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete facts: all of them in one change, or none. `colmlm facts restore` undoes it."""
    require_reason(reason, unless=dry_run)
    require_somebody(yes or dry_run, as_json, "delete")
    if not yes or dry_run:
        facts = base.facts.show_many(each_once(fact_ids))
        if gone := [fact.fact_id for fact in facts if fact.deleted_seq is not None]:
            raise FactDeleted(gone)
        _preview(facts, as_json)
        if dry_run:
            return
        typer.confirm(f"Delete {these_facts(len(facts))}?", abort=True, err=True)
    assert reason is not None
    done = base.facts.delete(each_once(fact_ids), actor=base.actor(actor), reason=reason, abstain=abstain)
    _done(done, as_json)


def _preview(facts: list[FactRecord], as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "facts": facts})
    else:
        print_table(("id", "value", "question", "source", "deleted"), map(_row, facts))


@app.command(epilog=examples('colmlm facts restore 12 15 --reason "deleted by mistake"'))
@anywhere
def restore(
    base: Base, fact_ids: FactIds, reason: Reason, actor: Actor = None, as_json: AsJson = False
) -> None:
    """Bring deleted facts back with the value they had last: all of them in one change, or none."""
    done = base.facts.restore(fact_ids, actor=base.actor(actor), reason=reason)
    _done(done, as_json)


def _done(edit: Edit, as_json: bool, **more: object) -> None:
    if as_json:
        print_json({"seq": edit.seq, "kind": edit.kind, "fact_ids": edit.fact_ids, **more})
    else:
        say(f"Change {edit.seq}: {edit.kind} of fact {', '.join(map(str, edit.fact_ids))}")
