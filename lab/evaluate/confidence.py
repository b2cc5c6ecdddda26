"""`colmlm evaluate confidence`: fits how sure answers are, on texts that the reader did not learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.answering import reader
from colmlm.cli.composition.readers import reader_at
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.confidence import UNFITTED
from colmlm.lab.evaluate.documents import marked, own_base, take
from colmlm.lab.methods.fitting import ReadQuestion, fit
from colmlm.lab.methods.raw_documents import RawQuestion, draw

EXAMPLES = examples(
    "colmlm evaluate confidence --squad held-out.jsonl --out confidence.json",
    "colmlm evaluate confidence --squad held-out.jsonl --wrong 0.1 --out confidence.json --json",
)


def confidence(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts that the reader was not trained on."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Where to write the fitted model.")],
    number: Annotated[
        int | None,
        typer.Option("--documents", min=1, help="How many paragraphs. Default: all but one in twenty."),
    ] = None,
    unanswerable: Annotated[
        int, typer.Option("--unanswerable", min=1, help="How many questions of paragraphs that are left out.")
    ] = 300,
    wrong: Annotated[
        float,
        typer.Option("--wrong", min=0, max=1, help="The share of questions that may be answered wrongly."),
    ] = 0.05,
    alarms: Annotated[
        float,
        typer.Option("--alarms", min=0, max=1, help="The share of unanswerable ones that may be answered."),
    ] = 0.02,
    checkpoint: CheckpointPath = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs and questions.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit how probable it is that an answer is right, and the threshold."""
    texts = draw(squad, number, None, unanswerable, seed)
    with own_base(checkpoint) as runtime:
        take(runtime, list(marked(runtime, texts.documents)), keys=True)
        answers = runtime.answering(
            reader(reader_at(runtime.user, None), runtime.settings.home / "models", UNFITTED)
        )
        with progress("Reading") as advance:
            asked = [(one, one.answers) for one in texts.questions] + [
                (one, ()) for one in texts.unanswerable
            ]
            read = []
            for one, golds in asked:
                read.append(_read(answers, one, golds))
                advance(len(read), len(asked))
    fitted = fit(read, wrong, alarms)
    fitted.save(out)
    told: dict[str, Any] = {"questions": len(read), "search": fitted.search, "threshold": fitted.threshold}
    print_json({**told, "weights": fitted.weights}) if as_json else note(f"{out}: {told}")


def _read(answers: Answering, question: RawQuestion, golds: tuple[str, ...]) -> ReadQuestion:
    return ReadQuestion(question.text, golds, tuple(answers.places(question.text)))
