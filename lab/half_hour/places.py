"""Where the steps read and write: the store that the parcels made, and the runs in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, read_annotated, to_record
from colmlm.kb.corpus.squad import read_squad
from colmlm.model.training import presets
from colmlm.model.training.config import Architecture, TrainConfig
from colmlm.model.training.presets import SCRATCH_CONTEXT

SITE, DATA, RELEASED, MODELS = "site", "data", "released", "models"
SQUAD, MARKED, DEV, HELD = "squad.jsonl", "marked.jsonl", "dev.jsonl", "held.jsonl"
ADAPTER, STANDARD, GENERATOR = "co-lmlm-135m", "standard-135m", "question-generator-135m"


@dataclass(frozen=True, slots=True)
class Place:
    """The store on the machine that trains, and how much the steps do there."""

    store: Path
    size: str

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.size]

    @property
    def cache(self) -> Path:
        """Where converted base models are."""
        return self.store / MODELS

    @property
    def squad(self) -> Path:
        """The file of questions that people asked."""
        return self.store / DATA / SQUAD

    def before(self, name: str) -> Path:
        """Gives a checkpoint or annotator that was there before, and came with the parcels."""
        return self.store / RELEASED / name

    def run(self, name: str) -> Path:
        """Gives the directory of a run; those of a smoke test or a rehearsal are apart from the others."""
        return self.store / "runs" / self.size / name

    def shards(self, method: str) -> list[Path]:
        """Lists the folders of tokens that were made for a method."""
        return sorted(self.run("questions").glob(f"shards-{method}-*"))

    def texts(self, name: str, most: int | None) -> list[AnnotatedDocument]:
        """Reads the first documents of one of the annotated files."""
        return annotated(self.store / DATA / name)[:most]


# Marked texts: dense marks joined with what people asked, and read from and written to annotated files.


def annotated(path: Path) -> list[AnnotatedDocument]:
    """Reads the documents of an annotated file."""
    return [parsed.document for parsed in read_annotated(path) if parsed.document is not None]


def asked(path: Path) -> list[AnnotatedDocument]:
    """Reads the paragraphs of a SQuAD file, each once, with the values that were asked for as their facts."""
    documents = [parsed.document for parsed in read_squad(path) if parsed.document is not None]
    return list({document.external_id: document for document in documents}.values())


def with_questions(
    marked: Iterable[AnnotatedDocument], questioned: Sequence[AnnotatedDocument]
) -> Iterator[AnnotatedDocument]:
    """Yields the marked documents, with people's questions in those whose text was asked about.

    A value that was asked for stands in place of the marks that it touches.
    """
    of_text = {document.text: document.facts for document in questioned}
    for document in marked:
        facts = of_text.get(document.text, ())
        free = (mark for mark in document.facts if not any(_touch(mark, fact) for fact in facts))
        yield replace(document, facts=tuple(sorted([*facts, *free], key=lambda span: span.start)))


def written(documents: Iterable[AnnotatedDocument], path: Path) -> None:
    """Writes an annotated file."""
    with path.open("w") as out:
        out.writelines(json.dumps(to_record(document)) + "\n" for document in documents)


def _touch(one: FactSpan, other: FactSpan) -> bool:
    return one.start < other.end and other.start < one.end


# How much each step does: on the accelerator, in its smoke test, and in a rehearsal on a CPU.


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of the steps. What is named `minutes` bounds the training or writing of a step, without its loading.

    Questions are written by `writers` processes, which share the accelerator; each takes up to `asked` documents and
    `cache_tokens` tokens at once. `documents` of texts are taken, `measured` of those that recall is measured on,
    `held` of those for perplexity, whose lookups are among the facts of `known` documents.
    """

    reader_rounds: int
    reader_steps: int | None
    reader_minutes: float
    generator_steps: int | None
    generator_minutes: float
    writers: int
    asked: int | None
    cache_tokens: int
    questions_minutes: float
    batch: int
    micro: int
    steps: int
    train_minutes: float
    rank: int
    documents: int | None
    measured: int | None
    held: int
    known: int
    scratch: Architecture
    scratch_batch: int
    scratch_steps: int
    scratch_minutes: float


FULL = Sizes(
    reader_rounds=8,
    reader_steps=None,
    reader_minutes=1.5,
    generator_steps=None,
    generator_minutes=1.0,
    writers=12,
    asked=None,
    cache_tokens=65_536,
    questions_minutes=5.0,
    batch=512,
    micro=64,
    steps=100_000,
    train_minutes=8.0,
    rank=24,
    documents=None,
    measured=None,
    held=500,
    known=10_000,
    scratch=Architecture(layers=12, width=384, heads=6, kv_heads=6, ffn=1024, context=SCRATCH_CONTEXT),
    scratch_batch=64,
    scratch_steps=100_000,
    scratch_minutes=3.5,
)
SMOKE = replace(
    FULL,
    reader_rounds=1,
    reader_steps=10,
    generator_steps=10,
    asked=32,
    questions_minutes=0.5,
    steps=10,
    documents=4096,
    measured=64,
    held=4,
    known=64,
    scratch_steps=10,
)
TINY = replace(
    SMOKE,
    reader_steps=2,
    generator_steps=1,
    writers=1,
    asked=2,
    cache_tokens=4096,
    questions_minutes=10.0,
    batch=2,
    micro=1,
    steps=2,
    rank=2,
    documents=8,
    measured=2,
    held=1,
    known=2,
    scratch=Architecture(layers=2, width=64, heads=2, kv_heads=2, ffn=128, context=SCRATCH_CONTEXT),
    scratch_batch=4,
    scratch_steps=2,
)
SIZES = {"full": FULL, "smoke": SMOKE, "tiny": TINY}


# The runs by name, and the settings of those that train checkpoints.

READER, QUESTIONS, CO_LMLM, SMALL = "reader", "generator", "co-lmlm", "co-lmlm-small"
SCRATCH = ("scratch-co-lmlm", "scratch-standard")
SAVE_SECONDS = 120.0


def co_lmlm(sizes: Sizes) -> TrainConfig:
    """The run of all weights: thousands of pairs a step, all positions, many forms, half of the splices paraphrased."""
    return replace(
        presets.small(),
        preset="half-hour",
        adapt="full",
        steps=sizes.steps,
        max_seconds=sizes.train_minutes * 60,
        save_seconds=SAVE_SECONDS,
        warmup_steps=50 if sizes.steps > 50 else 1,
        learning_rate=3e-4,
        weight_decay=0.01,
        batch_documents=sizes.batch,
        block=min(4, sizes.batch),
        micro_documents=sizes.micro,
        qa_fraction=0.5,
        asking="many",
        paraphrase_fraction=0.5,
        ntp_fraction=1.0,
    )


def scratch(sizes: Sizes, preset: str) -> TrainConfig:
    """One of the two runs from random weights, on the tokens that `co_lmlm` reads."""
    like = co_lmlm(sizes)
    return replace(
        presets.preset(preset),
        architecture=sizes.scratch,
        steps=sizes.scratch_steps,
        max_seconds=sizes.scratch_minutes * 60,
        save_seconds=SAVE_SECONDS,
        warmup_steps=100 if sizes.scratch_steps > 100 else 0,
        cooldown_steps=None,
        batch_documents=sizes.scratch_batch,
        micro_documents=sizes.scratch_batch,
        learning_rate=1e-3,
        precision="auto",
        max_question_length=like.max_question_length,
        title_fraction=like.title_fraction,
        paraphrase_fraction=like.paraphrase_fraction,
    )
