"""Keys that come with the program are taken for what they were made of, by the checkpoint that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from colmlm.cli.composition.encoders import KeyRecorder, ModelEncoder, with_known_keys
from colmlm.cli.composition.runtime import released_checkpoint
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, read_annotated
from colmlm.kb.demo import DEMO_CORPUS, DEMO_KEYS
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.model.lm.checkpoint import load
from colmlm.model.lm.config import SMOLLM2
from tests.fakes import FakeEncoder, Vectors

TEXT = "Lima is the capital of Peru."
LIMA = AnnotatedDocument("lima", TEXT, (FactSpan(0, 4, "Lima", "What is the capital of Peru?", None),))
PERU = replace(LIMA, external_id="peru", facts=(FactSpan(23, 27, "Peru", None, None),))
TOLERANCE = 1e-3  # of keys of width 64 and more as float16


@dataclass
class Counting(FakeEncoder):
    """Encodes as the fake does, and counts what it is asked."""

    asked: list[object] = field(default_factory=list)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        self.asked += documents
        return super().encode_documents(documents)

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        self.asked += questions
        return super().encode_questions(questions)


class Released(Counting):
    """Encodes as the fake does, in the name of the released checkpoint."""

    @property
    def checkpoint(self) -> CheckpointInfo:
        return CheckpointInfo(self.salt, "released", 576, None)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A file with the keys of one document and one question."""
    remembering = KeyRecorder(Counting())
    remembering.encode_documents([LIMA])
    remembering.encode_questions(["Who wrote Emma?"])
    remembering.write(tmp_path / "keys.safetensors")
    return tmp_path / "keys.safetensors"


def test_only_what_the_file_lacks_is_encoded(known: Path) -> None:
    counting = Counting()
    encoder = with_known_keys(counting, known)
    documents = encoder.encode_documents([PERU, LIMA])
    questions = encoder.encode_questions(["Who wrote Emma?", "When?"])
    assert counting.asked == [PERU, "When?"]
    bare = FakeEncoder()
    for ours, theirs in zip(documents, bare.encode_documents([PERU, LIMA]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
    np.testing.assert_allclose(questions, bare.encode_questions(["Who wrote Emma?", "When?"]), atol=TOLERANCE)
    assert documents[1].dtype == questions.dtype == np.float32
    assert encoder.encode_questions([]).shape == (0, bare.checkpoint.dim)


@pytest.mark.parametrize(
    "changed",
    [
        replace(LIMA, text="Lima is the capital of Peru!"),
        replace(LIMA, title="Lima"),
        replace(LIMA, facts=(*LIMA.facts, *PERU.facts)),
        replace(LIMA, facts=(replace(LIMA.facts[0], question="Which city is it?"),)),
    ],
)
def test_a_document_that_differs_in_anything_is_encoded(known: Path, changed: AnnotatedDocument) -> None:
    counting = Counting()
    with_known_keys(counting, known).encode_documents([changed])
    assert counting.asked == [changed]


def test_keys_of_another_checkpoint_or_of_a_damaged_file_are_not_taken(known: Path) -> None:
    other = FakeEncoder("another")
    assert with_known_keys(other, known) is other
    known.write_bytes(known.read_bytes()[:100])
    encoder = FakeEncoder()
    assert with_known_keys(encoder, known) is encoder
    assert with_known_keys(encoder, known.with_name("none")) is encoder


def test_every_document_of_the_demo_has_its_keys_in_the_file() -> None:
    documents = [parsed.document for parsed in read_annotated(DEMO_CORPUS) if parsed.document is not None]
    with safe_open(DEMO_KEYS, framework="numpy") as file:
        made_by = file.metadata()["checkpoint"]
    counting = Released(made_by)
    made = with_known_keys(counting, DEMO_KEYS).encode_documents(documents)
    assert counting.asked == []
    assert [len(keys) for keys in made] == [len(document.facts) for document in documents]
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(made), axis=1), 1, atol=TOLERANCE)


@pytest.mark.slow(reason="loads the released checkpoint")
@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
@pytest.mark.skipif(
    find_spec(SMOLLM2.package) is None, reason="no base for the released weights: colmlm weights"
)
def test_the_keys_of_the_demo_are_those_of_the_released_checkpoint(tmp_path: Path) -> None:
    encoder = ModelEncoder(load(released_checkpoint(), tmp_path))
    documents = [parsed.document for parsed in read_annotated(DEMO_CORPUS) if parsed.document is not None][
        ::80
    ]
    known = with_known_keys(encoder, DEMO_KEYS)
    assert known is not encoder
    ours, theirs = (np.concatenate(made.encode_documents(documents)) for made in (known, encoder))
    assert (np.einsum("nd,nd->n", ours, theirs) > 0.999).all()
