"""Shows facts, where they come from, and what an edit of them did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from colmlm.cli.errors import REFUSED
from colmlm.cli.options import wants_json
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten
from colmlm.kb.texts.characters import page_of, visible_text
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

if TYPE_CHECKING:
    from pathlib import Path

    from colmlm.cli.bases.local_base import Base
    from colmlm.kb.corpus.raw.source_check import SourceCheck
    from colmlm.kb.facts.files import BulkEdit, PlannedEdit, RefusedRow
    from colmlm.kb.facts.records import (
        AlsoSaid,
        Edit,
        FactPair,
        FactRecord,
        PairPage,
        SamplePlace,
        Source,
        StalePage,
    )
    from colmlm.kb.removal.records import LineageFinding

SENTENCE_WIDTH, SENTENCE_SIDE = 80, 400  # characters shown of a sentence, and read on either side of a value
WITHHELD = "Marks stand for what was deleted or corrected: the server shows that to tokens with the right 'audit' only."


def print_fact_table(base: Base, facts: Iterable[FactRecord]) -> None:
    """Print facts as a table, those without a question with the sentence around their value."""
    texts: dict[int, str] = {}
    columns = ("id", "value", "question or sentence", "source", "review", "deleted")
    print_table(
        columns,
        [_row(fact, fact.question or sentence_of(base, fact, texts)) for fact in facts],
        "No facts found.",
    )


def brief_table(facts: Iterable[FactRecord]) -> None:
    """Print facts as a table: id, value, question and source."""
    rows = ((fact.fact_id, shorten(fact.value), shorten(fact.question), fact_source(fact)) for fact in facts)
    print_table(("id", "value", "question", "source"), rows)


def refuse_rows(refused: Sequence[RefusedRow], file: Path, nothing: str, **told: object) -> NoReturn:
    """Exit with 3 after printing the unusable rows of a file, and the sentence `nothing`. JSON also has `told`."""
    if wants_json():
        print_json({"refused": refused, **told})
    for row in refused:
        note(f"{file.name}, line {row.line}: {row.cause}")
    note(f"{nothing} Put these rows right, or leave them out.")
    raise typer.Exit(REFUSED)


def sentence_of(base: Base, fact: FactRecord, texts: dict[int, str]) -> str:
    """Read the sentence around a fact's value, shortened; "" without a source. `texts` caches documents' texts."""
    if (source := fact.source) is None or fact.erased_seq is not None:
        return ""
    if source.document_id not in texts:
        texts[source.document_id] = base.documents.read(source.document_id)[1]
    text = texts[source.document_id]
    first, last = max(0, source.start - SENTENCE_SIDE), source.end + SENTENCE_SIDE
    begin, end = sentence_around(sentence_ends(text[first:last]), source.start - first, source.end - first)
    words = text[first + begin : first + end].strip()
    if len(words) <= SENTENCE_WIDTH:
        return words
    before, after = text[first + begin : source.start].lstrip(), text[source.end : first + end].rstrip()
    room = max(10, (SENTENCE_WIDTH - len(fact.value)) // 2)
    return f"{_end_of(before, room)}{text[source.start : source.end]}{_start_of(after, room)}"


def _end_of(words: str, room: int) -> str:
    return words if len(words) <= room else f"…{words[-room:]}"


def _start_of(words: str, room: int) -> str:
    return words if len(words) <= room else f"{words[:room]}…"


def _row(fact: FactRecord, about: str) -> tuple[object, ...]:
    said = (fact.fact_id, shorten(fact.value), shorten(about, SENTENCE_WIDTH + 2), fact_source(fact))
    return (*said, "" if fact.review == "accepted" else fact.review, _describe_deletion(fact))


def fact_source(fact: FactRecord) -> str:
    """Give the fact's source as corpus/document[start:end], or its number in its sample."""
    return format_source(fact.source) if fact.sample is None else in_sample(fact.sample)


def format_source(source: Source | None) -> str:
    """Give a source as corpus/document[start:end]."""
    return f"{source.corpus}/{source.external_id}[{source.start}:{source.end}]" if source else "(no document)"


def in_sample(sample: SamplePlace) -> str:
    """Give the corpus, sample and number of a release's fact, with the note that it has no text and no offsets."""
    return f"{sample.corpus}, sample {sample.sample_id}, fact {sample.fact_idx} (of a release: no text, no offsets)"


def _describe_deletion(fact: FactRecord) -> str:
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "" if fact.deleted_seq is None else f"by change {fact.deleted_seq}"


def page_of_fact(base: Base, fact: FactRecord) -> int | None:
    """Give the number of the page that has the fact; None if it has no document or that has no pages."""
    if fact.source is None:
        return None
    _, text = base.documents.read(fact.source.document_id)
    return page_of(text, fact.source.start)


def print_fact(fact: FactRecord, page: int | None = None) -> None:
    """Print one fact with its source, its page, its review and its changes."""
    say(f"fact {fact.fact_id}, version {fact.version}: {fact.value}")
    if fact.question:
        say(f"question: {fact.question}")
    say(f"source:   {fact_source(fact)}" + (f" {fact.source.uri}" if fact.source and fact.source.uri else ""))
    if page is not None:
        say(f"page:     {page}")
    if fact.review_seq is not None:
        say(f"review:   {fact.review}, by change {fact.review_seq}")
    gone = _describe_deletion(fact) if fact.erased_seq is not None else f"deleted {_describe_deletion(fact)}"
    since = f"live since change {fact.created_seq}"
    if fact.version_seq not in (None, fact.created_seq):
        since += f", version {fact.version} since change {fact.version_seq} (see: colmlm trace fact {fact.fact_id})"
    say(since if fact.deleted_seq is None else gone)


def print_edit(edit: Edit, *, undoes: int | None = None) -> None:
    """Print the change that an edit made; note the facts that say the same already, and if facts lack keys."""
    print_change(edit, undoes=undoes, keyed=edit.keyed, also_said_by=edit.also_said_by)
    if edit.also_said_by and not wants_json():
        note(f"Said already by fact {', '.join(map(str, edit.also_said_by))}.")
    if not edit.keyed and not wants_json():
        note("What was edited has no key yet, so lookups do not find it. Run: colmlm keysets fill")


def print_change(edit: Edit, *, undoes: int | None = None, **more: object) -> None:
    """Print the change that an edit made, which may undo another. With --json the object also has the fields `more`."""
    undone = {} if undoes is None else {"undoes": undoes}
    if wants_json():
        print_json({"seq": edit.seq, "kind": edit.kind, "fact_ids": edit.fact_ids, **undone, **more})
    else:
        undo = f"undo of change {undoes}: " if undone else ""
        say(f"Change {edit.seq}: {undo}{edit.kind} of fact {', '.join(map(str, edit.fact_ids))}")


def print_planned(planned: BulkEdit) -> None:
    """Print the edits that a file asks for."""
    print_table(
        ("line", "id", "value", "new value", "question", "new question"), map(_planned_row, planned.edits)
    )
    note(f"{len(planned.edits)} would be edited; {count_of(planned.unchanged, 'row')} would change nothing.")


def _planned_row(one: PlannedEdit) -> tuple[object, ...]:
    texts = (one.was_value, one.value, one.was_question, one.question)
    return one.line, one.fact_id, *(shorten(text) if text else "" for text in texts)


def tell_also_said(found: list[AlsoSaid]) -> None:
    """Note for each of these facts the other facts that say the same."""
    for said in found:
        others = ", ".join(map(str, said.by))
        note(f"{others} {'says' if len(said.by) == 1 else 'say'} the same as {said.fact_id}.")


# The source of a fact, or of an answer, as it is read again.


def check_at_source(base: Base, source: Source, value: str, *, allow_private: bool = False) -> SourceCheck:
    """Read a source's document again where it came from, and compare the text at its place with `value`."""
    from colmlm.kb.corpus.raw.source_check import UNREACHABLE, SourceCheck, SourcedStatement, check_source

    text, uri = base.documents.read(source.document_id)[1], base.documents.place(source.document_id)
    if uri is None and base.server is not None:
        cause = "a server tells no paths of its files. Run the command on the server's machine"
        return SourceCheck(outcome=UNREACHABLE, cause=cause)
    said = SourcedStatement(
        external_id=source.external_id,
        uri=uri,
        text=text,
        start=source.start,
        end=source.end,
        value=value,
    )
    return check_source(said, allow_private=allow_private)


_OUTCOMES = {
    "still_says": "The source still says so",
    "says_otherwise": "The source says something else",
    "gone": "The source is gone",
    "unreachable": "The source cannot be reached",
}


def print_check(found: SourceCheck) -> None:
    """Print the outcome of a source check: the words and their place in the source now, or the cause of a failure."""
    there = f": {found.place.uri}, {found.place.start} to {found.place.end}" if found.place else ""
    said = f": {visible_text(found.says)}" if found.says and found.outcome == "says_otherwise" else ""
    say(f"{_OUTCOMES[found.outcome]}{said}{there}.")
    if found.cause is not None:
        note(f"{found.cause[:1].upper()}{found.cause[1:]}.")


def print_pairs(base: Base, found: PairPage) -> None:
    """Print a page of pairs of facts that contradict or say the same."""
    if wants_json():
        print_json(found)
        return
    texts: dict[int, str] = {}
    columns = ("pair", "fact", "value", "other", "value", "question or sentence", "by", "answers")
    print_table(columns, [_pair_row(base, pair, texts) for pair in found.pairs], "No such pairs.")
    _tell_more(found, len(found.pairs), "pair")


def _pair_row(base: Base, pair: FactPair, texts: dict[int, str]) -> tuple[object, ...]:
    by = "words" if pair.score is None else "sentence" if pair.score == 1 else f"key {pair.score:.3f}"
    said = (pair.fact.fact_id, shorten(pair.fact.value), pair.other.fact_id, shorten(pair.other.value))
    about = pair.fact.question or pair.other.question or sentence_of(base, pair.fact, texts)
    return pair.pair_id, *said, shorten(about, SENTENCE_WIDTH + 2), by, pair.answering or ""


def print_stale_facts(found: StalePage) -> None:
    """Print a page of facts whose document has a newer text."""
    if wants_json():
        print_json(found)
        return
    rows = ((one.fact_id, shorten(one.value), shorten(one.question), one.why) for one in found.facts)
    print_table(("id", "value", "question", "why"), rows, "No stale facts.")
    _tell_more(found, len(found.facts), "stale fact")


def lineage_lines(findings: Iterable[LineageFinding], what: str) -> list[str]:
    """List in sentences which checkpoints were trained on a text (named `what`), which not, and which are unknown."""
    asked = list(findings)
    named = {"listed": f"Trained on {what}", "not-listed": f"By their records not trained on {what}"}
    lines = [
        f"{said}: {', '.join(f'{one.name} ({one.checkpoint})' for one in asked if one.says == says)}."
        for says, said in named.items()
        if any(one.says == says for one in asked)
    ]
    unknown = [f"{one.name} ({one.checkpoint}), {one.why}" for one in asked if one.says == "unknown"]
    return [*lines, *([f"Unknown whether trained on {what}: {'; '.join(unknown)}."] if unknown else [])]


def _tell_more(found: PairPage | StalePage, shown: int, thing: str) -> None:
    if found.total > shown:
        note(f"{'' if found.is_exact else 'More than '}{count_of(found.total, thing)} in all.")
    if found.next_after is not None:
        note(f"More: --after {found.next_after}")
