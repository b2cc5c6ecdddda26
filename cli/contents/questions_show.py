"""Shows sets of kept questions, their runs, and what differs between two of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from colmlm.cli.output import counted, print_table, say, shorten
from colmlm.kb.lookup.options import filter_note

if TYPE_CHECKING:
    from colmlm.kb.questions.records import AskedItem, KeptQuestion, KeptSet, QuestionRun, RunComparison


def described(found: KeptSet) -> str:
    """Say what a set holds, in a sentence."""
    where = f", answered from {found.corpus}" if found.corpus else ""
    return f"{found.name}: {counted(found.num_questions, 'question')}{where}."


def sets(found: Sequence[KeptSet]) -> None:
    rows = [
        (
            one.name,
            one.num_questions,
            one.corpus or "",
            summed(one.last_run) if one.last_run else "never asked",
        )
        for one in found
    ]
    print_table(("set", "questions", "corpus", "last run"), rows)


def questions(found: KeptSet, kept: Sequence[KeptQuestion]) -> None:
    rows = [(one.question_id, shorten(one.question, 80), _values(one.expected)) for one in kept]
    print_table(("id", "question", "expected"), rows)
    say(described(found))


def runs(found: Sequence[QuestionRun]) -> None:
    rows = [
        (run.run_id, by(run), f"{run.threshold:.3f}", run.right, run.wrong, run.abstained, run.seq, run.actor)
        for run in found
    ]
    print_table(("run", "by", "threshold", "right", "wrong", "abstained", "change", "actor"), rows)


def by(run: QuestionRun) -> str:
    """Say what facts were found by, and which."""
    return ", ".join(filter(None, (run.how, filter_note(run))))


def items(found: Sequence[AskedItem]) -> None:
    rows = [
        (
            one.outcome,
            shorten(one.question, 60),
            _values(one.expected),
            shorten(one.value, 40),
            one.reason or "",
        )
        for one in found
    ]
    print_table(("outcome", "question", "expected", "value", "reason"), rows)


def count_silent(found: Sequence[AskedItem]) -> int:
    """Count the questions that nothing should answer and nothing did."""
    return sum(one.outcome == "right" and not one.expected for one in found)


def summed(run: QuestionRun, silent: int = 0) -> str:
    """Say what came of a run, in a sentence."""
    right = f"{run.right} of {run.asked} right" + (f" ({silent} silent as expected)" if silent else "")
    return f"Run {run.run_id}: {right}, {run.wrong} wrong, {run.abstained} abstained."


def comparison(found: RunComparison) -> None:
    rows = []
    for one in found.items:
        asked = one.after or one.before
        assert asked is not None
        changes = ", ".join(map(str, one.seqs[:5]))
        rows.append((shorten(asked.question, 60), _came(one.before), _came(one.after), changes))
    print_table(("question", f"run {found.before.run_id}", f"run {found.after.run_id}", "changes"), rows)
    say(f"{counted(len(found.items), 'question')} came out otherwise, {found.same} the same.")
    kinds = ", ".join(f"{number} {kind}" for kind, number in found.changes.items())
    between = f"Changes {found.first_seq + 1} to {found.last_seq} between: {kinds}."
    say(between if kinds else "Nothing was changed between.")
    if found.settings:
        say(f"Asked otherwise: {', '.join(found.settings)}.")


def _came(item: AskedItem | None) -> str:
    if item is None:
        return "not asked"
    said = item.outcome if item.value is None else f"{item.outcome}: {shorten(item.value, 30)}"
    return f"{said} ({item.reason})" if item.reason else said


def _values(expected: Sequence[str]) -> str:
    return shorten(" | ".join(expected), 50) or "(nothing)"
