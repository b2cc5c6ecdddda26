"""A knowledge base of a measurement's own, which gets raw texts as `colmlm corpus add` would ingest_with_keys them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from colmlm.cli.composition import annotators
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import Confidence, JudgedReader, Passage, PassageReading
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated, to_record
from colmlm.kb.lookup.likeness import fill_sentence_vectors
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.store import database
from colmlm.model.lm.checkpoint import Checkpoint

CORPUS, ACTOR, REASON = "documents", "evaluate documents", "colmlm-lab evaluate documents"
NO_KEYS = "none"
MARKS, MADE_OF = "marks.jsonl", "made_of.json"


@contextmanager
def own_base(checkpoint: Path | None, directory: Path | None = None) -> Iterator[Runtime]:
    """Give a runtime with a base of its own, which shares the models of the user's home.

    The base is in `directory` and stays there; without one it is in a temporary directory, and empty.
    """
    kept = nullcontext(directory) if directory else tempfile.TemporaryDirectory(prefix="colmlm-documents-")
    with kept as path:
        home = Path(path).absolute()
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o755)  # the embedded server may run as another user
        with Runtime.from_environment(checkpoint=checkpoint) as users:
            models = users.settings.home / "models"
        models.mkdir(parents=True, exist_ok=True)
        if not (home / "models").exists():
            (home / "models").symlink_to(models.absolute())
        settings = replace(users.settings, home=home, database_url=None, actor=ACTOR)
        engine = database.connect_database(settings)
        database.migrate_database(engine)
        engine.dispose()
        with Runtime(settings, users.user) as runtime:
            yield runtime


def fill_own_base(
    runtime: Runtime, texts: Sequence[AnnotatedDocument], threshold: float | None, keys: str
) -> list[AnnotatedDocument]:
    """Fill the base with these texts, marked at this threshold of the annotator (None: its own), with keys of these
    kinds; gives the marked texts. What a directory holds already is taken as it is.

    Raises `typer.BadParameter` for a base of other texts or settings.
    """
    home = runtime.settings.home
    wanted = {"threshold": threshold, "keys": keys, "checkpoint": str(runtime.user.checkpoint)}
    if (home / MADE_OF).is_file():
        return _filled_documents(home, texts, wanted)
    documents = list(mark_facts(runtime, texts, threshold, asks="question" in keys))
    ingest_with_keys(runtime, documents, keys)
    with (home / MARKS).open("w", encoding="utf-8") as target:
        target.writelines(json.dumps(to_record(one), ensure_ascii=False) + "\n" for one in documents)
    (home / MADE_OF).write_text(json.dumps(wanted), encoding="utf-8")
    return documents


def _filled_documents(
    home: Path, texts: Sequence[AnnotatedDocument], wanted: Mapping[str, str | float | None]
) -> list[AnnotatedDocument]:
    documents = [one.document for one in read_annotated(home / MARKS) if one.document is not None]
    same = [one.external_id for one in documents] == [one.external_id for one in texts]
    if not same or json.loads((home / MADE_OF).read_text(encoding="utf-8")) != wanted:
        raise typer.BadParameter(
            f"{home} was filled with other texts, or with other settings; name another directory.",
            param_hint="--base",
        )
    return documents


def mark_facts(
    runtime: Runtime,
    texts: Sequence[AnnotatedDocument],
    threshold: float | None = None,
    *,
    asks: bool = False,
) -> Iterator[AnnotatedDocument]:
    """Mark facts as `colmlm corpus add` does, and with `asks` writes questions for them."""
    annotator = annotators.light_annotators(runtime, None, None, asks=asks, threshold=threshold)
    with progress("Marking facts") as advance:
        for done, reviewed in enumerate(annotator.annotate(texts), start=1):
            yield reviewed.document
            advance(done, len(texts))


def ingest_with_keys(runtime: Runtime, texts: Sequence[AnnotatedDocument], keys: str = "context") -> None:
    """Ingest annotated texts, and make keys of these kinds for their facts ("none": vectors for sentences)."""
    runtime.kb.corpora.ingest(map(Parsed, texts), CORPUS, actor=ACTOR, reason=REASON)
    if keys != NO_KEYS:
        key_everything(runtime, kinds=keys)
        return
    with progress("Encoding sentences") as advance:
        fill_sentence_vectors(runtime.kb, runtime.sentence_encoder, advance)


# A reader and an encoder that do nothing twice, so that several ways of answering cost little more than one.
#
# What is asked first takes as long as it does without them, so the way that is asked first can be timed.


def remembering_answers(runtime: Runtime, *, keys: bool) -> Answering:
    """Give the product's answers, which read and encode nothing twice; without `keys` sentences are found by words."""
    questions = Questions(runtime.kb, [RememberingEncoder(runtime.checkpoint)]) if keys else None
    return Answering(runtime.kb, questions, RememberingReader(runtime.reader), runtime.sentence_encoder)


@dataclass(frozen=True, slots=True)
class RememberingReader:
    """A `kb.answers.reading.JudgedReader`."""

    reader: JudgedReader
    _known: dict[tuple[str, tuple[Passage, ...]], list[PassageReading]] = field(default_factory=dict)

    @property
    def confidence(self) -> Confidence:
        return self.reader.confidence

    @property
    def digest(self) -> str:
        return self.reader.digest

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        together = (question, tuple(windows))  # which passages a reader reads on depends on all of them
        if together not in self._known:
            self._known[together] = self.reader.read(question, windows)
        return self._known[together]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        return [self.read(question, windows) for question, windows in asked]


class RememberingEncoder(ModelEncoder):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._known: dict[str, NDArray[np.float32]] = {}

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        new = [one for one in dict.fromkeys(questions) if one not in self._known]
        if new:
            self._known.update(zip(new, super().encode_questions(new), strict=True))
        return np.stack([self._known[one] for one in questions])
