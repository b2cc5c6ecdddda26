"""`colmlm facts verify`, `compare` and `hold`: facts beside their sources, and beside one another."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli import fact_view as show_
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import Actor, After, AllowPrivate, FactId, Limit, Reason, examples, wants_json
from colmlm.cli.output import count_of, note, plain, print_json, print_table, say, shorten
from colmlm.kb.corpus.raw.source_check import STILL_SAYS
from colmlm.kb.errors import InvalidValue

if TYPE_CHECKING:
    from colmlm.kb.facts.records import ComparedPart, FactPair, PairPage, StalePage

app = typer.Typer()


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
    if found.outcome != STILL_SAYS:
        raise typer.Exit(CHECK_FAILED)


class Comparison(StrEnum):
    """Name what facts are compared for."""

    contradictions = "contradictions"
    duplicates = "duplicates"
    stale = "stale"


@app.command(
    epilog=examples(
        "colmlm facts compare contradictions",
        "colmlm facts compare duplicates --corpus demo --json",
        "colmlm facts compare stale",
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
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="Only where one of the facts is of this corpus.")
    ] = None,
    held: Annotated[
        bool,
        typer.Option("--held", help="Contradictions of which somebody said that both hold, not the others."),
    ] = False,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List live facts that contradict each other, say the same, or are behind their document's text.

    The stale ones were restored after the newer text came, or corrected before.
    """
    if held and kind is not Comparison.contradictions:
        raise typer.BadParameter("only contradictions are held.", param_hint="--held")
    sought: ComparedPart = {"corpus": corpus, "after": after, "limit": limit}
    if kind is Comparison.contradictions:
        _print_pairs(base, base.comparisons.pairs("contradictions", held=held, **sought))
    elif kind is Comparison.duplicates:
        _print_pairs(base, base.comparisons.pairs("duplicates", **sought))
    else:
        _print_stale(base.comparisons.stale(**sought))


def _print_pairs(base: Base, found: PairPage) -> None:
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
    about = pair.fact.question or pair.other.question or show_.sentence_of(base, pair.fact, texts)
    return pair.pair_id, *said, shorten(about, show_.SENTENCE_WIDTH + 2), by, pair.answering or ""


def _print_stale(found: StalePage) -> None:
    if wants_json():
        print_json(found)
        return
    rows = ((one.fact_id, shorten(one.value), shorten(one.question), one.why) for one in found.facts)
    print_table(("id", "value", "question", "why"), rows, "No stale facts.")
    _tell_more(found, len(found.facts), "stale fact")


def _tell_more(found: PairPage | StalePage, shown: int, thing: str) -> None:
    if found.total > shown:
        note(f"{'' if found.is_exact else 'More than '}{count_of(found.total, thing)} in all.")
    if found.next_after is not None:
        note(f"More: --after {found.next_after}")


@app.command(
    epilog=examples(
        'colmlm facts hold 12 905 --reason "two capitals, each in its time"',
        'colmlm facts hold 12 905 --not --reason "one of them is wrong"',
    )
)
@anywhere
def hold(
    base: Base,
    fact_id: FactId,
    other_id: Annotated[int, typer.Argument(metavar="OTHER_ID", min=1, help="The other fact's id.")],
    reason: Reason,
    takes_back: Annotated[bool, typer.Option("--not", help="Take that back: they contradict.")] = False,
    actor: Actor = None,
) -> None:
    """Note that both of two facts hold, so that they are no contradiction until one of them is edited."""
    done = base.comparisons.hold(
        fact_id, other_id, actor=base.actor(actor), reason=reason, holds=not takes_back
    )
    if wants_json():
        print_json({"seq": done.seq, "kind": done.kind, "fact_ids": done.fact_ids, "holds": not takes_back})
    else:
        both = "contradict each other" if takes_back else "both hold"
        say(f"Change {done.seq}: facts {done.fact_ids[0]} and {done.fact_ids[1]} {both}")
