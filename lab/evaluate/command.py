"""`colmlm-lab evaluate`: measures a checkpoint and its baselines."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from colmlm.cli.composition.annotators import QuestionGeneratorPath, SpanAnnotatorPath, questions_at, spans_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples
from colmlm.cli.output import progress
from colmlm.cli.training.tuning import Dense, Squad, read_dense, split_squad
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
from colmlm.lab.evaluate import timing as evaluate_timing
from colmlm.lab.evaluate import tofu as evaluate_tofu
from colmlm.lab.evaluate import updates as evaluate_updates
from colmlm.lab.paper import rows as paper_rows

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
app.command("timing", epilog=evaluate_timing.EXAMPLES)(evaluate_timing.timing)
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
    from colmlm.model.training.steps import hold_out

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
