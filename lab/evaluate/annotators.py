"""`colmlm-lab evaluate annotators`: measures the models that mark facts and ask about them."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.annotators import QuestionGeneratorPath, SpanAnnotatorPath, questions_at, spans_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import print_json, print_table, progress, say
from colmlm.cli.training.tuning import Dense, Squad, read_dense, split_squad

if TYPE_CHECKING:
    from colmlm.model.evaluate.annotators import AnnotatorMeasures


class AnnotatorPart(StrEnum):
    spans = "spans"
    questions = "questions"


ANNOTATORS_EXAMPLES = examples(
    "colmlm-lab evaluate annotators --squad dev.jsonl --documents 200 --json",
    "colmlm-lab evaluate annotators --squad dev.jsonl --span-annotator runs/spans --skip questions",
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
    print_json(measured) if wants_json() else _show_annotators(measured)


def _show_annotators(measured: AnnotatorMeasures) -> None:
    say(f"{measured.documents} documents, {measured.facts} marked facts, {measured.tokens} tokens")
    if measured.spans is not None:
        quality = measured.spans.quality
        rows = [
            [how, *asdict(part).values()]
            for how, part in (("exact", quality.exact), ("overlap", quality.overlap))
        ]
        print_table(["spans", "precision", "recall", "F1"], rows)
        columns = [
            "facts per 100 words",
            "threshold",
            "marked",
            "a fact",
            "verbatim",
            "overlap one",
            "in one",
        ]
        print_table(columns, [list(asdict(each).values()) for each in measured.spans.coverage])
        say(
            f"{quality.found} found, {quality.verbatim:.1%} verbatim, "
            f"{measured.spans.seconds_per_1000_tokens} s per 1,000 tokens"
        )
    if measured.questions is not None:
        asked = measured.questions
        rows = [[who, part.questions, part.recall_at_1, part.recall_at_10] for who, part in
                (("generated", asked.round_trip), ("of the documents", asked.of_the_documents)) if part]  # fmt: skip
        print_table(["questions", "asked", "recall@1", "recall@10"], rows)
        say(
            f"{asked.written} of {measured.facts} written, {asked.seconds_per_1000_tokens} s per 1,000 tokens"
        )
        say(f"reading a document once: {asked.prefix.gain} times as fast, {asked.prefix.same:.1%} the same")
