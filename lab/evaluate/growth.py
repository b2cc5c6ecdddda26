"""`colmlm-lab evaluate growth`: measures answers, lookups and memory while a knowledge base fills with other facts."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from sqlalchemy import select, text

from colmlm.cli.composition.encoders import describe
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples
from colmlm.cli.output import note
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import FactRow
from colmlm.lab.bench.machine import WorkDirectory, milliseconds, own_folder, print_report, settle
from colmlm.lab.evaluate.kept import AnsweredTogether, AnswerTokens, open_log
from colmlm.lab.methods.methods import generate_all
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.evaluate.answers import AskedQuestion, score, summarise
from colmlm.model.evaluate.run_log import RunLog
from colmlm.model.lm.checkpoint import Checkpoint

EXAMPLES = examples(
    "colmlm-lab evaluate growth --corpus demo --size 1000 --size 10000",
    "colmlm-lab evaluate growth --corpus squad-dev --questions 200 --out growth.jsonl --json",
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
    directory: WorkDirectory = None,
    checkpoint: CheckpointPath = None,
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
        most_facts = facts or max(1, sizes[0] // 2)
        source = CorpusPart.of(runtime.kb, corpus, describe(loaded), most_facts)
        asked = _draw(source, questions, seed)
        if not asked or most_facts > sizes[0]:
            if asked:
                cause = f"{most_facts} facts are more than the least size, {sizes[0]}; give fewer."
                raise typer.BadParameter(cause, param_hint="--facts")
            cause = f"{corpus} has no short question of a fact with a key; name another corpus."
            raise typer.BadParameter(cause, param_hint="--corpus")
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
        with own_folder(directory) as home:
            asking = _Asking(
                checkpoint=loaded, source=source, asked=asked, queries=queries,
                max_tokens=max_tokens, batch=batch, seed=seed,
            )  # fmt: skip
            asking.measure(home, left, log)
    rows = [log.rows[str(one)] for one in sizes]
    report = {"checkpoint": loaded.config.name, **run, "sizes": rows}
    print_report(report)


Place = tuple[str, int]


def _draw(source: CorpusPart, questions: int, seed: int) -> list[tuple[str, Place]]:
    """Draw questions of the facts that have a key, with the place of each one's fact."""
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
    source: CorpusPart
    asked: Sequence[tuple[str, Place]]
    queries: Floats
    max_tokens: int
    batch: int
    seed: int

    def measure(self, home: Path, sizes: Sequence[int], log: RunLog) -> None:
        """Grow a base of its own to these sizes, and log the figures of each."""
        with KnowledgeBase.open(Settings(home=home, actor=ACTOR)) as kb:
            growing = Growing.start(kb, self.source, self.queries, self.seed)
            by_place = {place(fact): fact for fact in kb.facts.every(REAL)}
            questions = [_question(n, text, by_place[at]) for n, (text, at) in enumerate(self.asked)]
            np.save(home / "query.npy", self.queries[0])
            decoder = Decoder(self.checkpoint, kb.lookups)
            config = DecodeConfig(mode="forced", max_tokens=self.max_tokens, repetition_penalty=1.0)
            prompts = [question.prompt for question in questions]
            for size in sizes:
                growing.grow(size, note)
                note(f"{size} facts: asking")
                made = generate_all(decoder, prompts, config, self.batch)
                log.add({str(size): self._row(growing, questions, made, home)})

    def _row(
        self, growing: Growing, questions: Sequence[AskedQuestion], made: Sequence[DecodedOutput], home: Path
    ) -> dict[str, Any]:
        """Give the figures of one size."""
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
    """Give the mean number of tokens that a hit adds to the context: its value and the two tokens around it."""
    tokenizer = checkpoint.tokenizer
    values = [g.output[s.output_start : s.output_end] for g in made for s in g.splices if s.outcome == "hit"]
    if not values:
        return None
    space = " " if tokenizer.space_inside else ""
    return round(float(np.mean([2 + len(tokenizer.encode(f"{space}{value}")) for value in values])), 2)


def _process_bytes(home: Path, checkpoint_id: str) -> int:
    """Give by how many bytes a process grows that opens the index and answers one lookup."""
    command = interpreter.command("-m", "colmlm.lab.bench.clients", "reopen", home, checkpoint_id, "--leave")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[1])


# Fills a temporary knowledge base with unrelated facts, and measures it as it grows.
#
# The first facts are those of a corpus, with their texts and keys. The added facts have values of these facts
# and synthetic keys, drawn from the normal distribution with the mean and covariance of the real keys, and
# scaled to length 1. They fill the space of the real keys, without its clusters; how near they come to the
# questions is measured too.

REAL, FILLER = "real", "filler"
ACTOR, REASON = "evaluate growth", "colmlm-lab evaluate growth"
KEYS_PER_CHUNK = 50_000  # keys made at a time
FACTS_PER_DOCUMENT = 20

Floats = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Documents of a corpus with so many facts at most, and a key of each fact in one keyset, by the fact's place."""

    checkpoint: CheckpointInfo
    threshold: float
    documents: list[AnnotatedDocument]
    keys: dict[tuple[str, int], Floats]

    @classmethod
    def of(cls, kb: KnowledgeBase, corpus: str, checkpoint: CheckpointInfo, most_facts: int) -> CorpusPart:
        """Read whole documents with at most `most_facts` facts in all. Facts without a key are left out."""
        keyset = kb.keysets.active()
        places = {fact.fact_id: place(fact) for fact in kb.facts.every(corpus)}
        ids, keys_ND = kb.keysets.keys(keyset.keyset_id, corpus=corpus)
        by_place = {places[i]: key for i, key in zip(ids.tolist(), keys_ND, strict=True) if i in places}
        documents: list[AnnotatedDocument] = []
        left = most_facts
        for one in kb.corpora.export(corpus):
            if one.facts and len(one.facts) <= left:
                documents.append(one)
                left -= len(one.facts)
        chosen = {(one.external_id, span.start) for one in documents for span in one.facts}
        return cls(
            checkpoint, keyset.threshold, documents, {p: k for p, k in by_place.items() if p in chosen}
        )


@dataclass(frozen=True, slots=True)
class Cloud:
    """Synthetic keys with the mean and covariance of given ones. Key i is the same however many are drawn."""

    mean_D: Floats
    axes_RD: Floats
    seed: int

    @classmethod
    def of(cls, keys_ND: Floats, seed: int) -> Cloud:
        mean_D = keys_ND.mean(axis=0)
        _, scales_R, axes_RD = np.linalg.svd(keys_ND - mean_D, full_matrices=False)
        spread_R1 = (scales_R / np.sqrt(len(keys_ND)))[:, None]
        return cls(mean_D, (spread_R1 * axes_RD).astype(np.float32), seed)

    def draw(self, start: int, end: int) -> Iterator[Floats]:
        """Yield the keys from number `start` up to `end`, in chunks."""
        for chunk in range(start // KEYS_PER_CHUNK, -(-end // KEYS_PER_CHUNK)):
            rng = np.random.default_rng([self.seed, chunk])
            first = chunk * KEYS_PER_CHUNK
            rows = rng.standard_normal((KEYS_PER_CHUNK, len(self.axes_RD)), np.float32)
            # The whole chunk is made and then cut, since the last bits of a product depend on its number of rows.
            keys = rows @ self.axes_RD + self.mean_D
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
            yield keys[max(0, start - first) : end - first]


@dataclass(slots=True)
class Growing:
    """The knowledge base that grows, in a directory of its own.

    `nearest` is the greatest cosine of each question with a synthetic key so far.
    """

    kb: KnowledgeBase
    source: CorpusPart
    values: Sequence[str]
    cloud: Cloud
    queries_QD: Floats
    keyset_id: int
    empty_bytes: int
    facts: int
    nearest_Q: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.nearest_Q = np.full(len(self.queries_QD), -1, np.float32)

    @classmethod
    def start(cls, kb: KnowledgeBase, source: CorpusPart, queries_QD: Floats, seed: int) -> Growing:
        """Ingest the real facts and store their keys."""
        empty = database_bytes(kb)
        keyset = kb.keysets.create(source.checkpoint)
        kb.corpora.ingest((Parsed(one) for one in source.documents), REAL, actor=ACTOR, reason=REASON)
        facts = list(kb.facts.every(REAL))
        keyed = [fact for fact in facts if place(fact) in source.keys]
        keys_ND = np.stack([source.keys[place(fact)] for fact in keyed])
        ids = np.array([fact.fact_id for fact in keyed], dtype=np.int64)
        kb.keysets.store_keys(keyset.keyset_id, ids, keys_ND, actor=ACTOR, reason=REASON)
        kb.keysets.finish(keyset.keyset_id)
        kb.keysets.set_threshold(keyset.keyset_id, source.threshold)
        values = [fact.value for fact in facts]
        cloud = Cloud.of(keys_ND, seed)
        return cls(kb, source, values, cloud, queries_QD, keyset.keyset_id, empty, len(facts))

    @property
    def real(self) -> int:
        return len(self.values)

    def grow(self, size: int, say: Say) -> None:
        """Add synthetic facts until there are `size`, and rebuilds the index for that size."""
        start, end = self.facts - self.real, size - self.real
        if end > start:
            say(f"{size} facts: ingesting")
            last = self._last_id()
            documents = (Parsed(one) for one in filler(self.values, start, end, self.cloud.seed))
            self.kb.corpora.ingest(documents, FILLER, actor=ACTOR, reason=REASON)
            ids = self._ids_after(last)
            say(f"{size} facts: storing keys")
            done = 0
            for keys in self.cloud.draw(start, end):
                chosen = ids[done : done + len(keys)]
                self.kb.keysets.store_keys(self.keyset_id, chosen, keys, actor=ACTOR, reason=REASON)
                self.nearest_Q = np.maximum(self.nearest_Q, (self.queries_QD @ keys.T).max(axis=1))
                done += len(keys)
            self.facts = size
        say(f"{size} facts: building the index")
        self.kb.lookups.rebuild()
        settle(self.kb)

    def _last_id(self) -> int:
        with self.kb.sessions() as session:
            return session.scalar(select(FactRow.id).order_by(FactRow.id.desc()).limit(1)) or 0

    def _ids_after(self, last: int) -> NDArray[np.int64]:
        with self.kb.sessions() as session:
            found = session.scalars(select(FactRow.id).where(FactRow.id > last).order_by(FactRow.id)).all()
        return np.array(found, dtype=np.int64)

    def database_bytes(self) -> int:
        """Give by how many bytes the database has grown."""
        return database_bytes(self.kb) - self.empty_bytes

    def key_bytes(self) -> int:
        """Give the bytes on disk of the database's table of the keyset's keys, with its indexes."""
        with self.kb.sessions() as session:
            name = {"name": f"fact_key_{self.keyset_id:d}"}
            return int(
                session.scalar(text("SELECT pg_total_relation_size(CAST(:name AS regclass))"), name) or 0
            )

    def index_bytes(self) -> int:
        """Give the bytes of the index's snapshot, which are nearly all that it holds in memory."""
        files = self.kb.settings.index_directory.rglob("*.faiss")
        return sum(file.stat().st_size for file in files)

    def latencies(self) -> tuple[list[float], list[float]]:
        """Give the seconds of each question's lookup, one after another, and of the search within it."""
        index = self.kb.searcher.current().candidates
        lookups, searches = [], []
        for query in self.queries_QD:
            begun = time.perf_counter()
            self.kb.lookups.find(query[None], checkpoint_id=self.source.checkpoint.checkpoint_id)
            looked_up = time.perf_counter()
            index.search(query[None], index.over_fetch(1))
            lookups.append(looked_up - begun)
            searches.append(time.perf_counter() - looked_up)
        return lookups, searches


def filler(values: Sequence[str], start: int, end: int, seed: int) -> Iterator[AnnotatedDocument]:
    """Yield documents of 20 facts each, numbers `start` up to `end`, with values drawn from those given."""
    rng = np.random.default_rng([seed, start, end])
    for number in count(start, FACTS_PER_DOCUMENT):
        if number >= end:
            return
        said, spans, length = [], [], 0
        for fact in range(number, min(number + FACTS_PER_DOCUMENT, end)):
            value = values[int(rng.integers(len(values)))]
            before = f"Of thing {fact} is said: "
            spans.append(FactSpan(length + len(before), length + len(before) + len(value), value))
            said.append(f"{before}{value}. ")
            length += len(said[-1])
        yield AnnotatedDocument(f"filler-{number:09d}", "".join(said), tuple(spans))


def database_bytes(kb: KnowledgeBase) -> int:
    with kb.sessions() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def place(fact: FactRecord) -> tuple[str, int]:
    return (fact.source.external_id, fact.source.start) if fact.source else ("", fact.fact_id)
