"""`colmlm facts contradictions`, `duplicates`, `stale` and `hold`: facts that are compared with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.fact_view import SENTENCE_WIDTH, sentence_of
from colmlm.cli.options import Actor, After, FactId, Limit, Reason, examples, wants_json
from colmlm.cli.output import counted, note, print_json, print_table, say, shorten

if TYPE_CHECKING:
    from colmlm.kb.facts.compared import AlsoSaid, FactPair, PairPage, PairsSought, StalePage

Corpus = Annotated[
    str | None, typer.Option("--corpus", help="Only where one of the facts is of this corpus.")
]
OtherId = Annotated[int, typer.Argument(metavar="OTHER_ID", min=1, help="The other fact's id.")]


@anywhere
def contradictions(
    base: Base,
    corpus: Corpus = None,
    held: Annotated[
        bool,
        typer.Option("--held", help="Those of which somebody said that both hold, in place of the others."),
    ] = False,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List pairs of live facts that answer one question with two values.

    Pairs that say two values in one sentence are listed as well.
    """
    sought: PairsSought = {"corpus": corpus, "held": held, "after": after, "limit": limit}
    _print_pairs(base, base.comparisons.pairs("contradictions", **sought))


@anywhere
def duplicates(base: Base, corpus: Corpus = None, after: After = 0, limit: Limit = 50) -> None:
    """List pairs of live facts with the same value for one question, or in one sentence."""
    found = base.comparisons.pairs("duplicates", corpus=corpus, after=after, limit=limit)
    _print_pairs(base, found)


def _print_pairs(base: Base, found: PairPage) -> None:
    if wants_json():
        print_json(found)
        return
    texts: dict[int, str] = {}
    columns = ("pair", "fact", "value", "other", "value", "question or sentence", "by", "answers")
    print_table(columns, [_row(base, pair, texts) for pair in found.pairs])
    _tell_rest(found, len(found.pairs), "pair")


def _row(base: Base, pair: FactPair, texts: dict[int, str]) -> tuple[object, ...]:
    by = "words" if pair.score is None else "sentence" if pair.score == 1 else f"key {pair.score:.3f}"
    said = (pair.fact.fact_id, shorten(pair.fact.value), pair.other.fact_id, shorten(pair.other.value))
    about = pair.fact.question or pair.other.question or sentence_of(base, pair.fact, texts)
    return pair.pair_id, *said, shorten(about, SENTENCE_WIDTH + 2), by, pair.answering or ""


@anywhere
def stale(base: Base, corpus: Corpus = None, after: After = 0, limit: Limit = 50) -> None:
    """List live facts whose document has a newer text, restored since or corrected before."""
    found = base.comparisons.stale(corpus=corpus, after=after, limit=limit)
    if wants_json():
        print_json(found)
        return
    rows = ((one.fact_id, shorten(one.value), shorten(one.question), one.why) for one in found.facts)
    print_table(("id", "value", "question", "why"), rows)
    _tell_rest(found, len(found.facts), "stale fact")


def _tell_rest(found: PairPage | StalePage, shown: int, thing: str) -> None:
    if found.total > shown:
        note(f"{'' if found.is_exact else 'More than '}{counted(found.total, thing)} in all.")
    if found.next_after is not None:
        note(f"More: --after {found.next_after}")


@anywhere
def hold(
    base: Base,
    fact_id: FactId,
    other_id: OtherId,
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


def add_to(app: typer.Typer) -> None:
    """Add these commands to those of facts."""
    app.command(
        epilog=examples("colmlm facts contradictions", "colmlm facts contradictions --corpus demo --json")
    )(contradictions)
    app.command(epilog=examples("colmlm facts duplicates", "colmlm facts duplicates --json"))(duplicates)
    app.command(epilog=examples("colmlm facts stale", "colmlm facts stale --corpus demo --json"))(stale)
    app.command(
        epilog=examples(
            'colmlm facts hold 12 905 --reason "two capitals, each in its time"',
            'colmlm facts hold 12 905 --not --reason "one of them is wrong"',
        )
    )(hold)


def tell_also_said(found: list[AlsoSaid]) -> None:
    """Note which other facts say what these facts say."""
    for said in found:
        others = ", ".join(map(str, said.by))
        note(f"{others} {'says' if len(said.by) == 1 else 'say'} the same as {said.fact_id}.")
