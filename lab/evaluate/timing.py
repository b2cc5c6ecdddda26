"""`colmlm-lab evaluate timing`: measures whether the model looks up where it should, and how a bias changes that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, no_nan
from colmlm.cli.output import counting
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import read_squad
from colmlm.lab.bench.machine import print_report
from colmlm.model.evaluate.lookups import BIASES, Curve, Point, measure_biases, num_steps
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.training.steps import hold_out

EXAMPLES = examples(
    "colmlm-lab evaluate timing --squad train.jsonl --json",
    "colmlm-lab evaluate timing --squad train.jsonl --dev dev.jsonl --questions 200 --save",
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
    held = hold_out(_read(squad, held_out), held_out)[1][:documents]
    others = [] if dev is None else _read(dev, 1)[:documents]
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        loaded = runtime.checkpoint
    _require_states(loaded)
    curve = _measure("held-out text", loaded, held, questions, BIASES, threshold)
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
        report["dev"] = asdict(_measure("dev", loaded, others, questions, least, curve.threshold))
    if save:
        _save(loaded, chosen, curve)
    print_report(report)


def _read(path: Path, least: int) -> list[AnnotatedDocument]:
    documents = [parsed.document for parsed in read_squad(path) if parsed.document is not None]
    if len(documents) < least:
        raise typer.BadParameter(f"{path} has {len(documents)} paragraphs, fewer than {least}.")
    return documents


def _require_states(checkpoint: Checkpoint) -> None:
    markup = checkpoint.tokenizer.markup
    if markup.opens is None or markup.asks is not None:
        raise typer.BadParameter(f"a model of method {markup.method} does not ask by its states.")


def _measure(
    name: str,
    checkpoint: Checkpoint,
    documents: Sequence[AnnotatedDocument],
    questions: int,
    biases: Sequence[float],
    threshold: float | None,
) -> Curve:
    with counting(name, num_steps(documents, questions, biases)) as done:
        try:
            return measure_biases(
                checkpoint, documents, questions=questions, biases=biases, threshold=threshold, on_done=done
            )
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from error


def _save(checkpoint: Checkpoint, chosen: Point, curve: Curve) -> None:
    """Store the bias in the checkpoint for decoding. No key depends on it, so the checkpoint's id stays."""
    if checkpoint.path is None:
        raise typer.BadParameter("a model without a directory keeps nothing.", param_hint="--save")
    kept = {"fact_bias": chosen.bias, "questions": curve.questions, "exact_match": chosen.exact_match}
    replace(checkpoint.config, decoding=kept).save(checkpoint.path)
