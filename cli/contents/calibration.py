"""`colmlm questions calibrate` and `threshold`: the score from which answers are given, calibrated for a base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.options import Actor, examples, finite, some_text, some_texts, wants_json
from colmlm.cli.output import note, print_json, say
from colmlm.kb.answers.records import AnswerThreshold, Calibrating

Why = Annotated[str, typer.Option("--reason", callback=some_text, help="Why; it stays in the change log.")]


CALIBRATE_EXAMPLES = examples(
    "colmlm questions calibrate --file asked.csv",
    "colmlm questions calibrate --corpus squad --wrong 0.03 --dry-run --json",
    "colmlm questions calibrate --question-set handbook",
)


@anywhere
def calibrate(
    base: Base,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--file",
            exists=True,
            dir_okay=False,
            help="CSV or JSON Lines with question and value (empty: nothing answers it).",
        ),
    ] = None,
    corpora: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus", callback=some_texts, help="A corpus whose facts have questions that people wrote."
        ),
    ] = None,
    question_set: Annotated[
        str | None, typer.Option("--question-set", callback=some_text, help="A set of kept questions.")
    ] = None,
    wrong: Annotated[
        float,
        typer.Option(
            "--wrong", min=0.001, max=0.5, callback=finite, help="The share that may be answered wrongly."
        ),
    ] = 0.05,
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=100_000, help="How many questions to ask at most.")
    ] = 300,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the questions.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure, and leave the threshold as it is.")
    ] = False,
    actor: Actor = None,
    reason: Why = "calibrated",
) -> None:
    """Choose the score from which answers are given, for this base and a share of wrong ones.

    Each question is asked as the base is, and as if what answers it were not there. Without questions of a file or a
    corpus or a set those of the last calibration are asked. It is refused, with exit code 1, where too few are there,
    or too many are answered wrongly.
    """
    how = Calibrating(wrong, sample, seed, tuple(corpora or ()), dry_run, question_set)
    done = base.lookups.calibrate_answers(questions, how, actor=base.actor(actor), reason=reason)
    print_json(done) if wants_json() else _show(done)


THRESHOLD_EXAMPLES = examples("colmlm questions threshold --json", "colmlm questions threshold --shipped")


@anywhere
def threshold(
    base: Base,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Go back to the one that comes with the reader.")
    ] = False,
    actor: Actor = None,
    reason: Why = "back to the shipped threshold",
) -> None:
    """Show the score from which answers are given, and what speaks against it by now."""
    if shipped:
        base.lookups.use_shipped_threshold(actor=base.actor(actor), reason=reason)
    found = base.lookups.answer_threshold()
    if wants_json():
        print_json(found)
        return
    say(described(found))
    for doubt in found.doubts:
        note(doubt)


def described(found: AnswerThreshold) -> str:
    """Say the threshold in a sentence."""
    if not found.calibrated or found.calibration is None:
        return f"Threshold {found.threshold:.3f}, as shipped: not calibrated for this base."
    measured = found.calibration.measured
    return (
        f"Threshold {found.threshold:.3f}, calibrated for {measured.rate:.1%} wrong on {measured.answerable} questions "
        f"(change {found.calibration.seq}; shipped: {found.shipped:.3f})."
    )


def _show(done: dict[str, Any]) -> None:
    measured = done["measured"]
    here, shipped = measured["here"], measured["shipped"]
    say(
        f"Threshold {here['threshold']:.3f}: of {measured['answerable']} questions {here['right']:.1%} are answered "
        f"rightly, {here['wrong']:.1%} wrongly (hardly more than {measured['most_wrong']:.1%}); of "
        f"{measured['unanswerable']} that nothing answers {here['alarms']:.1%} get an answer (hardly more than "
        f"{measured['most_alarms']:.1%})."
    )
    say(
        f"The shipped {shipped['threshold']:.3f}: {shipped['right']:.1%} rightly, {shipped['wrong']:.1%} wrongly, "
        f"{shipped['alarms']:.1%}."
    )
    if done["dry_run"]:
        say("Nothing was changed.")
