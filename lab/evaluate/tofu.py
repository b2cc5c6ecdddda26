"""`colmlm-lab evaluate tofu`, `tofu-log`, `tofu-documents`, and `colmlm-lab unlearn`.

TOFU's metrics of checkpoints or logs, its documents, and the training until a checkpoint no longer says some answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.annotators import SpanAnnotatorPath, SpanThreshold
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples, wants_json
from colmlm.cli.output import count_of, counting, note, print_json, say
from colmlm.cli.training.tuning import show_steps
from colmlm.kb.corpus.format import to_record
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import open_log
from colmlm.lab.methods.methods import keyset_of
from colmlm.model.annotate.annotators import SpanAnnotator
from colmlm.model.annotate.checkpoint import RELEASED_SPANS
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.evaluate.answers import digest, without_values
from colmlm.model.evaluate.perplexity import Find, Masking, NearestValue, losses_of_answers
from colmlm.model.evaluate.run_log import EvaluationFileError, RunLog, bootstrap
from colmlm.model.evaluate.tofu import (
    Example,
    Scores,
    TofuLog,
    TofuQuestion,
    columns,
    documents,
    evaluation,
    forget_quality,
    read_rows,
    summary,
    table,
)
from colmlm.model.evaluate.tofu import examples as marked_examples
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.training.config import OBJECTIVES

TOFU_EXAMPLES = examples(
    "colmlm-lab evaluate tofu --data tofu --forget forget05 --out results/full",
    "colmlm-lab evaluate tofu --data tofu --forget forget05 --checkpoint runs/full --out results/forgotten "
    "--retain results/retain95 --json",
)
DOCUMENTS_EXAMPLES = examples("colmlm-lab evaluate tofu-documents tofu/full.jsonl --out full.jsonl")
KEPT = {
    "eval_log.json": "retain_perturbed",
    "eval_real_author_wo_options.json": "real_authors_perturbed",
    "eval_real_world_wo_options.json": "world_facts_perturbed",
}
FORGOTTEN = "eval_log_forget.json"
RESTATED = ("eval_log.json", FORGOTTEN)  # its wrong answers are compared with a paraphrase of the right one
BATCH = 16


def tofu_documents(
    rows: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A split of TOFU (JSONL).")
    ],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Where the documents go (JSONL).")],
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
) -> None:
    """Write each question and answer as a document, the facts of its answer marked, to train on and to ingest.

    A row has the same id in every split, so the rows of forget05 can be deleted from a knowledge base of full.
    """
    with Runtime.from_environment() as runtime:
        finder = _finder(runtime, span_annotator, span_threshold)
    read = _rows(rows, None)
    with counting("Marking", len(read)) as done:
        made = list({one.external_id: one for one in documents(read, finder, done)}.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(to_record(one), ensure_ascii=False) + "\n" for one in made))
    report = {"documents": len(made), "facts": sum(len(one.facts) for one in made), "out": str(out)}
    if wants_json():
        print_json(report)
    else:
        note(f"{report['documents']} documents with {report['facts']} facts in {out}.")


def tofu(
    data: Annotated[
        Path, typer.Option("--data", exists=True, file_okay=False, help="The folder of TOFU's files.")
    ],
    forget: Annotated[str, typer.Option("--forget", help="The set to forget: forget01, forget05, forget10.")],
    out: Annotated[
        Path,
        typer.Option("--out", file_okay=False, help="The logs go here; a stopped run goes on from there."),
    ],
    retain: Annotated[
        Path | None,
        typer.Option(
            "--retain",
            exists=True,
            file_okay=False,
            help="The --out of a model that never saw the forget set: gives the forget quality.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Of each table of what is kept at most so many, from the first."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Of a generated answer.")] = 200,
    threshold: Threshold = None,
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Measure forgetting as TOFU does, with lookups in the knowledge base where the checkpoint makes them.

    Writes a log for each reading of answer masking (spoken.json, and masked.json, which cannot fail; none.json of a
    model without lookups), and the same in the layout of open-unlearning. Forget quality is beside --retain, or by
    `colmlm-lab evaluate tofu-log`, which compares any two logs.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        answers = _Answers(runtime, threshold, max_tokens)
        finder = _finder(runtime, span_annotator, span_threshold) if answers.find else None
        files = {
            name: data / f"{split}.jsonl"
            for name, split in (KEPT | {FORGOTTEN: f"{forget}_perturbed"}).items()
        }
        read = {
            name: _table(file, None if name == FORGOTTEN else rows, restated=name in RESTATED)
            for name, file in files.items()
        }
        references = _references(retain, answers.maskings)
        run = answers.run | {
            "forget": forget,
            "rows": rows,
            "data_sha256": {name: digest(file) for name, file in files.items()},
            "span_annotator": finder and finder.config.digests,
            "span_threshold": finder and finder.threshold,
        }
        log = open_log(out / "rows.jsonl", run)
        for name, some in read.items():
            with counting(f"Marking {name}", sum(2 + len(row.wrong) for row in some)) as done:
                marked = marked_examples(some, finder, done)
            with counting(f"Asking {name}", len(marked)) as done:
                _ask(answers, name, marked, log, done)
    reports = {}
    for masking in answers.maskings:
        file = out / f"{masking}.json"
        sizes = {name: len(some) for name, some in read.items()}
        reports[str(masking)] = _write_log(file, _log(log, masking, sizes), references.get(masking))
    print_report({"checkpoint": answers.checkpoint.config.name, **run, **reports})


class _Answers:
    """The answers of a checkpoint, with the knowledge base's lookups if it makes any."""

    def __init__(self, runtime: Runtime, threshold: float | None, max_tokens: int) -> None:
        self.checkpoint: Checkpoint = runtime.checkpoint
        looks_up = self.checkpoint.tokenizer.markup.opens is not None
        self.maskings = [Masking.spoken, Masking.masked] if looks_up else [Masking.none]
        self.find: Find | None = None
        lookups = None
        if looks_up:
            keyset = keyset_of(runtime, None, self.checkpoint, "--checkpoint")
            lookups = runtime.kb.lookups.in_keyset(keyset.keyset_id)
            self.find = NearestValue(lookups, self.checkpoint.checkpoint_id, threshold)
        self.decoder = Decoder(self.checkpoint, lookups)
        self.together = 1 if self.checkpoint.lm.device.type == "cpu" else BATCH
        self.config = DecodeConfig(
            mode="auto" if looks_up else "off",
            max_tokens=max_tokens,
            repetition_penalty=1.0,
            threshold=threshold,
        )
        self.run: dict[str, Any] = {
            "checkpoint_id": self.checkpoint.checkpoint_id,
            "mode": self.config.mode,
            "max_tokens": max_tokens,
            "threshold": threshold,
            "seq": runtime.kb.log.head_seq() if looks_up else None,
        }

    def generate(self, asked: Sequence[Example]) -> list[DecodedOutput]:
        return self.decoder.generate([f"Question: {one.question}\nAnswer:" for one in asked], self.config)

    def rows(self, asked: Sequence[Example], generated: Sequence[DecodedOutput]) -> list[dict[str, Any]]:
        """Give the columns of each example by masking. Spliced text counts as the model's own only in `spoken`."""
        scored = losses_of_answers(
            self.checkpoint,
            [(one.question, [(a, m) for m in self.maskings for a in one.answers]) for one in asked],
            self.find,
        )
        return [
            self._row(one, output, iter(losses))
            for one, output, losses in zip(asked, generated, scored, strict=True)
        ]

    def _row(
        self, example: Example, generated: DecodedOutput, losses: Iterator[tuple[float, int]]
    ) -> dict[str, Any]:
        bare = without_values(generated.output, generated.splices)
        return {
            str(masking): columns(
                example,
                bare if masking is Masking.masked else generated.output,
                [next(losses) for _ in example.answers],
            )
            for masking in self.maskings
        }


def _ask(
    answers: _Answers, name: str, asked: Sequence[Example], log: RunLog, done: Callable[[int], None]
) -> None:
    """Ask the examples that the log lacks."""
    left = [(f"{name}/{i}", one) for i, one in enumerate(asked) if f"{name}/{i}" not in log.rows]
    done(len(asked) - len(left))
    for start in range(0, len(left), BATCH):
        some = left[start : start + BATCH]
        generated = answers.generate([one for _, one in some])
        for first in range(0, len(some), answers.together):
            names, examples = zip(*some[first : first + answers.together], strict=True)
            rows = answers.rows(examples, generated[first : first + answers.together])
            log.add(dict(zip(names, rows, strict=True)))
            done(len(rows))


def _log(log: RunLog, masking: Masking, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        name: table([log.rows[f"{name}/{i}"][str(masking)] for i in range(size)])
        for name, size in sizes.items()
    }


def _references(retain: Path | None, maskings: Sequence[Masking]) -> dict[Masking, Path]:
    """Read the logs of the reference, before anything is measured."""
    if retain is None:
        return {}
    found = {masking: retain / f"{masking}.json" for masking in maskings}
    for file in found.values():
        if not file.is_file():
            raise typer.BadParameter(
                f"there is no {file.name} in {retain}; name the --out of another `colmlm-lab evaluate tofu`.",
                param_hint="--retain",
            )
        try:
            TofuLog.read(file)
        except EvaluationFileError as error:
            raise typer.BadParameter(f"{error}.", param_hint="--retain") from error
    return found


def _write_log(file: Path, log: Mapping[str, Mapping[str, Any]], reference: Path | None) -> dict[str, Any]:
    """Write a log in both layouts, and give its report, compared with the reference's log."""
    file.write_text(json.dumps(log))
    written, retained = TofuLog.read(file), None
    report = report_of(written)
    if reference is not None:
        report |= compare_logs(written, TofuLog.read(reference))
        retained = json.loads(reference.read_text())
    metrics = evaluation(log, retained)
    folder = file.parent / "open-unlearning" / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "TOFU_EVAL.json").write_text(json.dumps(metrics, indent=4))
    (folder / "TOFU_SUMMARY.json").write_text(json.dumps(summary(metrics), indent=4))
    return report


def _finder(runtime: Runtime, path: Path | None, threshold: float | None) -> SpanAnnotator:
    return SpanAnnotator.load(path or RELEASED_SPANS, runtime.settings.home / "models", threshold=threshold)


def _table(file: Path, limit: int | None, *, restated: bool) -> list[TofuQuestion]:
    """Read the rows of a table to ask: each with wrong answers and, if `restated`, a paraphrase."""
    read = _rows(file, limit)
    for number, row in enumerate(read, start=1):
        if not row.wrong or (restated and row.paraphrased is None):
            missing = "paraphrased_answer" if row.wrong else "perturbed_answer"
            raise typer.BadParameter(
                f"line {number} of {file.name} has no {missing}; name a folder with TOFU's own files.",
                param_hint="--data",
            )
    return read


def _rows(file: Path, limit: int | None) -> list[TofuQuestion]:
    if not file.is_file():
        raise typer.BadParameter(
            f"{file} does not exist; name the folder of TOFU's .jsonl files.", param_hint="--data"
        )
    return _named_rows(file, "--data")[:limit]


def _named_rows(file: Path, hint: str) -> list[TofuQuestion]:
    try:
        return read_rows(file)
    except EvaluationFileError as error:
        raise typer.BadParameter(f"{error}.", param_hint=hint) from error


# `colmlm-lab evaluate tofu-log`: computes TOFU's metrics from a log of per-example losses and scores.

LOG_EXAMPLES = examples(
    "colmlm-lab evaluate tofu-log full.json.gz",
    "colmlm-lab evaluate tofu-log unlearned.json --retain retain90.json --json",
)

LogFile = Annotated[
    Path, typer.Argument(metavar="LOG", exists=True, dir_okay=False, help="JSON, gzipped or not.")
]
RetainFile = Annotated[
    Path | None,
    typer.Option(
        "--retain",
        metavar="LOG",
        exists=True,
        dir_okay=False,
        help="The log of a model that never saw what was to be forgotten: gives the forget quality.",
    ),
]


def tofu_log(
    log: LogFile,
    retain: RetainFile = None,
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, max=100_000, help="Of the bootstrap intervals.")
    ] = 1000,
) -> None:
    """Compute model utility, its nine numbers, the scores of the forget set and, with --retain, the forget quality.

    LOG has the layout of TOFU's published evaluation logs. Intervals are 95 %, by bootstrap over examples.
    """
    found = _read_log(log, "LOG")
    report = report_of(found, resamples)
    if retain is not None:
        report |= compare_logs(found, _read_log(retain, "--retain"))
    print_report(report)


def report_of(log: TofuLog, resamples: int = 1000) -> dict[str, Any]:
    """Give the metrics of a log, with the interval of each score."""
    intervals = bootstrap(lambda draw: _numbers(log.resample_tables(draw)), resamples=resamples)
    return {**_numbers(log), **_counts(log), "intervals": intervals}


def _read_log(file: Path, hint: str) -> TofuLog:
    try:
        return TofuLog.read(file)
    except EvaluationFileError as error:
        raise typer.BadParameter(f"{error}.", param_hint=hint) from error


def _log_tables(log: TofuLog) -> dict[str, Scores]:
    return log.kept_scores | {"forget": Scores.of_forgotten_table(log.forget)}


def _numbers(log: TofuLog) -> dict[str, float]:
    named = {
        f"{table}_{name}": value
        for table, s in _log_tables(log).items()
        for name, value in (
            ("prob", s.probability),
            ("rougeL_recall", s.rouge),
            ("truth_ratio", s.truth_ratio),
        )
    }
    return named | {"model_utility": log.utility}


def _counts(log: TofuLog) -> dict[str, int]:
    return {f"{table}_n": s.examples for table, s in _log_tables(log).items()}


def compare_logs(log: TofuLog, retained: TofuLog) -> dict[str, float]:
    """Give the forget quality of a log against that of a model that never saw the forget set."""
    if len(log.forget) != len(retained.forget):
        note(
            f"warning: the forget sets differ, {len(log.forget)} and {len(retained.forget)} examples: "
            "take logs of the same one"
        )
    statistic, quality = forget_quality(log.forget, retained.forget)
    return {"forget_quality": quality, "forget_ks": statistic}


# Unlearning by gradients, which a deletion is compared with.

UNLEARN_EXAMPLES = examples(
    "colmlm-lab unlearn --config npo --init runs/full --forget forget05.jsonl --retain retain95.jsonl --out runs/paper",
    "colmlm-lab unlearn --init runs/full --forget forget05.jsonl --retain retain95.jsonl --out runs/npo",
    "colmlm-lab unlearn --init runs/full --forget forget05.jsonl --retain retain95.jsonl --objective grad-ascent "
    "--out runs/graddiff",
)


def unlearn(
    init: Annotated[Path, typer.Option("--init", exists=True, file_okay=False, help="The checkpoint.")],
    forget: Annotated[
        Path,
        typer.Option("--forget", exists=True, dir_okay=False, help="What is to be forgotten: rows of TOFU."),
    ],
    retain: Annotated[
        Path, typer.Option("--retain", exists=True, dir_okay=False, help="What is to be kept: rows of TOFU.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The run's directory; a run already there is gone on with.")
    ],
    config: Annotated[
        str | None,
        typer.Option("--config", help="Settings that options change: a TOML file, or npo, the paper's."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help=f"One of {', '.join(OBJECTIVES)}. Default: npo.")
    ] = None,
    beta: Annotated[
        float | None, typer.Option("--beta", help="Of NPO: how soon it comes to rest. Default: 0.1.")
    ] = None,
    retain_weight: Annotated[
        float | None,
        typer.Option(
            "--retain-weight", help="Of the loss of what is kept. 0: it is not looked at. Default: 1."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Over what is to be forgotten. Default: 5.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="Answers to forget a step, and as many to keep. Default: 8.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak learning rate. Default: 1e-5.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seeds order and dropout. Default: 17.")] = None,
    keep_epochs: Annotated[
        bool,
        typer.Option("--keep-epochs", help="Also keep what each epoch leaves, as epoch-1, ... in --out."),
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Default: that of --out.")] = None,
) -> None:
    """Train a checkpoint until it no longer says some answers: NPO, gradient ascent or gradient difference.

    It uses no knowledge base, from which a fact is deleted in one commit and without training. A checkpoint that is an
    adapter is trained further as an adapter, another one with all its weights.
    """
    from colmlm.model.training.task import process_rank
    from colmlm.model.training.unlearning import Unlearning, continue_config, unlearning_config

    given = {
        "objective": objective, "beta": beta, "retain_weight": retain_weight, "epochs": epochs, "batch": batch,
        "learning_rate": learning_rate, "seed": seed,
    }  # fmt: skip
    try:
        wanted = unlearning_config(config, {name: v for name, v in given.items() if v is not None})
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    forgotten, kept = (
        [(row.question, row.answer) for row in _named_rows(file, hint)]
        for file, hint in ((forget, "--forget"), (retain, "--retain"))
    )
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
    task = Unlearning(
        wanted, continue_config(init), forgotten, kept, out, cache, name or out.name, keep_epochs=keep_epochs
    )
    with show_steps() as show:
        for metrics in task.run():
            if process_rank().is_first:
                show(metrics, wanted.epochs * task.steps_per_epoch)
    if not process_rank().is_first:
        return
    done = task.progress
    report = {
        "checkpoint": str(out),
        "steps": done.step,
        "tokens": done.tokens,
        "seconds": round(done.seconds),
    }
    print_json(report) if wants_json() else say(
        f"{out}: {count_of(done.step, 'step')}, {done.seconds / 60:.0f} minutes"
    )
