"""The text that a lookup asks with: the question, or the sentence that is being written."""

from __future__ import annotations

import numpy as np
import pytest

from colmlm.kb.texts.asked import MOST_CHARACTERS, asked_text, question_in
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.text.markup import ASKER
from tests.model.lookups import ASKED, LOOK, FakeLookup, FakeWords, Hit, answering, config, say, scripted

QUESTION = "What is the capital of Peru?"
CHAT = f"Be brief.\n\nQuestion: And of Chile?\nAnswer: Santiago.\n\nQuestion: {QUESTION}\nAnswer:"


@pytest.mark.parametrize(
    ("prompt", "said", "text"),
    [
        (f"Question: {QUESTION} Answer:", "", QUESTION),
        (f"Question: {QUESTION}\nAnswer: ", " ", QUESTION),
        (CHAT, "", QUESTION),
        (f"{QUESTION} Answer:", "", QUESTION),
        (CHAT, " It is", f"{QUESTION} It is"),
        (CHAT, " It is Lima. The river that rises there is", "The river that rises there is"),
        (CHAT, " It is Lima. It has", "It is Lima. It has"),
        ("Peru lies in South America. The capital of Peru is", "", "The capital of Peru is"),
        ("Peru lies in South America. Its capital", " is", "Peru lies in South America. Its capital is"),
        ("Hydrogen was", " discovered by", "Hydrogen was discovered by"),
        ("", "", ""),
        ("x" * 9_000, "", "x" * MOST_CHARACTERS),
        (f"Question: {'x ' * 9_000}? Answer:", "", f"{'x ' * 9_000}?"[-MOST_CHARACTERS:]),
    ],
)
def test_a_lookup_asks_the_question_or_the_sentence_being_written(prompt: str, said: str, text: str) -> None:
    assert asked_text(prompt, said) == text


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (CHAT, QUESTION),
        (f"{QUESTION} ", QUESTION),
        (f"Peru lies in South America. {QUESTION}", QUESTION),
        ("ペルーの首都はどこですか？", "ペルーの首都はどこですか？"),
        ("「ペルーの首都はどこですか？」", "「ペルーの首都はどこですか？」"),
        ('What is "x"?"', 'What is "x"?"'),
        ("(Who wrote it?)", "(Who wrote it?)"),
        ("Who?!", "Who?!"),
        (f"Who wrote it?{'!' * 99}", f"Who wrote it?{'!' * 99}"),
        ("Who wrote it ?!”) ", "Who wrote it ?!”)"),
        ("It was written by whom! (", None),
        ('He asked "Who?" and', None),
        ("The capital of Peru is", None),
        ("What is it? It is", None),
        ("", None),
    ],
)
def test_a_prompt_ends_in_a_question_or_goes_on(prompt: str, question: str | None) -> None:
    assert question_in(prompt) == question


def test_each_row_sends_its_text_with_the_ranking() -> None:
    scripts = {"It has one. The capital of Peru is": LOOK, f"Question: {QUESTION} Answer:": f" so{LOOK}"}
    checkpoint, _ = scripted(scripts)
    lookup = answering("Lima", "Lima")
    rows = Decoder(checkpoint, lookup).generate(list(scripts), config(ranking="words", threshold=0.4))
    assert [row.ranking for row in rows] == ["words", "words"]
    assert [asked["texts"] for asked in lookup.asked] == [["The capital of Peru is"], [f"{QUESTION} so"]]
    assert all((asked["ranking"], asked["threshold"]) == ("words", 0.4) for asked in lookup.asked)


def test_until_a_fact_is_found_the_reader_is_asked_the_question_as_it_is_asked_without_a_decoder(
    eager: Checkpoint,
) -> None:
    found = [None, "Lima", "Lima", "Lima"]
    queries: list[np.ndarray] = []

    def answer(query_D: np.ndarray) -> Hit | None:
        queries.append(query_D)
        value = found[min(len(queries) - 1, 3)]
        return None if value is None else Hit(1, value)

    lookup = FakeLookup(answer)
    how = config(ranking="reader", mode="forced", max_tokens=40, seed=3)
    Decoder(eager, lookup).generate([CHAT], how)
    texts = [text for asked in lookup.asked for text in asked["texts"]]
    assert texts[:2] == [QUESTION, QUESTION] and QUESTION not in texts[2:] and len(texts) > 2
    as_asked = KeyEncoder(eager).encode_questions([QUESTION])[0]
    assert [bool(np.allclose(query_D, as_asked, atol=1e-5)) for query_D in queries[:3]] == [True, True, False]


@pytest.mark.parametrize(("least_score", "outcome"), [(None, "hit"), (0.01, "hit"), (0.02, "no_match")])
def test_a_hit_below_the_least_score_is_none(least_score: float | None, outcome: str) -> None:
    lookup = answering("Lima")
    said, _ = say(f"a{LOOK}", lookup, ranking="reader", least_score=least_score)
    assert (said.splices[0].outcome, said.splices[0].score) == (outcome, 0.01)
    assert lookup.asked[0]["threshold"] is None


def test_a_query_in_words_is_its_own_text() -> None:
    lookup = answering("Lima")
    say(f"a{LOOK}capital{ASKED}", lookup, markup=ASKER, words=FakeWords(), ranking="words")
    assert [asked["texts"] for asked in lookup.asked] == [["capital"]]


def test_by_key_no_text_is_sent() -> None:
    lookup = answering("Lima")
    said, _ = say(f"a{LOOK}", lookup)
    assert said.ranking == "key" and all("texts" not in asked for asked in lookup.asked)


def test_another_ranking_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of key, words, reader"):
        config(ranking="guess")
