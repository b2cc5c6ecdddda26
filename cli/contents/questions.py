"""`colmlm questions`: questions that are kept with the values they should get, asked again and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.readers import describe_threshold
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    AcceptedOnly,
    Actor,
    AnswerMode,
    CheckpointPath,
    CorporaAsked,
    RankedBy,
    Yes,
    examples,
    no_nan,
    require_somebody,
    require_with,
    some_text,
    some_texts,
    wants_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten
from colmlm.kb.answers.records import Calibrating
from colmlm.kb.lookup.options import filter_note

if TYPE_CHECKING:
    from colmlm.kb.questions.records import AskedItem, KeptQuestion, KeptSet, QuestionRun, RunComparison

app = typer.Typer(
    help="Keep questions with the values they should get, ask them, and compare runs.",
    epilog=examples("colmlm questions list"),
)
Name = Annotated[str, typer.Argument(callback=some_text, help="The name of the set.")]

AT_ONCE = 500
_DEFAULTS = Calibrating()


@app.command(
    epilog=examples(
        "colmlm questions add handbook --file asked.csv --corpus handbook",
        'colmlm questions add handbook --question "When did the canteen open?" --expected 1834',
        "colmlm questions add handbook --stored 12",
    )
)
@anywhere
def add(
    base: Base,
    name: Name,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="CSV or JSON Lines with question and value (or none)."
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", callback=some_text, help="One question.")
    ] = None,
    expected: Annotated[
        list[str] | None,
        typer.Option(
            "--expected",
            callback=some_texts,
            help="A value that is right; without one, nothing should answer.",
        ),
    ] = None,
    output: Annotated[
        int | None, typer.Option("--stored", min=1, help="A stored output: its question, and what it said.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--corpus", callback=some_text, help="Where the answers should be.")
    ] = None,
) -> None:
    """Add questions to a set, with the values that count as right.

    The set is made where there is none. A question that it has already gets these values.
    """
    given = [one for one in (file, question, output) if one is not None]
    if (file is not None and (question or expected)) or not (given or corpus) or (file and output):
        raise typer.BadParameter("name a --file, a --question or an output (--stored).", param_hint="--file")
    who = base.actor(None)
    if output is not None:
        if corpus is not None:
            raise typer.BadParameter(
                "an output is added to a set as it is; leave it out.", param_hint="--corpus"
            )
        kept = base.questions.take(name, output, question=question, expected=expected, actor=who)
    else:
        from colmlm.kb.questions.records import DraftQuestion
        from colmlm.kb.questions.sets import questions_of_file

        drafts = [DraftQuestion(question, tuple(expected or ()))] if question is not None else []
        drafts += questions_of_file(file) if file is not None else []
        kept = base.questions.add(name, drafts, corpus=corpus, actor=who)
    print_json(kept) if wants_json() else say(describe_set(kept))


@app.command(
    "list",
    epilog=examples(
        "colmlm questions list", "colmlm questions list handbook", "colmlm questions list handbook --runs"
    ),
)
@anywhere
def list_sets(
    base: Base,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", callback=some_text, help="Show this set.")
    ] = None,
    runs: Annotated[bool, typer.Option("--runs", help="Show its runs in place of its questions.")] = False,
) -> None:
    """List the sets of questions, or show one: its questions with their values, or its runs."""
    if name is None:
        if runs:
            raise typer.BadParameter("name the set.", param_hint="--runs")
        sets = base.questions.all()
        print_json({"sets": sets}) if wants_json() else show_sets(sets)
        return
    found = base.questions.show(name)
    if runs:
        every = base.questions.runs(name)
        print_json({**asdict(found), "runs": every}) if wants_json() else show_runs(every)
        return
    questions = _read_all_questions(base, name)
    print_json({**asdict(found), "questions": questions}) if wants_json() else show_questions(
        found, questions
    )


@app.command(
    epilog=examples(
        "colmlm questions run handbook",
        "colmlm questions run handbook --accepted-only",
        "colmlm questions run handbook --ranking words --threshold 0.5 --json",
    )
)
@anywhere
def run(
    base: Base,
    name: Name,
    mode: Annotated[
        AnswerMode, typer.Option("--mode", help="Ask as `colmlm ask` does: read, or the nearest fact.")
    ] = AnswerMode.read,
    ranking: Annotated[
        RankedBy | None, typer.Option("--ranking", help="Ask as lookups do, finding facts by this.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", min=-1, max=1, callback=no_nan, help="The least score. Default: the base's."
        ),
    ] = None,
    accepted_only: AcceptedOnly = False,
    corpora: CorporaAsked = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Ask all questions of a set, and say which are right, wrong and abstained, and why.

    The exit code is 1 unless all are right. The run is stored, to be compared with others. With --server a job there
    does it, and the command waits for that.
    """
    from colmlm.kb.questions.records import AskingSet

    if ranking is not None and mode is not AnswerMode.read:
        raise typer.BadParameter("name a mode or a ranking, not both.", param_hint="--ranking")
    base.use_checkpoint(checkpoint)
    how = AskingSet(
        mode.value, ranking.value if ranking else None, threshold, accepted_only, tuple(corpora or ())
    )
    done = base.questions.ask(name, how, actor=base.actor(None))
    items = base.questions.items(name, done.run_id)
    if wants_json():
        counts = {"asked": done.asked, "right": done.right, "wrong": done.wrong, "abstained": done.abstained}
        print_json({**counts, "silent": count_silent(items), "items": items, **asdict(done)})
    else:
        show_items(items)
        say(summarize_run(done, count_silent(items)))
        if done.skipped:
            note(f"{count_of(done.skipped, 'question', 'were')} not asked: a part was erased.")
    if done.right < done.asked:
        raise typer.Exit(CHECK_FAILED)


@app.command(
    epilog=examples("colmlm questions compare handbook", "colmlm questions compare handbook 3 5 --json")
)
@anywhere
def compare(
    base: Base,
    name: Name,
    before: Annotated[
        int | None, typer.Argument(min=1, help="A run. Default: the one before the last.")
    ] = None,
    after: Annotated[int | None, typer.Argument(min=1, help="Another. Default: the last.")] = None,
) -> None:
    """Compare two runs of a set: which questions came out otherwise, and what was changed between."""
    found = base.questions.compare(name, before, after)
    print_json(found) if wants_json() else show_comparison(found)


@app.command(
    epilog=examples(
        "colmlm questions remove handbook --question-id 12", "colmlm questions remove handbook --yes"
    )
)
@anywhere
def remove(
    base: Base,
    name: Name,
    question_ids: Annotated[
        list[int] | None, typer.Option("--question-id", min=1, help="Only this question; may be repeated.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove questions of a set, or the whole set with its runs."""
    ids = list(dict.fromkeys(question_ids or ()))
    if not ids:
        require_somebody(yes, "remove")
        found = base.questions.show(name)
        if not yes:
            typer.confirm(f"Remove {describe_set(found)}", abort=True, err=True)
    before = base.questions.remove(name, ids or None)
    number = len(ids) or before.num_questions
    if wants_json():
        print_json({"name": name, "removed": number, "question_ids": ids})
    else:
        say(f"Removed {count_of(number, 'question')} of {name}.")


def _read_all_questions(base: Base, name: str) -> list[KeptQuestion]:
    found: list[KeptQuestion] = []
    while part := base.questions.questions(name, found[-1].question_id if found else 0, AT_ONCE):
        found += part
        if len(part) < AT_ONCE:
            break
    return found


@app.command(
    epilog=examples(
        "colmlm questions threshold --json",
        "colmlm questions threshold --calibrate --file asked.csv",
        "colmlm questions threshold --calibrate --corpus squad --wrong 0.03 --dry-run --json",
        "colmlm questions threshold --calibrate --question-set handbook",
        "colmlm questions threshold --shipped",
    )
)
@anywhere
def threshold(
    base: Base,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Choose it for this base, by questions and a share of wrong answers."
        ),
    ] = False,
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
        float | None,
        typer.Option(
            "--wrong",
            min=0.001,
            max=0.5,
            callback=no_nan,
            help=f"The share that may be answered wrongly. Default: {_DEFAULTS.wrong}.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", min=1, max=100_000, help=f"The most questions to ask. Default: {_DEFAULTS.sample}."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Draws the questions. Default: 0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --calibrate: measure, and leave the threshold as it is.")
    ] = False,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Go back to the one that comes with the reader.")
    ] = False,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; it stays in the change log.")
    ] = None,
) -> None:
    """Show or calibrate the score from which answers are given, and what speaks against it by now.

    To calibrate it, each question is asked as the base is, and as if what answers it were not there. Without questions
    of a file or a corpus or a set those of the last calibration are asked. It is refused, with exit code 1, where too
    few are there, or too many are answered wrongly.
    """
    if not calibrate:
        require_with(
            "--calibrate", file=questions, corpus=corpora, question_set=question_set, wrong=wrong, sample=sample,
            seed=seed, dry_run=dry_run,
        )  # fmt: skip
    if calibrate and shipped:
        raise typer.BadParameter("--calibrate and --shipped exclude each other; give one of them.")
    who = base.actor(actor)
    if calibrate:
        how = Calibrating(
            _DEFAULTS.wrong if wrong is None else wrong,
            sample or _DEFAULTS.sample,
            seed or _DEFAULTS.seed,
            tuple(corpora or ()),
            dry_run,
            question_set,
        )
        done = base.lookups.calibrate_answers(questions, how, actor=who, reason=reason or "calibrated")
        print_json(done) if wants_json() else _show_calibration(done)
        return
    if shipped:
        base.lookups.use_shipped_threshold(actor=who, reason=reason or "back to the shipped threshold")
    found = base.lookups.answer_threshold()
    if wants_json():
        print_json(found)
        return
    say(describe_threshold(found))
    for doubt in found.doubts:
        note(doubt)


def _show_calibration(done: dict[str, Any]) -> None:
    measured = done["measured"]
    here, shipped = measured["here"], measured["shipped"]
    say(
        f"Threshold {here['threshold']:.3f}: of {count_of(measured['answerable'], 'question')} {here['right']:.1%} are "
        f"answered rightly, {here['wrong']:.1%} wrongly (hardly more than {measured['most_wrong']:.1%}); of "
        f"{measured['unanswerable']} that nothing answers {here['alarms']:.1%} get an answer (hardly more than "
        f"{measured['most_alarms']:.1%})."
    )
    say(
        f"The shipped {shipped['threshold']:.3f}: {shipped['right']:.1%} rightly, {shipped['wrong']:.1%} wrongly, "
        f"{shipped['alarms']:.1%}."
    )
    if done["dry_run"]:
        say("Nothing was changed.")


# Shows sets of kept questions, their runs, and what differs between two of these.


def describe_set(found: KeptSet) -> str:
    """Name a set, the number of its questions and their corpus in a sentence."""
    where = f", answered from {found.corpus}" if found.corpus else ""
    return f"{found.name}: {count_of(found.num_questions, 'question')}{where}."


def show_sets(found: Sequence[KeptSet]) -> None:
    rows = [
        (
            one.name,
            one.num_questions,
            one.corpus or "",
            summarize_run(one.last_run) if one.last_run else "never asked",
        )
        for one in found
    ]
    print_table(
        ("set", "questions", "corpus", "last run"), rows, "No sets. Make one: colmlm questions add NAME"
    )


def show_questions(found: KeptSet, kept: Sequence[KeptQuestion]) -> None:
    rows = [(one.question_id, shorten(one.question, 80), _expected_values(one.expected)) for one in kept]
    print_table(("id", "question", "expected"), rows)
    say(describe_set(found))


def show_runs(found: Sequence[QuestionRun]) -> None:
    rows = [
        (
            run.run_id,
            _ranked_by(run),
            f"{run.threshold:.3f}",
            run.right,
            run.wrong,
            run.abstained,
            run.seq,
            run.actor,
        )
        for run in found
    ]
    print_table(
        ("run", "by", "threshold", "right", "wrong", "abstained", "change", "actor"), rows, "No runs yet."
    )


def _ranked_by(run: QuestionRun) -> str:
    """Name the mode or ranking by which a run asked, and the filter of its facts."""
    return ", ".join(filter(None, (run.how, filter_note(run))))


def show_items(found: Sequence[AskedItem]) -> None:
    rows = [
        (
            one.outcome,
            shorten(one.question, 60),
            _expected_values(one.expected),
            shorten(one.value, 40),
            one.reason or "",
        )
        for one in found
    ]
    print_table(("outcome", "question", "expected", "value", "reason"), rows)


def count_silent(found: Sequence[AskedItem]) -> int:
    """Count the questions without expected values that rightly got no answer."""
    return sum(one.outcome == "right" and not one.expected for one in found)


def summarize_run(run: QuestionRun, silent: int = 0) -> str:
    """Give the number of each outcome of a run in a sentence; `silent` counts the right ones that have no answer."""
    right = f"{run.right} of {run.asked} right" + (f" ({silent} silent as expected)" if silent else "")
    return f"Run {run.run_id}: {right}, {run.wrong} wrong, {run.abstained} abstained."


def show_comparison(found: RunComparison) -> None:
    rows = []
    for one in found.items:
        asked = one.after or one.before
        assert asked is not None
        changes = ", ".join(map(str, one.seqs[:5]))
        rows.append((shorten(asked.question, 60), _outcome(one.before), _outcome(one.after), changes))
    print_table(("question", f"run {found.before.run_id}", f"run {found.after.run_id}", "changes"), rows)
    say(f"{count_of(len(found.items), 'question')} came out otherwise, {found.same} the same.")
    kinds = ", ".join(f"{number} {kind}" for kind, number in found.changes.items())
    between = f"Changes {found.first_seq + 1} to {found.last_seq} between: {kinds}."
    say(between if kinds else "Nothing was changed between.")
    if found.settings:
        say(f"Asked otherwise: {', '.join(found.settings)}.")


def _outcome(item: AskedItem | None) -> str:
    if item is None:
        return "not asked"
    said = item.outcome if item.value is None else f"{item.outcome}: {shorten(item.value, 30)}"
    return f"{said} ({item.reason})" if item.reason else said


def _expected_values(expected: Sequence[str]) -> str:
    return shorten(" | ".join(expected), 50) or "(nothing)"
