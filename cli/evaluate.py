"""`colmlm evaluate`: measure a checkpoint and its baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
import typer

from cli import evaluate_timing
from cli.options import AsJson, CheckpointPath, examples
from cli.output import note, print_json, print_table, progress
from cli.runtime import Runtime
from kb.corpus import AnnotatedDocument
from kb.records import FactRecord
from model.evaluate.recall import Encodes, Recall, decoder_queries, document_keys, in_batches, recall

app = typer.Typer(
    help="Measure a checkpoint: recall of its keys.", epilog=examples("colmlm evaluate recall --corpus demo")
)

PAGE = 1000


app.command("timing", epilog=evaluate_timing.EXAMPLES)(evaluate_timing.timing)


@app.callback()
def evaluate() -> None:
    """Measure a checkpoint: recall of its keys."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and the row of the key it asks for."""

    questions: list[str]
    target_Q: np.ndarray
    values: list[str]


@app.command(
    "recall",
    epilog=examples(
        "colmlm evaluate recall --corpus demo --json",
        "colmlm evaluate recall --corpus squad-dev --no-baselines --decoder-queries",
    ),
)
def recall_command(
    corpus: Annotated[str, typer.Option("--corpus", help="The corpus whose facts are asked for.")],
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines", help="Also all-MiniLM-L6-v2 and the untrained base model."
        ),
    ] = True,
    with_decoder_queries: Annotated[
        bool, typer.Option("--decoder-queries", help="Also ask as the decoder does, at <FACT>.")
    ] = False,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Recall of question -> fact over all facts of a corpus; keys what has no key yet.

    Only context keys count: a fact's key is read from the text before it, the question is never stored.
    The baselines' keys are made in memory and not stored.
    """
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        report = _report(runtime, corpus, baselines, with_decoder_queries)
    if as_json:
        print_json(report)
    else:
        _print(report)


def _report(runtime: Runtime, corpus: str, baselines: bool, with_decoder_queries: bool) -> dict[str, Any]:
    started = monotonic()
    kb, encoder = runtime.kb, runtime.encoder
    with progress(f"keys of {corpus}") as update:
        keyset = kb.rekey(encoder, corpus=corpus, on_facts=update)
    fact_ids, keys_KD = kb.keys(keyset.keyset_id, corpus=corpus)
    facts = {fact.fact_id: fact for fact in _facts(runtime, corpus)}
    asked = _asked([facts[int(fact_id)] for fact_id in fact_ids])
    with _counting("questions", len(asked.questions)) as done:
        queries_QD = in_batches(encoder.encode_questions, asked.questions, done)
    own = recall(queries_QD, asked.target_Q, keys_KD, asked.values)
    report = {
        "corpus": corpus,
        "checkpoint": encoder.checkpoint.name,
        "keyset_id": keyset.keyset_id,
        **asdict(own),
    }
    if with_decoder_queries:
        with _counting("decoder queries", len(asked.questions)) as done:
            queries_QD = decoder_queries(encoder, asked.questions, done)
        report["decoder_queries"] = asdict(recall(queries_QD, asked.target_Q, keys_KD, asked.values))
    report["seconds"] = round(monotonic() - started, 1)
    if baselines:
        documents = list(kb.export(corpus))
        for name, load in _baselines(runtime.settings.home / "models").items():
            report[name] = _baseline(name, load(), documents)
    return report


def _facts(runtime: Runtime, corpus: str) -> Iterator[FactRecord]:
    after = 0
    while page := runtime.kb.facts(corpus=corpus, after=after, limit=PAGE):
        yield from page
        after = page[-1].fact_id


def _asked(facts: Sequence[FactRecord]) -> Asked:
    rows = [row for row, fact in enumerate(facts) if fact.question]
    questions = [facts[row].question or "" for row in rows]
    return Asked(questions, np.array(rows, dtype=np.int64), [fact.value for fact in facts])


def _baselines(cache: Path) -> dict[str, Callable[[], Encodes]]:
    from model.checkpoint import base_checkpoint
    from model.encoder import KeyEncoder
    from model.evaluate.minilm import SentenceEncoder
    from model.training.config import TrainConfig

    return {
        "minilm": SentenceEncoder,
        "untrained": lambda: KeyEncoder(base_checkpoint(TrainConfig().init, cache)),
    }


def _baseline(name: str, encoder: Encodes, documents: Sequence[AnnotatedDocument]) -> dict[str, Any]:
    started = monotonic()
    spans = [span for document in documents for span in document.facts]
    rows = [row for row, span in enumerate(spans) if span.question]
    questions = [spans[row].question or "" for row in rows]
    with _counting(f"{name}: keys", len(spans)) as done:
        keys_KD = document_keys(encoder, documents, done)
    with _counting(f"{name}: questions", len(questions)) as done:
        queries_QD = in_batches(encoder.encode_questions, questions, done)
    measured = recall(queries_QD, np.array(rows, dtype=np.int64), keys_KD, [span.value for span in spans])
    return {**asdict(measured), "seconds": round(monotonic() - started, 1)}


@contextmanager
def _counting(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many more are done."""
    finished = 0
    with progress(description) as update:
        update(0, total)

        def done(more: int) -> None:
            nonlocal finished
            finished += more
            update(finished, total)

        yield done


def _print(report: dict[str, Any]) -> None:
    rows = {report["checkpoint"]: report} | {
        name: part for name, part in report.items() if isinstance(part, dict)
    }
    columns = list(Recall.__dataclass_fields__)
    print_table(["keys of", *columns], [[name, *(row[c] for c in columns)] for name, row in rows.items()])
    note(f"corpus {report['corpus']}: {report['questions']} questions over {report['facts']} facts")
