"""`colmlm evaluate documents`: asks people's questions of raw texts, the whole way from the text to the answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition import annotators
from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, print_table, progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.store import database
from colmlm.lab.methods.raw_documents import OUTCOMES, RawAnswer, RawTexts, ask_all, coverage, draw, shares
from colmlm.lab.methods.reading_baseline import BM25Reading, Generating
from colmlm.model.evaluate.intervals import Draw, bootstrap, of_share

EXAMPLES = examples(
    "colmlm evaluate documents --squad dev.jsonl --documents 100",
    "colmlm evaluate documents --squad dev.jsonl --questions 1000 --no-threshold --json",
    "colmlm evaluate documents --squad dev.jsonl --documents 100 --no-keys --no-baselines",
)
CORPUS, ACTOR, REASON = "documents", "evaluate documents", "colmlm evaluate documents"
STEPS = 41


def documents(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ],
    number: Annotated[
        int | None,
        typer.Option("--documents", min=1, help="How many paragraphs, drawn by the seed. Default: all."),
    ] = None,
    questions: Annotated[
        int | None, typer.Option("--questions", min=1, help="How many of their questions. Default: all.")
    ] = None,
    unanswerable: Annotated[
        int, typer.Option("--unanswerable", min=0, help="How many questions of paragraphs that are left out.")
    ] = 200,
    no_threshold: Annotated[
        bool, typer.Option("--no-threshold", help="Count the best answer to every question, however unsure.")
    ] = False,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Find sentences by their words alone.")] = False,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Only the product, without baselines.")
    ] = False,
    generated: Annotated[
        int,
        typer.Option(
            "--generated", min=0, help="How many questions retrieval-augmented generation is asked."
        ),
    ] = 200,
    checkpoint: CheckpointPath = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs and questions.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="Write every answer here, as JSON Lines.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask people's questions of raw texts, and compare the answers with the gold ones.

    Facts are marked as `colmlm corpus add` does, and keyed, in a knowledge base of its own. Right is an answer that
    equals or holds a gold one; near, one that a gold one holds. Intervals are of 95 %.
    """
    texts = draw(squad, number, questions, unanswerable, seed)
    if not texts.questions:
        raise typer.BadParameter("it has no question with an answer.", param_hint="--squad")
    with own_base(checkpoint) as runtime:
        documents = list(marked(runtime, texts.documents))
        take(runtime, documents, keys=not no_keys)
        answers = runtime.answering(runtime.reader, keys=not no_keys)
        asked, absent = _ask(answers, texts)
        threshold = 0.0 if no_threshold else answers.reader.confidence.threshold
        report = _report(asked, absent, threshold, seed) | coverage(texts, documents)
        report["baselines"] = (
            {} if no_baselines else _baselines(runtime, answers, texts, asked, generated, no_threshold, seed)
        )
    if out is not None:
        _write(out, asked, absent)
    if as_json:
        print_json({name: _rounded(value) for name, value in report.items()})
        return
    _show(report)


@contextmanager
def own_base(checkpoint: Path | None) -> Iterator[Runtime]:
    """Gives a runtime with an empty base in a temporary home, which shares the models of the user's home."""
    with tempfile.TemporaryDirectory(prefix="colmlm-documents-") as directory:
        home = Path(directory)
        home.chmod(0o755)  # the embedded server may run as another user
        with Runtime.from_environment(checkpoint=checkpoint) as users:
            models = users.settings.home / "models"
        models.mkdir(parents=True, exist_ok=True)
        (home / "models").symlink_to(models)
        settings = replace(users.settings, home=home, database_url=None, actor=ACTOR)
        engine = database.connect(settings)
        database.migrate(engine)
        engine.dispose()
        with Runtime(settings, users.user) as runtime:
            yield runtime


def marked(runtime: Runtime, texts: Sequence[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """Marks facts as `colmlm corpus add` does."""
    annotator = annotators.light(runtime, None, None, asks=False)
    with progress("Marking facts") as advance:
        for done, reviewed in enumerate(annotator.annotate(texts), start=1):
            yield reviewed.document
            advance(done, len(texts))


def take(runtime: Runtime, texts: Sequence[AnnotatedDocument], *, keys: bool) -> None:
    """Takes annotated texts into the base, and with `keys` gives their facts keys."""
    runtime.kb.corpora.ingest(map(Parsed, texts), CORPUS, actor=ACTOR, reason=REASON)
    if keys:
        key_everything(runtime)


def _ask(answers: Answering, texts: RawTexts) -> tuple[list[RawAnswer], list[RawAnswer]]:
    answer = partial(answers.ask, threshold=0.0, nearest=0)
    with progress("Asking") as advance:
        asked = ask_all(texts.questions, answer, texts.documents, advance)
    with progress("Asking what is not there") as advance:
        absent = ask_all(texts.unanswerable, answer, texts.documents, advance)
    return asked, absent


def _report(
    asked: Sequence[RawAnswer], absent: Sequence[RawAnswer], threshold: float, seed: int
) -> dict[str, Any]:
    found = shares(asked, threshold)
    right_N = np.array([one.at(threshold) in ("exact", "holds") for one in asked], dtype=float)

    def measure(draw: Draw) -> dict[str, float]:
        return {"right": float(right_N[draw(len(right_N))].mean())}

    interval = of_share(found["right"], bootstrap(measure, seed=seed)["right"], len(asked))
    return {
        "questions": len(asked),
        "unanswerable": len(absent),
        "threshold": threshold,
        **{name: found[name] for name in ("exact", "right", *OUTCOMES[2:])},
        "right_ci": list(interval),
        "false_alarm": _answered(absent, threshold),
        "curve": _curve(asked, absent),
        "milliseconds": 1000 * float(np.median([one.seconds for one in asked])),
    }


def _answered(absent: Sequence[RawAnswer], threshold: float) -> float:
    return sum(one.at(threshold) != "abstained" for one in absent) / max(1, len(absent))


def _curve(asked: Sequence[RawAnswer], absent: Sequence[RawAnswer]) -> list[dict[str, float]]:
    """Gives right, wrong and false alarms at each threshold."""
    points = []
    for threshold in np.linspace(0, 1, STEPS).tolist():
        found = shares(asked, threshold)
        wrong = found["wrong"] + found["near"] + found["made_up"]
        points.append(
            {
                "threshold": threshold,
                "right": found["right"],
                "wrong": found["wrong"],
                "near": found["near"],
                "not_right": wrong,
                "false_alarm": _answered(absent, threshold),
            }
        )
    return points


def _baselines(
    runtime: Runtime,
    answers: Answering,
    texts: RawTexts,
    asked: Sequence[RawAnswer],
    generated: int,
    no_threshold: bool,
    seed: int,
) -> dict[str, Any]:
    """Measures others on the same questions. Those with scores get the threshold at which they say as much as we do."""
    said = sum(
        one.at(0.0 if no_threshold else answers.reader.confidence.threshold) != "abstained" for one in asked
    )
    found: dict[str, Any] = {}
    others: dict[str, Callable[[str], Any]] = {
        "reader": BM25Reading(answers.reader, texts.documents).ask,
        "paper": partial(answers.nearest_fact, threshold=-1.0),
    }
    for name, ask in others.items():
        if name == "paper" and answers.questions is None:
            continue
        with progress(f"Asking the baseline: {name}") as advance:
            there = ask_all(texts.questions, ask, texts.documents, advance)
            absent = ask_all(texts.unanswerable, ask, texts.documents, advance)
        scores = sorted((one.score for one in there), reverse=True)
        least = scores[min(said, len(scores)) - 1] if said else float("inf")
        found[name] = _report(there, absent, -1.0 if no_threshold else least, seed)
        del found[name]["curve"]
    if generated:
        rag = Generating(runtime, texts.documents)
        with progress("Asking the baseline: rag") as advance:
            there = ask_all(texts.questions[:generated], rag.ask, (), advance)
        found["rag"] = _report(there, [], 0.0, seed)
        del found["rag"]["curve"]
    return found


def _write(path: Path, asked: Sequence[RawAnswer], absent: Sequence[RawAnswer]) -> None:
    import json

    with path.open("w", encoding="utf-8") as target:
        for one in (*asked, *absent):
            row = {
                "question": one.question.text,
                "answers": one.question.answers if one in asked else [],
                "said": one.said,
                "score": round(one.score, 4),
                "outcome": one.outcome,
            }
            target.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return {name: _rounded(one) for name, one in value.items()} if isinstance(value, dict) else value


def _show(report: dict[str, Any]) -> None:
    names = ("exact", "right", "near", "wrong", "abstained", "made_up", "false_alarm")
    rows = [("colmlm", *(f"{report[name]:.3f}" for name in names))]
    rows += [(who, *(f"{of[name]:.3f}" for name in names)) for who, of in report["baselines"].items()]
    print_table(("", *(name.replace("_", " ") for name in names)), rows)
    low, high = report["right_ci"]
    note(
        f"{report['questions']} questions, {report['unanswerable']} without an answer; right {low:.3f} to {high:.3f}; "
        f"{report['facts_per_100_words']:.1f} facts in 100 words, which overlap {report['coverage']:.1%} of what is "
        f"asked for; {report['milliseconds']:.0f} ms an answer."
    )
