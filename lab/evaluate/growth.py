"""`colmlm evaluate growth`: measures answers, lookups and memory while a knowledge base fills with unrelated facts."""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition.model_encoder import describe
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.operating.sizing import readable
from colmlm.cli.options import AsJson, CheckpointPath, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb import interpreter
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.facts.records import FactRecord
from colmlm.lab.bench.durations import milliseconds
from colmlm.lab.evaluate.kept import open_log
from colmlm.lab.evaluate.options import AnsweredTogether, AnswerTokens
from colmlm.lab.methods.growing_base import REAL, CorpusPrefix, Floats, Growing, open_empty, place
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.evaluate.answers import AskedQuestion, score, summarise
from colmlm.model.evaluate.run_log import RunLog
from colmlm.model.lm.checkpoint import Checkpoint

EXAMPLES = examples(
    "colmlm evaluate growth --corpus demo --size 1000 --size 10000",
    "colmlm evaluate growth --corpus squad-dev --questions 200 --out growth.jsonl --json",
)
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def growth(
    corpus: Annotated[str, typer.Option("--corpus", help="Whose facts are asked for, by their questions.")],
    size: Annotated[
        list[int] | None,
        typer.Option("--size", min=2, help="How many facts in all. Repeatable. Default: 1,000 to a million."),
    ] = None,
    facts: Annotated[
        int | None,
        typer.Option(
            "--facts",
            min=1,
            help="At most so many of them are the corpus's. Default: half of the least size.",
        ),
    ] = None,
    questions: Annotated[
        int, typer.Option("--questions", min=1, help="How many are asked, drawn by the seed.")
    ] = 200,
    max_tokens: AnswerTokens = 16,
    batch: AnsweredTogether = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws questions, keys and values.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, help="Keep each size's figures here, and go on from there."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    json_wanted: AsJson = False,
) -> None:
    """Fill a knowledge base with unrelated facts, step by step, and measure accuracy, latency and size.

    It works on a knowledge base of its own, into which it copies facts and keys of the corpus, and does not touch
    yours. The added facts have synthetic keys with the mean and covariance of the real ones, and values of real facts.
    A million facts need some 8 GB of memory and 12 GB of disk.
    """
    sizes = sorted(set(size or SIZES))
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        loaded = runtime.checkpoint
        keyset = runtime.kb.keysets.active()
        if keyset.checkpoint_id != loaded.checkpoint_id:
            raise KeysetMismatch(loaded.checkpoint_id, keyset.checkpoint_id)
        most = facts or max(1, sizes[0] // 2)
        source = CorpusPrefix.of(runtime.kb, corpus, describe(loaded), most)
        asked = _draw(source, questions, seed)
        if not asked or most > sizes[0]:
            why = (
                "more facts than the least size"
                if asked
                else "no keyed fact with a question, or none so short"
            )
            raise typer.BadParameter(f"it has {why}.", param_hint="--facts" if asked else "--corpus")
        prompts = [f"Question: {question}\nAnswer:" for question, _ in asked]
        queries = runtime.encoder.encode_contexts(prompts)
    run = {
        "checkpoint_id": loaded.checkpoint_id,
        "corpus": corpus,
        "real_facts": len(source.keys),
        "questions": len(asked),
        "max_tokens": max_tokens,
        "threshold": keyset.threshold,
        "seed": seed,
    }
    log = open_log(out, run)
    left = [one for one in sizes if str(one) not in log.rows]
    if left:
        with tempfile.TemporaryDirectory(dir=directory, prefix="colmlm-growth-") as home:
            Path(home).chmod(0o755)  # the embedded server may run as another user
            asking = _Asking(
                checkpoint=loaded, source=source, asked=asked, queries=queries,
                max_tokens=max_tokens, batch=batch, seed=seed,
            )  # fmt: skip
            asking.measure(Path(home), left, log)
    rows = [log.rows[str(one)] for one in sizes]
    report = {"checkpoint": loaded.config.name, **run, "sizes": rows}
    print_json(report) if json_wanted else _show(report)


Place = tuple[str, int]


def _draw(source: CorpusPrefix, questions: int, seed: int) -> list[tuple[str, Place]]:
    """Draws questions of the facts that have a key, with the place of each one's fact."""
    found = [
        (span.question, (document.external_id, span.start))
        for document in source.documents
        for span in document.facts
        if span.question and (document.external_id, span.start) in source.keys
    ]
    random.Random(seed).shuffle(found)
    return found[:questions]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """The questions that are asked at every size, and the decoder's settings."""

    checkpoint: Checkpoint
    source: CorpusPrefix
    asked: Sequence[tuple[str, Place]]
    queries: Floats
    max_tokens: int
    batch: int
    seed: int

    def measure(self, home: Path, sizes: Sequence[int], log: RunLog) -> None:
        """Grows a base of its own to these sizes, and logs the figures of each."""
        with open_empty(home) as kb:
            growing = Growing.start(kb, self.source, self.queries, self.seed)
            by_place = {place(fact): fact for fact in kb.facts.every(REAL)}
            questions = [_question(n, text, by_place[at]) for n, (text, at) in enumerate(self.asked)]
            np.save(home / "query.npy", self.queries[0])
            decoder = Decoder(self.checkpoint, kb.lookups)
            for size in sizes:
                growing.grow(size, note)
                note(f"{size} facts: asking")
                log.add({str(size): self._row(growing, questions, self._made(decoder, questions), home)})

    def _made(self, decoder: Decoder, questions: Sequence[AskedQuestion]) -> list[DecodedOutput]:
        config = DecodeConfig(mode="forced", max_tokens=self.max_tokens, repetition_penalty=1.0)
        made: list[DecodedOutput] = []
        for start in range(0, len(questions), self.batch):
            made += decoder.generate([q.prompt for q in questions[start : start + self.batch]], config)
        return made

    def _row(
        self, growing: Growing, questions: Sequence[AskedQuestion], made: Sequence[DecodedOutput], home: Path
    ) -> dict[str, Any]:
        """Gives the figures of one size."""
        scored = [score(asked, output, str) for asked, output in zip(questions, made, strict=True)]
        summary = summarise(scored, [asked.question_id for asked in questions], self.seed)
        lookups, searches = growing.latencies()
        facts, added = growing.facts, growing.facts > growing.real
        return {
            "facts": facts,
            "unrelated": facts - growing.real,
            "index": growing.kb.searcher.current().candidates.fit.spec,
            "exact_match": asdict(summary.exact_match),
            "right_value": asdict(summary.right_value),
            "right_fact": asdict(summary.right_fact) if summary.right_fact else None,
            "nearest_unrelated": round(float(np.median(growing.nearest_Q)), 4) if added else None,
            "lookup_p50_ms": round(milliseconds(lookups, 50), 3),
            "lookup_p99_ms": round(milliseconds(lookups, 99), 3),
            "search_p50_ms": round(milliseconds(searches, 50), 3),
            "context_tokens_per_lookup": _context_tokens(self.checkpoint, made),
            "database_bytes_per_fact": round(growing.database_bytes() / facts, 1),
            "key_bytes_per_fact": round(growing.key_bytes() / facts, 1),
            "index_bytes_per_fact": round(growing.index_bytes() / facts, 1),
            "process_bytes_per_fact": round(_process_bytes(home, self.checkpoint.checkpoint_id) / facts, 1),
        }


def _question(number: int, text: str, fact: FactRecord) -> AskedQuestion:
    return AskedQuestion(str(number), text, (fact.value,), fact.fact_id)


def _context_tokens(checkpoint: Checkpoint, made: Sequence[DecodedOutput]) -> float | None:
    """Gives the mean number of tokens that a hit adds to the context: its value and the two tokens around it."""
    tokenizer = checkpoint.tokenizer
    values = [g.output[s.output_start : s.output_end] for g in made for s in g.splices if s.outcome == "hit"]
    if not values:
        return None
    space = " " if tokenizer.space_inside else ""
    return round(float(np.mean([2 + len(tokenizer.encode(f"{space}{value}")) for value in values])), 2)


def _process_bytes(home: Path, checkpoint_id: str) -> int:
    """Gives by how many bytes a process grows that opens the index and answers one lookup."""
    command = interpreter.command("-m", "colmlm.lab.bench.reopen", home, checkpoint_id, "--leave")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[1])


def _show(report: dict[str, Any]) -> None:
    rows = [
        (
            f"{row['facts']:,}",
            f"{row['exact_match']['share']:.3f}",
            f"{row['right_value']['share']:.3f}",
            f"{row['lookup_p50_ms']:.2f}",
            f"{row['lookup_p99_ms']:.2f}",
            row["context_tokens_per_lookup"],
            *(readable(row[f"{what}_bytes_per_fact"]) for what in ("database", "index", "process")),
        )
        for row in report["sizes"]
    ]
    print_table(
        ("facts", "exact match", "right value", "lookup p50 ms", "p99", "tokens a lookup", "database a fact",
         "index", "memory"),
        rows,
    )  # fmt: skip
    real = f"{report['real_facts']} real facts of {report['corpus']}, {report['questions']} questions"
    note(f"{report['checkpoint']}: {real}")
