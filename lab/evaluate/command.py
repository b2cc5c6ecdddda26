"""`colmlm-lab evaluate`: measures a checkpoint and its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.annotators import QuestionGeneratorPath, SpanAnnotatorPath, questions_at, spans_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, no_nan
from colmlm.cli.output import counting, progress
from colmlm.cli.training.tuning import Dense, Squad, read_dense, split_squad
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import read_squad
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate import choices as evaluate_choices
from colmlm.lab.evaluate import confidence as evaluate_confidence
from colmlm.lab.evaluate import deletion as evaluate_deletion
from colmlm.lab.evaluate import documents as evaluate_documents
from colmlm.lab.evaluate import growth as evaluate_growth
from colmlm.lab.evaluate import judged as evaluate_judged
from colmlm.lab.evaluate import perplexity as evaluate_perplexity
from colmlm.lab.evaluate import qa as evaluate_qa
from colmlm.lab.evaluate import recall as evaluate_recall
from colmlm.lab.evaluate import survivors as evaluate_survivors
from colmlm.lab.evaluate import tofu as evaluate_tofu
from colmlm.lab.evaluate import updates as evaluate_updates
from colmlm.lab.paper import rows as paper_rows
from colmlm.model.evaluate.lookups import BIASES, BiasCurve, BiasPoint, measure_biases, num_steps
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.training.steps import hold_out

app = typer.Typer(
    help="Measure a checkpoint and its baselines: recall of keys, answers to questions, when it looks up.",
    epilog=examples(
        "colmlm-lab evaluate recall --corpus demo",
        "colmlm-lab evaluate qa --corpus squad-dev --squad dev.jsonl",
    ),
)
app.command("recall", epilog=evaluate_recall.RECALL_EXAMPLES)(evaluate_recall.recall_command)
app.command("qa", epilog=evaluate_qa.QA_EXAMPLES)(evaluate_qa.qa)
app.command("judge-answers", epilog=evaluate_judged.EXAMPLES)(evaluate_judged.judge_answers)
app.command("biographies", epilog=evaluate_judged.WRITE_EXAMPLES)(evaluate_judged.biographies)
app.command("judge-biographies", epilog=evaluate_judged.JUDGE_EXAMPLES)(evaluate_judged.judge_biographies)
app.command("choices", epilog=evaluate_choices.EXAMPLES)(evaluate_choices.choices)
app.command("deletion", epilog=evaluate_deletion.EXAMPLES)(evaluate_deletion.deletion)
app.command("survivors", epilog=evaluate_survivors.EXAMPLES)(evaluate_survivors.survivors)
app.command("documents", epilog=evaluate_documents.EXAMPLES)(evaluate_documents.documents)
app.command("confidence", epilog=evaluate_confidence.EXAMPLES)(evaluate_confidence.confidence)
app.command("growth", epilog=evaluate_growth.EXAMPLES)(evaluate_growth.growth)
app.command("updates", epilog=evaluate_updates.EXAMPLES)(evaluate_updates.updates)
app.command("perplexity", epilog=evaluate_perplexity.EXAMPLES)(evaluate_perplexity.perplexity)
app.command("paper", epilog=paper_rows.EXAMPLES)(paper_rows.paper)
app.command("tofu", epilog=evaluate_tofu.TOFU_EXAMPLES)(evaluate_tofu.tofu)
app.command("tofu-documents", epilog=evaluate_tofu.DOCUMENTS_EXAMPLES)(evaluate_tofu.tofu_documents)
app.command("tofu-log", epilog=evaluate_tofu.LOG_EXAMPLES)(evaluate_tofu.tofu_log)


@app.callback()
def evaluate() -> None:
    """Measure a checkpoint and its baselines."""


class AnnotatorPart(StrEnum):
    spans = "spans"
    questions = "questions"


@app.command(
    epilog=examples(
        "colmlm-lab evaluate annotators --squad dev.jsonl --documents 200 --json",
        "colmlm-lab evaluate annotators --squad dev.jsonl --span-annotator runs/spans --skip questions",
    )
)
def annotators(
    squad: Squad = None,
    annotated: Dense = None,
    documents: Annotated[
        int | None, typer.Option("--documents", min=1, help="Draw this many documents. Default: all.")
    ] = None,
    span_annotator: SpanAnnotatorPath = None,
    question_generator: QuestionGeneratorPath = None,
    skip: Annotated[
        AnnotatorPart | None, typer.Option("--skip", help="Do not measure this annotator.")
    ] = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Measure the annotators against marked documents: agreement of spans, round trip of questions, speed.

    A question passes the round trip where its hidden state at <FACT-q> finds its own fact's key among those of all
    facts of the documents.
    """
    from colmlm.model.evaluate.annotators import measure_annotators

    chosen = split_squad(squad or [], 0)[0] + read_dense(annotated or [], demo=False)
    if documents is not None and documents < len(chosen):
        chosen = hold_out(chosen, documents)[1]
    chosen = [document for document in chosen if document.facts]
    if not chosen:
        raise typer.BadParameter("no documents with marked facts; name a file with --squad or --annotated.")
    with Runtime.from_environment(checkpoint=checkpoint) as runtime, progress("documents") as update:
        measured = measure_annotators(
            chosen,
            runtime.checkpoint,
            runtime.settings.home / "models",
            span_annotator=None if skip is AnnotatorPart.spans else spans_at(runtime, span_annotator),
            question_generator=None
            if skip is AnnotatorPart.questions
            else questions_at(runtime, question_generator),
            on_documents=update,
        )
    print_report(measured)


# Timing: whether the model looks up where it should, and how a bias changes that.


@app.command(
    epilog=examples(
        "colmlm-lab evaluate timing --squad train.jsonl --json",
        "colmlm-lab evaluate timing --squad train.jsonl --dev dev.jsonl --questions 200 --save",
    )
)
def timing(
    squad: Annotated[
        Path, typer.Option("--squad", exists=True, dir_okay=False, help="The SQuAD file that was trained on.")
    ],
    held_out: Annotated[
        int, typer.Option("--hold-out", min=1, help="How many of its paragraphs training left out.")
    ] = 300,
    dev: Annotated[
        Path | None,
        typer.Option("--dev", exists=True, dir_okay=False, help="Another file, to report the choice on."),
    ] = None,
    documents: Annotated[
        int, typer.Option("--documents", min=1, help="At most so many paragraphs of each.")
    ] = 100,
    questions: Annotated[int, typer.Option("--questions", min=1, help="At most so many questions.")] = 100,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", min=-1, max=1, callback=no_nan, help="Least score of a hit. Default: balanced."
        ),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the chosen bias with the checkpoint; decoding then uses it.")
    ] = False,
    checkpoint: CheckpointPath = None,
) -> None:
    """Measure lookups at the places a text marks, lookups at others, and answers, by bias on the opening token.

    The bias is chosen on paragraphs that training left out; with --dev the choice is then measured on others.
    """
    held = hold_out(_read_paragraphs(squad, held_out), held_out)[1][:documents]
    others = [] if dev is None else _read_paragraphs(dev, 1)[:documents]
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        loaded = runtime.checkpoint
    _require_states(loaded)
    curve = _measure_curve("held-out text", loaded, held, questions, BIASES, threshold)
    chosen = curve.choose()
    report: dict[str, Any] = {
        "checkpoint": loaded.config.name,
        "fact_bias": chosen.bias,
        "held_out": asdict(curve),
        "dev": None,
        "saved": save,
    }
    if others:
        least = sorted({0.0, chosen.bias})
        report["dev"] = asdict(_measure_curve("dev", loaded, others, questions, least, curve.threshold))
    if save:
        _keep_bias(loaded, chosen, curve)
    print_report(report)


def _read_paragraphs(path: Path, least: int) -> list[AnnotatedDocument]:
    documents = [parsed.document for parsed in read_squad(path) if parsed.document is not None]
    if len(documents) < least:
        raise typer.BadParameter(
            f"{path} has {len(documents)} paragraphs, fewer than {least}; name a longer file."
        )
    return documents


def _require_states(checkpoint: Checkpoint) -> None:
    markup = checkpoint.tokenizer.markup
    if markup.opens is None or markup.asks is not None:
        raise typer.BadParameter(
            f"a model of method {markup.method} does not ask by its states; name a checkpoint of method co-lmlm."
        )


def _measure_curve(
    name: str,
    checkpoint: Checkpoint,
    documents: Sequence[AnnotatedDocument],
    questions: int,
    biases: Sequence[float],
    threshold: float | None,
) -> BiasCurve:
    with counting(name, num_steps(documents, questions, biases)) as done:
        try:
            return measure_biases(
                checkpoint, documents, questions=questions, biases=biases, threshold=threshold, on_done=done
            )
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from error


def _keep_bias(checkpoint: Checkpoint, chosen: BiasPoint, curve: BiasCurve) -> None:
    """Store the bias in the checkpoint for decoding. No key depends on it, so the checkpoint's id stays."""
    if checkpoint.path is None:
        raise typer.BadParameter(
            "this model has no directory to keep it in; name one with --checkpoint.", param_hint="--save"
        )
    kept = {"fact_bias": chosen.bias, "questions": curve.questions, "exact_match": chosen.exact_match}
    replace(checkpoint.config, decoding=kept).save(checkpoint.path)
