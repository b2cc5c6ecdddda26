"""Shows previews and reports of erasures, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from colmlm.api.nouns.contents import FactVerbs
from colmlm.cli.contents.facts_show import where
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.output import note, print_json, print_table, say, shorten, these_facts

if TYPE_CHECKING:
    from colmlm.kb.erasure.certificates import Erased, ErasureReport, ErasureRequest


def show_facts(facts: FactVerbs, fact_ids: Sequence[int]) -> None:
    """Prints the facts as a table."""
    found = facts.show_many(fact_ids)
    rows = [(f.fact_id, shorten(f.value), shorten(f.question), where(f)) for f in found]
    print_table(("id", "value", "question", "source"), rows)


def show_asked(asked: ErasureRequest, as_json: bool) -> None:
    """Prints a request that waits for a second token."""
    if as_json:
        print_json({"request": asked, "seq": None})
        return
    say(f"Asked to erase {these_facts(len(asked.fact_ids))}; nothing is erased yet.")
    note(f"Another admin approves it with: colmlm erasures approve {asked.erasure_request_id}")


def counts(erased: Erased) -> dict[str, object]:
    """Gives what an erasure touched, for JSON."""
    return {
        "again": erased.again,
        "documents": erased.documents,
        "generations": erased.generations,
        "forget_runs": erased.forget_runs,
        "jobs": erased.jobs,
        "erasure_requests": erased.erasure_requests,
        "questions": erased.questions,
        "question_outcomes": erased.question_outcomes,
        "feedback": erased.feedback,
        "keys": erased.num_keys,
        "also_said_by": erased.also_said_by,
        "left": erased.left,
    }


def as_dict(report: ErasureReport) -> dict[str, object]:
    """Gives what was erased and the level that was reached, for JSON."""
    done = report.erased
    of_change = {"seq": done.seq, "fact_ids": done.fact_ids, **counts(done)} if done else {"seq": None}
    return {**of_change, "level": report.level, "asked_level": report.asked_level, "levels": report.levels}


def touched(erased: Erased) -> str:
    """Says what an erasure touched, in words."""
    return (
        f"{len(erased.fact_ids)} facts in {len(erased.documents)} texts, {len(erased.generations)} outputs, "
        f"{len(erased.forget_runs)} forget runs and {len(erased.jobs)} jobs"
    )


def show_twins(erased: Erased) -> None:
    """Prints which other facts say the same."""
    if erased.also_said_by:
        ids = ", ".join(map(str, erased.also_said_by[:20]))
        more = f" and {len(erased.also_said_by) - 20} more" if len(erased.also_said_by) > 20 else ""
        say(f"Other facts say the same and stay: {ids}{more}. Erase them too if they must go.")


def show_left(erased: Erased) -> None:
    """Prints what still says the facts, and where."""
    left = erased.left
    for mention in left.documents:
        at = ", ".join(f"{one.start}-{one.end}" for one in mention.spans[:10])
        say(f"Document {mention.document_id} says it too, at {at}.")
    if left.documents:
        note("Other documents are redacted too with --mentions all, but not what another fact stands on.")
    named = {
        "what is stored about documents beside their text": left.titles,
        "texts of facts": left.facts,
        "outputs": left.generations,
        "the log's changes, which stay": left.reasons,
    }
    for what, ids in named.items():
        if ids:
            say(f"Still said by {what}: {_some(ids)}")
    for one in left.rows:
        rows = f"{one.num_rows} row{'s' if one.num_rows != 1 else ''}"
        at = f": {_some(one.ids)}" if one.ids else ""
        say(f"Still said by column {one.column} of table {one.table}, in {rows}{at}")


def _some(ids: Sequence[int]) -> str:
    return f"{', '.join(map(str, ids[:20]))}{' ...' if len(ids) > 20 else ''}"


def show_report(report: ErasureReport) -> None:
    """Prints what was erased and the level that was reached."""
    if (done := report.erased) is not None:
        if done.seq is None:
            say("Erased before, and nothing says it still: nothing was changed.")
        else:
            say(f"Change {done.seq}: erased {touched(done)}; {done.num_keys} keys dropped.")
        show_twins(done)
        show_left(done)
    say(f"Level {report.level} of {len(report.levels)} is reached:")
    rows = [(level.level, level.name, level.state, level.left, level.remedy) for level in report.levels]
    print_table(("level", "", "state", "left", "what to do"), rows)


def require_level(report: ErasureReport) -> None:
    """Exit with a failing code where the level that was asked for is not reached, after the report was printed."""
    if report.level < report.asked_level:
        again = "colmlm erase --now" if report.asked_level > 2 else "the same command again"
        note(
            f"Level {report.asked_level} was asked for, and level {report.level} is reached: files may still hold the "
            f"facts, which are erased all the same. Settle what the report names, then run {again}."
        )
        raise typer.Exit(CHECK_FAILED)
