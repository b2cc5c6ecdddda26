"""What a reader gives: spans that cut no word, verbatim, best first, the same alone as beside other passages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from colmlm.kb.answers.reading import MOST_SPANS, Passage
from colmlm.model.lm.config import CheckpointError
from colmlm.model.reader.reader import ExtractiveReader, best_spans, join_sequence, uncut_offsets
from colmlm.model.text.tokens import WordTokenizer
from tests.strategies import texts
from tests.tiny_annotators import letter_tokenizer, tiny_reader, tiny_span_annotator

quick = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TEXT = "In 1911 the U.S. explorer's men (about 1,500 of them) paid $10.50 for the old city."


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ExtractiveReader:
    """A reader with random weights, which reads 64 tokens of a passage."""
    return ExtractiveReader.load(tiny_reader(tmp_path_factory.mktemp("reader")))


@quick
@given(texts, texts, texts)
def test_spans_of_any_passage_are_of_its_text_and_best_first(
    reader: ExtractiveReader, question: str, title: str, text: str
) -> None:
    (reading,) = reader.read(question, [Passage(title, text)])
    spans = [(start, end) for start, end, _ in reading.spans]
    scores = [score for *_, score in reading.spans]
    assert len(set(spans)) == len(spans) <= MOST_SPANS
    assert scores == sorted(scores, reverse=True) and np.isfinite([*scores, reading.none]).all()
    for start, end in spans:
        assert 0 <= start < end <= len(text) and text[start:end].strip() == text[start:end] != ""
        assert not {start, end} & uncut_offsets(text)


def test_a_span_cuts_no_number_and_no_word(reader: ExtractiveReader) -> None:
    (reading,) = reader.read("how many?", [Passage("", TEXT)])
    said = {TEXT[start:end] for start, end, _ in reading.spans}
    assert not said & {"1", "500", "10", "50", "U", "S", "s men", "U.S"}
    inside = {TEXT[at - 1 : at + 1] for at in uncut_offsets(TEXT)}
    assert {"1,", ",5", "0.", ".5", "U.", ".S", "'s"} <= inside and "r'" not in inside


def test_a_passage_is_read_alone_as_beside_others(reader: ExtractiveReader) -> None:
    windows = [Passage("Peru", TEXT), Passage("", "Lima."), Passage("A title", ""), Passage("", TEXT[:30])]
    for window, together in zip(windows, reader.read("when was it?", windows), strict=True):
        (alone,) = reader.read("when was it?", [window])
        assert [span[:2] for span in alone.spans[:3]] == [span[:2] for span in together.spans[:3]]
        assert alone.none == pytest.approx(together.none, abs=1e-4)
    assert reader.read("when was it?", []) == []


def test_questions_are_read_together_as_alone(reader: ExtractiveReader) -> None:
    asked = [
        ("when was it?", [Passage("Peru", TEXT), Passage("", "Lima.")]),
        ("who?", []),
        ("", [Passage("", TEXT)]),
    ]
    together = reader.read_all(asked * 30)  # more than are read in one forward
    assert [len(one) for one in together] == [2, 0, 1] * 30
    for (question, windows), readings in zip(asked * 30, together, strict=True):
        for alone, beside in zip(reader.read(question, windows), readings, strict=True):
            assert [span[:2] for span in alone.spans[:3]] == [span[:2] for span in beside.spans[:3]]
            assert alone.none == pytest.approx(beside.none, abs=1e-4)
    assert reader.read_all([]) == []


def test_what_has_no_words_has_no_spans_and_no_margin(reader: ExtractiveReader) -> None:
    (reading,) = reader.read("", [Passage("Peru", " \n")])
    assert reading.spans == () and reading.margin == float("-inf")


def test_of_a_long_passage_the_beginning_is_read(reader: ExtractiveReader) -> None:
    (reading,) = reader.read("when?", [Passage("", TEXT * 20)])
    assert reading.spans and max(end for _, end, _ in reading.spans) < len(TEXT)


def test_the_best_span_is_that_of_the_best_start_and_end() -> None:
    text = "in may 1911 he (the king) left"
    tokenizer = WordTokenizer(letter_tokenizer(whole=text.replace("(", " ").replace(")", " ").split()))
    words = tokenizer.encode(text)
    scores_T2 = np.zeros((len(words.ids), 2), dtype=np.float32)
    scores_T2[1, 0], scores_T2[2, 1] = 5, 4
    best, *others = best_spans(text, words, scores_T2)
    assert text[best[0] : best[1]] == "may 1911" and best[2] == 9
    assert others[0][2] == 5 and len(others) == MOST_SPANS - 1
    assert "(the king)" in {text[start:end] for start, end, _ in others} | {"(the king)"}


def test_a_question_with_the_words_of_markup_is_read_as_words() -> None:
    tokenizer = WordTokenizer(letter_tokenizer())
    sequence = join_sequence(
        tokenizer, tokenizer.encode("[SEP] a"), tokenizer.encode("[CLS]"), tokenizer.encode("b [SEP]").ids
    )
    assert sequence.ids.count(tokenizer.sep) == 3 and sequence.ids.count(tokenizer.cls) == 1
    assert sequence.ids[sequence.second - 1] == sequence.ids[sequence.text - 1] == tokenizer.sep


def test_an_annotator_is_no_reader(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="makes spans, not answers"):
        ExtractiveReader.load(tiny_span_annotator(tmp_path))
