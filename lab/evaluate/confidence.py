"""`colmlm evaluate confidence`: fits how sure answers are, on texts that the reader did not learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.answering import reader
from colmlm.cli.composition.readers import reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.confidence import UNFITTED
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.methods.fitting import Fit, ReadQuestion, curves, fit
from colmlm.lab.methods.own_base import NO_KEYS, filled, own_base
from colmlm.lab.methods.raw_documents import draw
from colmlm.lab.methods.read_questions import GoldQuestion, of_squad, of_wild, read_each
from colmlm.lab.methods.wild_texts import read_wild

EXAMPLES = examples(
    "colmlm evaluate confidence --squad held-out.jsonl --squad tales.jsonl --wild policies/ --out confidence.json",
    "colmlm evaluate confidence --wild policies/ --wrong 0.1 --out confidence.json --bases bases --json",
)


def confidence(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Where to write the fitted model.")],
    squad: Annotated[
        list[Path] | None,
        typer.Option(
            "--squad",
            exists=True,
            dir_okay=False,
            help="Texts that the reader was not trained on, a kind each. Repeatable.",
        ),
    ] = None,
    wild: Annotated[
        list[Path] | None,
        typer.Option(
            "--wild", exists=True, file_okay=False, help="A folder of files and questions. Repeatable."
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            exists=True,
            dir_okay=False,
            help="Other texts, that the bases of --squad are to hold.",
        ),
    ] = None,
    number: Annotated[
        int, typer.Option("--documents", min=1, help="How many paragraphs of --beside, drawn by the seed.")
    ] = 1000,
    wrong: Annotated[
        float,
        typer.Option("--wrong", min=0, max=1, help="The share of questions that may be answered wrongly."),
    ] = 0.06,
    alarms: Annotated[
        float,
        typer.Option("--alarms", min=0, max=1, help="The share of unanswerable ones that may be answered."),
    ] = 0.04,
    keys: Annotated[
        str, typer.Option("--keys", help="context, question, both with a comma between them, or none.")
    ] = "context",
    bases: Annotated[
        Path | None,
        typer.Option(
            "--bases", file_okay=False, help="Keep the knowledge bases here, and take them from here."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs and questions.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit how probable it is that an answer is right, and the thresholds of spans and of passages.

    Each kind of text counts as much as another, and the thresholds are those at which the worst kind keeps the rates.
    Each question is asked of a base of its kind, and again as if its document were not there.
    """
    if not squad and not wild:
        raise typer.BadParameter("name texts to fit to, here or as --wild.", param_hint="--squad")
    read: list[ReadQuestion] = []
    for path in squad or ():
        texts = draw(path, None, None, 0, seed)
        own = {one.external_id for one in texts.documents}
        others = (
            [one for one in draw(beside, None, None, 0, seed).documents if one.external_id not in own]
            if beside
            else []
        )
        with _answering(checkpoint, bases, path.stem, [*texts.documents, *others[:number]], keys) as answers:
            read += _read_questions(answers, of_squad(texts, path.stem))
    for folder in wild or ():
        found = read_wild(folder)
        with _answering(checkpoint, bases, folder.name, found.documents, keys) as answers:
            read += _read_questions(answers, of_wild(found))
    fitted = fit(read, wrong, alarms)
    fitted.confidence.save(out)
    _tell(out, read, fitted, as_json=as_json)


@contextmanager
def _answering(
    checkpoint: Path | None,
    bases: Path | None,
    name: str,
    documents: Sequence[AnnotatedDocument],
    keys: str,
) -> Iterator[Answering]:
    """Give answers from a base of these documents, by a reader whose confidence is not fitted."""
    with own_base(checkpoint, bases / name if bases else None) as runtime:
        filled(runtime, documents, None, keys)
        yield runtime.answering(unfitted(runtime), keys=keys != NO_KEYS)


def unfitted(runtime: Runtime) -> Any:
    """Give the reader of the settings without what was fitted to it."""
    return reader(reader_at(runtime.user, None), runtime.settings.home / "models", UNFITTED)


def _read_questions(answers: Answering, asked: Sequence[GoldQuestion]) -> list[ReadQuestion]:
    with progress("Reading") as advance:
        return list(read_each(answers, asked, advance))


def _tell(out: Path, read: Sequence[ReadQuestion], fitted: Fit, *, as_json: bool) -> None:
    confidence = fitted.confidence
    assert confidence.passage is not None
    told: dict[str, Any] = {
        "questions": len(read),
        "threshold": confidence.threshold,
        "passage_threshold": confidence.passage.threshold,
        "kinds": curves(read, fitted),
    }
    if as_json:
        print_json({**told, "weights": confidence.weights, "passage_weights": confidence.passage.weights})
        return
    for kind, of in told.pop("kinds").items():
        note(f"{kind}: {of['at']}")
    note(f"{out}: {told}")
