"""Shows facts, where they come from, and what an edit of them did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from colmlm.cli.output import note, print_json, print_table, say, shorten
from colmlm.kb.texts.pages import page_of

if TYPE_CHECKING:
    from colmlm.cli.bases.protocol import Base
    from colmlm.kb.facts.records import Edit, FactRecord, SamplePlace, Source

WITHHELD = "Marks stand for what was deleted or corrected: the server shows that to tokens with the right 'audit' only."


def table(facts: Iterable[FactRecord]) -> None:
    """Prints facts as a table."""
    print_table(("id", "value", "question", "source", "review", "deleted"), map(_row, facts))


def _row(fact: FactRecord) -> tuple[object, ...]:
    said = (fact.fact_id, shorten(fact.value), shorten(fact.question), where(fact))
    return (*said, "" if fact.review == "accepted" else fact.review, _deleted(fact))


def where(fact: FactRecord) -> str:
    """Gives the fact's source as corpus/document[start:end], or its number in its sample."""
    return place(fact.source) if fact.sample is None else in_sample(fact.sample)


def place(source: Source | None) -> str:
    """Gives a source as corpus/document[start:end]."""
    return f"{source.corpus}/{source.external_id}[{source.start}:{source.end}]" if source else "(no document)"


def in_sample(sample: SamplePlace) -> str:
    """Gives the place of a fact of a release, and says that this is all that is known of it."""
    return f"{sample.corpus}, sample {sample.sample_id}, fact {sample.fact_idx} (of a release: no text, no offsets)"


def _deleted(fact: FactRecord) -> str:
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "" if fact.deleted_seq is None else f"by change {fact.deleted_seq}"


def printed_on(base: Base, fact: FactRecord) -> int | None:
    """Gives the page that the fact stands on, where its document has pages."""
    if fact.source is None:
        return None
    _, text = base.documents.read(fact.source.document_id)
    return page_of(text, fact.source.start)


def one(fact: FactRecord, page: int | None = None) -> None:
    """Prints one fact, with its source, the page there, and its changes."""
    say(f"fact {fact.fact_id}, version {fact.version}: {fact.value}")
    if fact.question:
        say(f"question: {fact.question}")
    say(f"source:   {where(fact)}" + (f" {fact.source.uri}" if fact.source and fact.source.uri else ""))
    if page is not None:
        say(f"page:     {page}")
    if fact.review_seq is not None:
        say(f"review:   {fact.review}, by change {fact.review_seq}")
    gone = _deleted(fact) if fact.erased_seq is not None else f"deleted {_deleted(fact)}"
    say(f"live since change {fact.created_seq}" if fact.deleted_seq is None else gone)


def edited(edit: Edit, as_json: bool, *, undoes: int | None = None) -> None:
    """Prints the change that an edit made; notes what says the same already, and what has no key yet."""
    done(edit, as_json, undoes=undoes, keyed=edit.keyed, also_said_by=edit.also_said_by)
    if edit.also_said_by and not as_json:
        note(f"Said already by fact {', '.join(map(str, edit.also_said_by))}.")
    if not edit.keyed and not as_json:
        note("What was edited has no key yet, so lookups do not find it. Run: colmlm rekey")


def done(edit: Edit, as_json: bool, *, undoes: int | None = None, **more: object) -> None:
    """Prints the change that an edit made, which may undo another. As JSON it has `more` fields."""
    undone = {} if undoes is None else {"undoes": undoes}
    if as_json:
        print_json({"seq": edit.seq, "kind": edit.kind, "fact_ids": edit.fact_ids, **undone, **more})
    else:
        undo = f"undo of change {undoes}: " if undone else ""
        say(f"Change {edit.seq}: {undo}{edit.kind} of fact {', '.join(map(str, edit.fact_ids))}")
