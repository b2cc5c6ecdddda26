"""`colmlm evaluate confidence`: fits how sure answers are, on texts that the reader did not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.answering import reader
from colmlm.cli.composition.readers import reader_at
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.confidence import UNFITTED
from colmlm.lab.methods.fitting import ReadQuestion, fit
from colmlm.lab.methods.own_base import marked, own_base, take
from colmlm.lab.methods.raw_documents import RawQuestion, draw

EXAMPLES = examples(
    "colmlm evaluate confidence --squad held-out.jsonl --out confidence.json",
    "colmlm evaluate confidence --squad held-out.jsonl --beside train.jsonl --wrong 0.1 --out confidence.json --json",
)


def confidence(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts that the reader was not trained on."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Where to write the fitted model.")],
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside", exists=True, dir_okay=False, help="Other texts, that the base is to hold as well."
        ),
    ] = None,
    number: Annotated[
        int, typer.Option("--documents", min=1, help="How many paragraphs of --beside, drawn by the seed.")
    ] = 1000,
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
    """Fit how probable it is that an answer is right, and the threshold.

    The base holds one half of the paragraphs first, and is asked the questions of both; then the other half as well.
    """
    texts = draw(squad, None, None, 0, seed)
    own = {one.external_id for one in texts.documents}
    others = (
        [one for one in draw(beside, None, None, 0, seed).documents if one.external_id not in own]
        if beside
        else []
    )
    first, second = texts.documents[::2], texts.documents[1::2]
    there = {one.external_id for one in first}
    with own_base(checkpoint) as runtime:
        answers = runtime.answering(
            reader(reader_at(runtime.user, None), runtime.settings.home / "models", UNFITTED)
        )
        take(runtime, list(marked(runtime, [*first, *others[:number]])))
        read = _read(
            answers, [(one, one.answers if one.document in there else ()) for one in texts.questions]
        )
        take(runtime, list(marked(runtime, second)))
        read += _read(answers, [(one, one.answers) for one in texts.questions if one.document not in there])
    fitted = fit(read, wrong, alarms)
    fitted.save(out)
    told: dict[str, Any] = {"questions": len(read), "search": fitted.search, "threshold": fitted.threshold}
    print_json({**told, "weights": fitted.weights}) if as_json else note(f"{out}: {told}")


def _read(answers: Answering, asked: Sequence[tuple[RawQuestion, tuple[str, ...]]]) -> list[ReadQuestion]:
    read = []
    with progress("Reading") as advance:
        for question, golds in asked:
            read.append(ReadQuestion(question.text, golds, tuple(answers.places(question.text))))
            advance(len(read), len(asked))
    return read
