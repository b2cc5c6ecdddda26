"""Verification of generated questions: what leads elsewhere is dropped, at the same cost in a long document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from colmlm.kb.answers.reading import Passage, PassageReading
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.annotate.annotators import GeneratedQuestion
from colmlm.model.annotate.pipeline import Annotator, Offsets
from colmlm.model.annotate.spans import SpannedText
from colmlm.model.reader.reader import OTHERS, Verifier
from tests.fakes import NearReader

TEXT = "The harbour of Lundvik was built in 1834. Its lighthouse burned down in 1871. It was rebuilt by Holm."


def asked(value: str, question: str, text: str = TEXT) -> tuple[AnnotatedDocument, FactSpan]:
    start = text.index(value)
    span = FactSpan(start, start + len(value), value, question)
    return AnnotatedDocument("harbour", text, (span,), title="Harbour"), span


def fault(verifier: Verifier, value: str, question: str, text: str = TEXT) -> str | None:
    document, span = asked(value, question, text)
    ((found,),) = verifier.verify([(document, [span])])
    assert found is None or found.code == "unverified"
    return None if found is None else found.reason


def test_a_question_is_sound_where_the_reader_comes_back_to_its_span() -> None:
    assert fault(Verifier(NearReader(), 0.0), "1871", "When did the lighthouse burn?") is None
    assert fault(Verifier(NearReader(), 0.0), "in 1871", "When was the lighthouse lost?") is None


def test_a_question_that_leads_elsewhere_says_where() -> None:
    said = fault(Verifier(NearReader(), 0.0), "1834", "When did the lighthouse burn?")
    assert said is not None and "'1871'" in said
    clause = "Its lighthouse burned down in 1871"
    assert fault(Verifier(NearReader(), 0.0), clause, "When was the lighthouse lost?") is not None


def test_a_question_that_the_reader_is_not_sure_enough_of_is_unverified() -> None:
    sure = Verifier(NearReader(), 4.0)
    assert fault(sure, "1871", "When did the lighthouse burn?") is None
    assert "sure" in (fault(Verifier(NearReader(), 5.0), "1871", "When did the lighthouse burn?") or "")
    assert "sure" in (fault(Verifier(NearReader(), 0.0), "1871", "Which volcano erupted?") or "")


@dataclass(slots=True)
class Counting(NearReader):
    read_before: list[str] = field(default_factory=list)

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        self.read_before += [window.text for _, windows in asked for window in windows]
        return NearReader.read_all(self, asked)


def test_of_a_long_document_the_own_windows_and_the_nearest_others_are_read() -> None:
    filler = " ".join(f"Nothing of note was seen there on day {n}." for n in range(100))
    text = f"{filler} The lighthouse burned down in 1871. {filler} A lighthouse on paper was drawn by Berg."
    reader = Counting()
    assert fault(Verifier(reader, 0.0), "1871", "When did the lighthouse burn down?", text) is None
    assert len(reader.read_before) == 2 + OTHERS
    assert "drawn by Berg" in " ".join(reader.read_before)


@dataclass
class Fixed:
    """Marks these values, and asks these questions of them."""

    asked: dict[str, str]

    def spans(self, texts: Sequence[str]) -> list[list[Offsets]]:
        return [
            [(text.index(value), text.index(value) + len(value)) for value in self.asked] for text in texts
        ]

    def annotate(self, passages: Sequence[SpannedText]) -> list[list[GeneratedQuestion]]:
        return [
            [GeneratedQuestion(question, value) for value, question in self.asked.items()] for _ in passages
        ]


def test_an_unverified_question_is_a_reject_and_leaves_its_fact() -> None:
    fixed = Fixed({"1834": "When was the harbour built?", "1871": "When was the old harbour built?"})
    raw = AnnotatedDocument("harbour", TEXT, (), title="Harbour")
    for drop in (False, True):
        annotator = Annotator(fixed, fixed, drop, Verifier(NearReader(), 0.0))
        (reviewed,) = annotator.annotate([raw])
        kept = [(fact.value, fact.question) for fact in reviewed.document.facts]
        assert kept == [("1834", "When was the harbour built?")] + [("1871", None)] * (not drop)
        (reject,) = reviewed.rejected
        assert (reject.code, reject.value, reject.question) == (
            "unverified", "1871", "When was the old harbour built?"
        )  # fmt: skip
    (unverified,) = Annotator(fixed, fixed).annotate([raw])
    assert len([fact for fact in unverified.document.facts if fact.question]) == 2
