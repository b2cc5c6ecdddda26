"""`colmlm-lab evaluate confidence`: fits how sure answers are, on texts that the reader did not learn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from sqlalchemy import text

from colmlm.cli.composition.readers import reader, reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import note, print_json, progress
from colmlm.kb.answers.answering import Answering, QuestionReading
from colmlm.kb.answers.calibration import RIGHT, outcome_of_answer
from colmlm.kb.answers.places import best_windows, order_places, weigh_passage, weigh_span
from colmlm.kb.answers.reading import NAMES, PASSAGE_NAMES, UNFITTED, Confidence, FittedModel
from colmlm.kb.answers.windows import said_passages
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.lookup.options import EVERY_FACT
from colmlm.kb.texts.asked import OF_SEVERAL_WORDS, form_of
from colmlm.lab.methods.answer_shares import RawTexts, WildTexts, draw, read_wild, says
from colmlm.lab.methods.own_base import NO_KEYS, fill_own_base, own_base

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
        fill_own_base(runtime, documents, None, keys)
        yield runtime.answering(unfitted_reader(runtime), keys=keys != NO_KEYS)


def unfitted_reader(runtime: Runtime) -> Any:
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
        "kinds": risk_curves(read, fitted),
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
    """Record what a question's answers make of a span's words, and of the passage that a sentence stands in."""

    known: GoldQuestion
    passages: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)

    def span(self, said: str) -> Said:
        if not self.known.answers:
            return "wrong"
        found = outcome_of_answer(said, self.known.answers)
        if self.known.wants_all:
            return "right" if self._says_all(said) else "near" if found in (*RIGHT, "near") else "wrong"
        return "right" if found in RIGHT else "near" if found == "near" else "wrong"

    def passage(self, sentence_id: int) -> Said:
        document, said = self.passages[sentence_id]
        if not self.known.answers or document != self.known.document:
            return "wrong"
        return "right" if self._says_all(said) else "wrong"

    def _says_all(self, said: str) -> bool:
        there = says(said, self.known.answers)
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
    return any(any(says(place.window.text, answers)) for place in read.reading.windows)


def _read_question(answering: Answering, known: GoldQuestion, gone: Sequence[int]) -> ReadQuestion:
    reading = answering.read_question(known.text, gone)
    passages: dict[int, tuple[str | None, str]] = {}
    with answering.kb.sessions() as session:
        for place in reading.windows:
            said = said_passages(session, place.window.sentence_id, fact_filter=EVERY_FACT)
            source = place.window.source
            passages[place.window.sentence_id] = (
                None if source is None else source.external_id,
                said[0].text if said else place.window.text,
            )
    judged = JudgedBy(known, passages)
    return ReadQuestion(known.text, known.kind, bool(known.answers), reading, judged.span, judged.passage)


# The fit: logistic models of what the search and the reader say of answers, one for spans and one for passages.
#
# Each kind of text counts as much as another, and the thresholds are chosen so that the worst kind keeps the rates.

SEARCH_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
RIDGE = 1.0
STEPS = 50
FOLDS = 5
LEVELS = np.linspace(0, 1, 101)
FOR_WORDS = (
    0.8  # of a right answer is a passage worth to whoever asked for a few words, which are marked in it
)

Floats = NDArray[np.float64]
Said = Literal["right", "wrong", "near"]


@dataclass(frozen=True, slots=True)
class ReadQuestion:
    """A question of a kind of text with what was read for it.

    `span` and `passage` judge the words of a place, and the passage of its sentence; nothing that is said to a question
    without an answer (`is_answerable` false) is right.
    """

    text: str
    kind: str
    is_answerable: bool
    reading: QuestionReading
    span: Callable[[str], Said]
    passage: Callable[[int], Said]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted confidence, and for each question its scores by models that were fitted without it, and its outcomes."""

    confidence: Confidence
    span_scores: Floats
    passage_scores: Floats
    spans: tuple[Said | None, ...]
    passages: tuple[Said | None, ...]


def fit(read: Sequence[ReadQuestion], most_wrong: float, most_alarms: float) -> Fit:
    """Fit both models and their thresholds.

    The search's weight is the one with the most right answers. The thresholds are those with the most right answers, as
    a mean of the kinds, at which of each kind no more than `most_wrong` of the answerable questions are answered
    wrongly, and `most_alarms` of the others at all; scores are those of models that were fitted without the question.
    """
    by_kind = _weights(read)
    search = max(SEARCH_WEIGHTS, key=lambda weight: (by_kind * _right(_spans(read, weight))).sum())
    of_passages = max(SEARCH_WEIGHTS, key=lambda weight: (by_kind * _right(_passages(read, weight))).sum())
    spans, passages = _spans(read, search), _passages(read, of_passages)
    span_rows = [
        None if said is None else weigh_span(one.text, order_places(one.reading.places, search))
        for one, said in zip(read, spans, strict=True)
    ]
    passage_rows = [
        None
        if said is None
        else weigh_passage(one.text, best_windows(one.reading.every, of_passages), one.reading.every)
        for one, said in zip(read, passages, strict=True)
    ]
    span, span_scores = _fit_model(NAMES, span_rows, _right(spans), by_kind, search)
    passage, passage_scores = _fit_model(PASSAGE_NAMES, passage_rows, _right(passages), by_kind, of_passages)
    span_level, passage_level = _thresholds(
        read, spans, passages, span_scores, passage_scores, most_wrong, most_alarms
    )
    confidence = Confidence(**_parts(span, span_level), passage=FittedModel(**_parts(passage, passage_level)))
    return Fit(confidence, span_scores, passage_scores, tuple(spans), tuple(passages))


def outcomes(read: Sequence[ReadQuestion], fitted: Fit, span_level: float, passage_level: float) -> list[str]:
    """Give what each question gets at the thresholds of spans and of passages: "right", "near", "wrong" or "silent"."""
    found: list[str] = []
    for number, one in enumerate(read):
        span, passage = fitted.spans[number], fitted.passages[number]
        is_span = span is not None and fitted.span_scores[number] >= span_level
        is_passage = passage is not None and fitted.passage_scores[number] >= passage_level
        several = form_of(one.text) in OF_SEVERAL_WORDS
        said = passage if is_passage and (several or not is_span) else span if is_span else None
        found.append("silent" if said is None else said)
    return found


def _weights(read: Sequence[ReadQuestion]) -> Floats:
    """Weigh the questions so that each kind counts as much as another."""
    kinds = [one.kind for one in read]
    return np.array([len(read) / len(set(kinds)) / kinds.count(kind) for kind in kinds])


def _spans(read: Sequence[ReadQuestion], search: float) -> list[Said | None]:
    return [
        one.span(order_places(one.reading.places, search)[0].text) if one.reading.places else None
        for one in read
    ]


def _passages(read: Sequence[ReadQuestion], search: float) -> list[Said | None]:
    return [
        one.passage(best_windows(one.reading.every, search)[0].window.sentence_id)
        if one.reading.windows
        else None
        for one in read
    ]


def _right(said: Sequence[Said | None]) -> Floats:
    return np.array([one == "right" for one in said], dtype=np.float64)


def _fit_model(
    names: Sequence[str], rows: Sequence[object | None], right_N: Floats, weights_N: Floats, search: float
) -> tuple[FittedModel, Floats]:
    """Fit a model to the rows that are there; give it with the scores by folds, 0 where there is no row."""
    there_N = np.array([row is not None for row in rows])
    values_NF = np.array(
        [[getattr(row, name) for name in names] for row in rows if row is not None], dtype=np.float64
    )
    means_F, scales_F = values_NF.mean(axis=0), np.maximum(values_NF.std(axis=0), 1e-6)
    rows_NF = np.concatenate([(values_NF - means_F) / scales_F, np.ones((len(values_NF), 1))], axis=1)
    right_N, weights_N = right_N[there_N], weights_N[there_N]
    fold_N = np.arange(len(rows_NF)) % FOLDS
    found_N = np.zeros(len(rows_NF))
    for fold in range(FOLDS):
        learnt = fold_N != fold
        weights_F = _logistic(rows_NF[learnt], right_N[learnt], weights_N[learnt])
        found_N[~learnt] = _probability(rows_NF[~learnt], weights_F)
    weights_F = _logistic(rows_NF, right_N, weights_N)
    model = FittedModel(
        search=search,
        bias=float(weights_F[-1]),
        weights=dict(zip(names, weights_F.tolist(), strict=False)),
        means=dict(zip(names, means_F.tolist(), strict=True)),
        scales=dict(zip(names, scales_F.tolist(), strict=True)),
        threshold=0.5,
    )
    scores_N = np.zeros(len(rows))
    scores_N[there_N] = found_N
    return model, scores_N


def _parts(model: FittedModel, threshold: float) -> dict[str, Any]:
    names = ("search", "bias", "weights", "means", "scales")
    return {name: getattr(model, name) for name in names} | {"threshold": threshold}


def _logistic(rows_NF: Floats, right_N: Floats, weights_N: Floats) -> Floats:
    """Fit by Newton's method, with a ridge on all weights but the bias, which is the last."""
    weights_F = np.zeros(rows_NF.shape[1])
    ridge_F = np.full(len(weights_F), RIDGE)
    ridge_F[-1] = 1e-6
    for _ in range(STEPS):
        found_N = _probability(rows_NF, weights_F)
        slope_F = rows_NF.T @ (weights_N * (found_N - right_N)) + ridge_F * weights_F
        bend_FF = (rows_NF * (weights_N * found_N * (1 - found_N))[:, None]).T @ rows_NF + np.diag(ridge_F)
        step_F = np.linalg.solve(bend_FF, slope_F)
        weights_F = weights_F - step_F
        if np.abs(step_F).max() < 1e-8:
            break
    return weights_F


def _probability(rows_NF: Floats, weights_F: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(rows_NF @ weights_F, -60, 60)))
    return found


def _thresholds(
    read: Sequence[ReadQuestion],
    spans: Sequence[Said | None],
    passages: Sequence[Said | None],
    span_scores_N: Floats,
    passage_scores_N: Floats,
    most_wrong: float,
    most_alarms: float,
) -> tuple[float, float]:
    """Choose both thresholds, so that each kind of text keeps the rates.

    A passage is worth less than the words where a few words were asked for; else passages would take all of the rates.
    """
    several_N = np.array([form_of(one.text) in OF_SEVERAL_WORDS for one in read])
    there_N = np.array([one.is_answerable for one in read])
    kinds_N = np.array([one.kind for one in read])
    code = {"right": 2, "near": 1, "wrong": 0, None: 0}
    span_N, passage_N = (np.array([code[one] for one in said]) for said in (spans, passages))
    best, chosen = -1.0, (1.0, 1.0)
    for span_level in LEVELS:
        is_span_N = span_scores_N >= span_level
        for passage_level in LEVELS:
            is_passage_N = passage_scores_N >= passage_level
            takes_passage_N = is_passage_N & (several_N | ~is_span_N)
            said_N = is_span_N | is_passage_N
            worth_N = np.where(takes_passage_N, passage_N, span_N)
            grain_N = np.where(takes_passage_N & ~several_N, FOR_WORDS, 1.0)
            rights = []
            for kind in np.unique(kinds_N):
                asked_N, absent_N = (kinds_N == kind) & there_N, (kinds_N == kind) & ~there_N
                wrong = (said_N & (worth_N == 0) & asked_N).sum() / max(1, asked_N.sum())
                alarms = (said_N & absent_N).sum() / max(1, absent_N.sum())
                if wrong > most_wrong or alarms > most_alarms:
                    break
                is_right_N = said_N & (worth_N == 2) & asked_N
                rights.append((is_right_N * grain_N).sum() / max(1, asked_N.sum()))
            else:
                if np.mean(rights) > best:
                    best, chosen = (
                        float(np.mean(rights)),
                        (round(float(span_level), 2), round(float(passage_level), 2)),
                    )
    return chosen


def risk_curves(read: Sequence[ReadQuestion], fitted: Fit) -> dict[str, dict[str, object]]:
    """Give, for each kind of text, the shares at the fitted thresholds, and a curve of them at 13 shifted ones.

    A shift adds -3 to 3 to the logit of both thresholds. `right`, `near`, `wrong` and `silent` are shares of the
    answerable questions, and `risk` that of wrong answers among theirs. `alarms` is the share of the unanswerable
    questions that get an answer.
    """
    assert fitted.confidence.passage is not None
    levels = fitted.confidence.threshold, fitted.confidence.passage.threshold
    shifts = np.linspace(-3, 3, 13)
    found: dict[str, dict[str, object]] = {}
    for kind in sorted({one.kind for one in read}):
        chosen = [number for number, one in enumerate(read) if one.kind == kind]
        found[kind] = {"at": _shares(read, outcomes(read, fitted, *levels), chosen)}
        found[kind]["curve"] = [
            _shares(read, outcomes(read, fitted, *(_shift_level(level, shift) for level in levels)), chosen)
            for shift in shifts.tolist()
        ]
    return found


def _shift_level(level: float, shift: float) -> float:
    logit = np.log(max(level, 1e-6) / max(1 - level, 1e-6)) + shift
    return float(1 / (1 + np.exp(-logit)))


def _shares(read: Sequence[ReadQuestion], said: Sequence[str], chosen: Sequence[int]) -> dict[str, float]:
    there = [said[number] for number in chosen if read[number].is_answerable]
    absent = [said[number] for number in chosen if not read[number].is_answerable]
    given = [one for one in there if one != "silent"]
    return {
        **{
            name: round(there.count(name) / max(1, len(there)), 4)
            for name in ("right", "near", "wrong", "silent")
        },
        "risk": round(given.count("wrong") / max(1, len(given)), 4),
        "alarms": round(sum(one != "silent" for one in absent) / max(1, len(absent)), 4),
    }
