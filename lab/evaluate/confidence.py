"""`colmlm-lab evaluate confidence`: fits how sure answers are, on texts that the reader did not learn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import text

from colmlm.cli.composition.answering import reader
from colmlm.cli.composition.readers import reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import note, print_json, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.calibration import RIGHT, normalise_answer, outcome
from colmlm.kb.answers.confidence import UNFITTED
from colmlm.kb.answers.windows import said_passages
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.methods.answer_shares import RawTexts, draw
from colmlm.lab.methods.fitting import Fit, ReadQuestion, Said, curves, fit
from colmlm.lab.methods.own_base import NO_KEYS, filled, own_base
from colmlm.lab.methods.wild_texts import WildTexts, read_wild

EXAMPLES = examples(
    "colmlm-lab evaluate confidence --squad held-out.jsonl --squad tales.jsonl --wild policies/ --out confidence.json",
    "colmlm-lab evaluate confidence --wild policies/ --wrong 0.1 --out confidence.json --bases bases --json",
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
    _tell(out, read, fitted)


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


def _tell(out: Path, read: Sequence[ReadQuestion], fitted: Fit) -> None:
    confidence = fitted.confidence
    assert confidence.passage is not None
    told: dict[str, Any] = {
        "questions": len(read),
        "threshold": confidence.threshold,
        "passage_threshold": confidence.passage.threshold,
        "kinds": curves(read, fitted),
    }
    if wants_json():
        print_json({**told, "weights": confidence.weights, "passage_weights": confidence.passage.weights})
        return
    for kind, of in told.pop("kinds").items():
        note(f"{kind}: {of['at']}")
    note(f"{out}: {told}")


# Asks questions with known answers, and keeps all that is read for each, to fit how sure answers are.

_SENTENCES = text("SELECT d.external_id, s.id FROM sentence s JOIN document d ON d.id = s.document_id")


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question of a kind of text, its answers (none: nothing there), their document, and whether all are wanted."""

    text: str
    kind: str
    answers: tuple[str, ...]
    document: str | None
    wants_all: bool = False


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """What a question's answers make of a span's words, and of the passage that a sentence stands in."""

    known: GoldQuestion
    passages: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)

    def span(self, said: str) -> Said:
        if not self.known.answers:
            return "wrong"
        found = outcome(said, self.known.answers)
        if self.known.wants_all:
            return "right" if self._says_all(said) else "near" if found in (*RIGHT, "near") else "wrong"
        return "right" if found in RIGHT else "near" if found == "near" else "wrong"

    def passage(self, sentence_id: int) -> Said:
        document, said = self.passages[sentence_id]
        if not self.known.answers or document != self.known.document:
            return "wrong"
        return "right" if self._says_all(said) else "wrong"

    def _says_all(self, said: str) -> bool:
        words = f" {normalise_answer(said)} "
        there = [f" {normalise_answer(answer)} " in words for answer in self.known.answers]
        return all(there) if self.known.wants_all else any(there)


def of_squad(texts: RawTexts, kind: str) -> list[GoldQuestion]:
    return [GoldQuestion(one.text, kind, one.answers, one.document) for one in texts.questions]


def of_wild(texts: WildTexts) -> list[GoldQuestion]:
    return [
        GoldQuestion(one.question, one.kind, tuple(one.answers), one.file, one.all) for one in texts.questions
    ]


def read_each(
    answering: Answering, questions: Sequence[GoldQuestion], advance: Callable[[int, int | None], None]
) -> Iterator[ReadQuestion]:
    """Ask each question as the base is, and each that something answers once more as if its document were not there.

    Where another text that was read for it then says an answer, it is not known to have none, and is left out.
    """
    sentences = defaultdict[str, list[int]](list)
    with answering.kb.sessions() as session:
        for document, sentence_id in session.execute(_SENTENCES):
            sentences[document].append(sentence_id)
    for number, one in enumerate(questions, start=1):
        yield _read_question(answering, one, ())
        if one.document is not None:
            without = GoldQuestion(one.text, one.kind, (), None)
            read = _read_question(answering, without, sentences[one.document])
            if not _says_one(read, one.answers):
                yield read
        advance(number, len(questions))


def _says_one(read: ReadQuestion, answers: Sequence[str]) -> bool:
    """Tell whether a window that was read says one of these answers."""
    said = [f" {normalise_answer(place.window.text)} " for place in read.reading.windows]
    return any(f" {normalise_answer(answer)} " in text for answer in answers for text in said)


def _read_question(answering: Answering, known: GoldQuestion, gone: Sequence[int]) -> ReadQuestion:
    reading = answering.read_for(known.text, gone)
    passages: dict[int, tuple[str | None, str]] = {}
    with answering.kb.sessions() as session:
        for place in reading.windows:
            said = said_passages(session, place.window.sentence_id, accepted_only=None)
            source = place.window.source
            passages[place.window.sentence_id] = (
                None if source is None else source.external_id,
                said[0].text if said else place.window.text,
            )
    judged = JudgedBy(known, passages)
    return ReadQuestion(known.text, known.kind, bool(known.answers), reading, judged.span, judged.passage)
