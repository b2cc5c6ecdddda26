"""What workers of Ray are sent for, done in this process: by the base and the models of the command, or not at all."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.bulk.driver import Annotating, Encoding
from colmlm.cli.composition.bulk.errands import AnnotatingBy, AnnotatorElsewhere, EncodingBy, locate_model
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import MODEL, USAGE, explain
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.errors import KeysetMismatch, SettingsError
from colmlm.kb.jobs.queue import JobCancelled
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.progress import Advance, Telling
from colmlm.kb.service import KnowledgeBase
from colmlm.model.annotate.config import AnnotatorError
from tests.cli.conftest import OPENING, Annotators
from tests.tiny_annotators import tiny_asker, tiny_span_annotator

TEXT = {"external_id": "house", "text": "The house of Lundvik opened in 1804.", "facts": [], "title": None}


@pytest.fixture
def keyset(home: Path, kb: KnowledgeBase) -> KeysetRecord:
    with Runtime.from_environment() as runtime:
        return kb.keysets.create(runtime.encoder.checkpoint)


def test_questions_are_encoded_for_the_base_and_the_checkpoint_of_the_command(
    kb: KnowledgeBase, keyset: KeysetRecord
) -> None:
    by = EncodingBy(kb.log.database_id(), keyset.keyset_id, keyset.checkpoint_id)
    made = Encoding(msgspec.to_builtins(by)).run({"number": 3, "questions": ["Who was there?"]})
    assert made["number"] == 3 and made["queries"]
    with pytest.raises(
        SettingsError, match=r"COLMLM_DATABASE_URL: a Ray machine has the database .* 0123456789abcdef"
    ) as other:
        Encoding(msgspec.to_builtins(msgspec.structs.replace(by, database_id="0123456789abcdef")))
    assert explain(other.value).exit_code == USAGE
    with pytest.raises(KeysetMismatch):
        Encoding(msgspec.to_builtins(msgspec.structs.replace(by, checkpoint_id="another")))


def annotating(light: Annotators, **others: Any) -> Annotating:
    """What a worker makes of a command whose annotators are these, in place of which `others` are said."""
    by = AnnotatingBy(
        locate_model(light.span_annotator), locate_model(light.question_generator), None, None, False
    )
    return Annotating(msgspec.to_builtins(msgspec.structs.replace(by, **others)))


def test_a_worker_annotates_by_its_own_copies_where_the_paths_of_the_command_are_not_there(
    home: Path, light: Annotators
) -> None:
    spans = msgspec.structs.replace(locate_model(light.span_annotator), path="/nowhere/spans")
    (reviewed,) = annotating(light, spans=spans).run({"documents": [TEXT], "skip": []})
    assert [(fact.value, fact.question) for fact in reviewed.document.facts] == [("1804", OPENING)]


def test_a_worker_with_other_annotators_or_another_reader_than_the_command_is_refused(
    home: Path, light: Annotators, tmp_path: Path
) -> None:
    others = {
        "spans": tiny_span_annotator(tmp_path / "spans", seed=8),
        "questions": tiny_asker(tmp_path / "questions", "Who?"),
        "reader": tmp_path / "reader",
    }
    with Runtime.from_environment() as runtime:
        own = runtime.user.reader
    assert own is not None
    others["reader"].mkdir()
    for file in own.iterdir():
        (others["reader"] / file.name).write_bytes(file.read_bytes())
    confidence = others["reader"] / "confidence.json"
    confidence.write_text(confidence.read_text().replace("0", "1", 1))
    for name, path in others.items():
        theirs = msgspec.structs.replace(locate_model(path), path=f"/nowhere/{name}")
        with pytest.raises(
            AnnotatorError, match=rf"is not what the command has in /nowhere/{name}"
        ) as refused:
            annotating(light, **{name: theirs})
        assert explain(refused.value).exit_code == MODEL


@dataclass
class Slow:
    """Workers that never finish a document."""

    asked: int = 0

    def outcomes(
        self, errand: str, given: Any, rows: Iterable[Any], *, at_once: int
    ) -> Generator[Any, None, None]:
        for _ in range(100):
            self.asked += 1
            yield None


def test_a_job_that_is_cancelled_while_all_documents_are_elsewhere_ends_at_the_next_second(
    home: Path, kb: KnowledgeBase, light: Annotators, tmp_path: Path
) -> None:
    (tmp_path / "house.txt").write_text(str(TEXT["text"]))
    slow, by = Slow(), AnnotatingBy(locate_model(light.span_annotator), None, None, None, False)

    @contextmanager
    def progress(description: str) -> Iterator[Advance]:
        def advance(done: int, total: int | None) -> None:
            if slow.asked == 3:  # the third second
                raise JobCancelled

        yield advance

    with Runtime.from_environment() as runtime:
        found = find_files([tmp_path / "house.txt"])
        adding = Adding(runtime, "town", found, telling=Telling(progress=progress))
        with pytest.raises(JobCancelled):
            adding.ingest(
                lambda on_wait: AnnotatorElsewhere(slow, by, on_wait), actor="tester", reason="test"
            )
    assert slow.asked == 3
