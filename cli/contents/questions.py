"""`colmlm questions`: questions that are kept with the values they should get, asked again and compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.contents import questions_show as show_
from colmlm.cli.contents.answers import AnswerMode
from colmlm.cli.contents.calibration import CALIBRATE_EXAMPLES, THRESHOLD_EXAMPLES, calibrate, threshold
from colmlm.cli.contents.generation import RankedBy
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    AcceptedOnly,
    CheckpointPath,
    Yes,
    examples,
    finite,
    some_text,
    some_texts,
    wants_json,
)
from colmlm.cli.output import note, print_json, say

if TYPE_CHECKING:
    from colmlm.kb.questions.records import KeptQuestion

app = typer.Typer(
    help="Keep questions with the values they should get, ask them, and compare runs.",
    epilog=examples("colmlm questions list"),
)
Name = Annotated[str, typer.Argument(callback=some_text, help="The name of the set.")]

AT_ONCE = 500


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
        from colmlm.kb.questions.files import questions_of_file
        from colmlm.kb.questions.records import DraftQuestion

        drafts = [DraftQuestion(question, tuple(expected or ()))] if question is not None else []
        drafts += questions_of_file(file) if file is not None else []
        kept = base.questions.add(name, drafts, corpus=corpus, actor=who)
    print_json(kept) if wants_json() else say(show_.described(kept))


@app.command("list", epilog=examples("colmlm questions list", "colmlm questions list --json"))
@anywhere
def list_sets(base: Base) -> None:
    """List the sets of questions, each with its last run."""
    found = base.questions.all()
    print_json({"sets": found}) if wants_json() else show_.sets(found)


@app.command(epilog=examples("colmlm questions show handbook", "colmlm questions show handbook --runs"))
@anywhere
def show(
    base: Base,
    name: Name,
    runs: Annotated[bool, typer.Option("--runs", help="Show its runs in place of its questions.")] = False,
) -> None:
    """Show a set: its questions with the values they should get, or its runs."""
    found = base.questions.show(name)
    if runs:
        every = base.questions.runs(name)
        print_json({**asdict(found), "runs": every}) if wants_json() else show_.runs(every)
        return
    questions = _every(base, name)
    print_json({**asdict(found), "questions": questions}) if wants_json() else show_.questions(
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
            "--threshold", min=-1, max=1, callback=finite, help="The least score. Default: the base's."
        ),
    ] = None,
    accepted_only: AcceptedOnly = False,
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
    how = AskingSet(mode.value, ranking.value if ranking else None, threshold, accepted_only)
    done = base.questions.ask(name, how, actor=base.actor(None))
    items = base.questions.items(name, done.run_id)
    if wants_json():
        counts = {"asked": done.asked, "right": done.right, "wrong": done.wrong, "abstained": done.abstained}
        print_json({**counts, "silent": show_.count_silent(items), "items": items, **asdict(done)})
    else:
        show_.items(items)
        say(show_.summed(done, show_.count_silent(items)))
        if done.skipped:
            note(f"{done.skipped} questions were not asked, as a part of them was erased.")
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
    print_json(found) if wants_json() else show_.comparison(found)


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
            typer.confirm(f"Remove {show_.described(found)}", abort=True, err=True)
    before = base.questions.remove(name, ids or None)
    number = len(ids) or before.num_questions
    if wants_json():
        print_json({"name": name, "removed": number, "question_ids": ids})
    else:
        say(f"Removed {number} question{'' if number == 1 else 's'} of {name}.")


def _every(base: Base, name: str) -> list[KeptQuestion]:
    found: list[KeptQuestion] = []
    while part := base.questions.questions(name, found[-1].question_id if found else 0, AT_ONCE):
        found += part
        if len(part) < AT_ONCE:
            break
    return found


app.command("calibrate", epilog=CALIBRATE_EXAMPLES)(calibrate)
app.command("threshold", epilog=THRESHOLD_EXAMPLES)(threshold)
