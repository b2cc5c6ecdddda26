"""Shows plans and verifications of forget runs, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colmlm.api.nouns.removal import ForgetVerbs
from colmlm.cli.contents.facts_show import place, where
from colmlm.cli.output import counted, print_table, say, shorten
from colmlm.kb.forgetting.records import LEVELS, OUTCOMES, ForgetPlan, Rates, SaidSurvivor, Verification

if TYPE_CHECKING:
    from colmlm.kb.facts.records import FactRecord


def texts_of(forgetting: ForgetVerbs, made: ForgetPlan, limit: int) -> dict[int, FactRecord]:
    """Reads the facts that a plan shows, as far as the base still has them."""
    shown = [*made.fact_ids[:limit], *made.equivalents[:limit], *made.conflicting[:limit]]
    for successor in made.successors[:limit]:
        shown += [successor.asked_fact_id, successor.successor_id or 0]
    return forgetting.facts([*shown, *(one.asked_fact_id for one in made.survivors[:limit])])


def plan_json(
    made: ForgetPlan, texts: Mapping[int, FactRecord], survivors: Sequence[SaidSurvivor], limit: int
) -> dict[str, Any]:
    """Gives the plan for JSON, with all ids, and with the texts of the first `limit` facts and places of each kind."""

    def records(fact_ids: Iterable[int]) -> list[FactRecord]:
        return [texts[fact_id] for fact_id in fact_ids if fact_id in texts]

    successors = []
    for successor in made.successors:
        asked, found = texts.get(successor.asked_fact_id), texts.get(successor.successor_id or 0)
        said = {"question": asked.question if asked else None, "value": found.value if found else None}
        successors.append({**asdict(successor), "would_answer": successor.would_answer, **said})
    return {
        **asdict(made),
        "successors": successors,
        "selector_digest": made.selector_digest or None,
        "texts": {
            "facts": records(made.fact_ids[:limit]),
            "equivalents": records(made.equivalents[:limit]),
            "conflicting": records(made.conflicting[:limit]),
            "survivors": survivors,
        },
    }


def show_plan(made: ForgetPlan, texts: Mapping[int, FactRecord], limit: int) -> None:
    """Prints a plan: its facts, equivalent and conflicting ones, and what would be answered instead."""
    forgets = counted(len(made.fact_ids), "fact")
    say(f"run {made.run_id}: forget {forgets} of {made.live_facts} live, policy {made.policy}")
    _show_facts(made.fact_ids, texts, limit)
    taken = "included" if made.included else "NOT included"
    for what, fact_ids in (
        (f"elsewhere saying the same ({taken}; radius {made.radius:.3f})", made.equivalents),
        ("answering the same questions otherwise, which stay", made.conflicting),
    ):
        if fact_ids:
            say()
            say(f"{counted(len(fact_ids), 'fact')} {what}:")
            _show_facts(fact_ids, texts, limit)
    say()
    _show_successors(made, texts, limit)
    touched = made.collateral
    say(
        f"Of {touched.neighbours} facts near by, {touched.displaced} get one of these first for their own question. "
        f"{touched.generations} stored outputs spliced them, {touched.splices} times."
    )
    if made.unkeyed:
        say(
            f"{counted(made.unkeyed, 'fact')} have no key in the active keyset, so no lookup finds them even now."
        )


def _show_facts(fact_ids: tuple[int, ...], texts: Mapping[int, FactRecord], limit: int) -> None:
    shown = [texts[fact_id] for fact_id in fact_ids[:limit] if fact_id in texts]
    rows = ((f.fact_id, shorten(f.value), shorten(f.question), where(f)) for f in shown)
    print_table(("id", "value", "question", "source"), rows)
    if len(fact_ids) > limit:
        say(f"and {len(fact_ids) - limit} more")


def _show_successors(made: ForgetPlan, texts: Mapping[int, FactRecord], limit: int) -> None:
    encoded = sum(successor.encoded for successor in made.successors)
    answering = sum(successor.would_answer for successor in made.successors)
    say(
        f"{made.previewed} of {made.affected} questions previewed ({encoded} encoded, the others by the fact's "
        f"own key): {answering} would be answered with another fact (threshold {made.threshold:.3f})"
    )
    rows = []
    for successor in made.successors[:limit]:
        asked, found = texts.get(successor.asked_fact_id), texts.get(successor.successor_id or 0)
        score = "" if successor.score is None else f"{successor.score:.3f}"
        question = (
            shorten(asked.question) if asked and asked.question else f"(fact {successor.asked_fact_id})"
        )
        rows.append(
            (
                question,
                successor.outcome,
                score,
                successor.successor_id,
                shorten(found.value) if found else "",
            )
        )
    print_table(("question", "outcome", "score", "next fact", "value"), rows)
    if len(made.successors) > limit:
        say(f"and {len(made.successors) - limit} more")


def show_survivors(
    read: int, count: int, survivors: Sequence[SaidSurvivor], texts: Mapping[int, FactRecord]
) -> None:
    """Prints the first places that would still answer, of `count`; nothing where no question was read."""
    if not read:
        return
    say()
    say(
        f"{counted(read, 'question')} asked of the whole base as if these facts were gone: "
        f"{counted(count, 'place')} would still answer"
    )
    rows = []
    for one in survivors:
        asked = texts.get(one.asked_fact_id)
        question = shorten(asked.question) if asked and asked.question else f"(fact {one.asked_fact_id})"
        facts = ", ".join(str(fact.fact_id) for fact in one.facts)
        rows.append((question, shorten(one.text), one.says, f"{one.score:.3f}", facts, place(one.source)))
    print_table(("question", "would say", "value", "probability", "facts", "source"), rows)
    if count > len(survivors):
        say(f"and {count - len(survivors)} more")


def show_verification(asked_before: Mapping[str, Rates], found: Verification) -> None:
    """Prints the level reached, and for each class of checks the share with each outcome."""
    say(f"level {found.level}: {LEVELS[found.level]}")
    columns = ("checks", "n", "found before", "found", "same value", "other value", "abstained", "no match")
    rows = []
    for name, rates in found.probes.items():
        before = asked_before.get(name)
        was = "" if before is None else f"{before.rate('leaks'):.1%}"
        rows.append((name, rates.probes, was, *(f"{rates.rate(outcome):.1%}" for outcome in OUTCOMES)))
    print_table(columns, rows)
    say(
        f"facts still live {found.still_live}, keys in the index {found.keys_in_index}, tombstones {found.tombstones}"
    )
    if found.leaked:
        say(f"found: {', '.join(map(str, found.leaked[:20]))}")
