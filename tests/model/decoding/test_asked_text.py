"""The text that a lookup asks with: the question, or the sentence that is being written."""

from __future__ import annotations

import pytest

from colmlm.kb.texts.asked import MOST_CHARACTERS, asked_text
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.text.markup import ASKER
from tests.model.lookups import ASKED, LOOK, FakeWords, answering, config, say, scripted

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


def test_each_row_sends_its_text_with_the_ranking() -> None:
    scripts = {"It has one. The capital of Peru is": LOOK, f"Question: {QUESTION} Answer:": f" so{LOOK}"}
    checkpoint, _ = scripted(scripts)
    lookup = answering("Lima", "Lima")
    rows = Decoder(checkpoint, lookup).generate(list(scripts), config(ranking="reader", threshold=0.4))
    assert [row.ranking for row in rows] == ["reader", "reader"]
    assert [asked["texts"] for asked in lookup.asked] == [["The capital of Peru is"], [f"{QUESTION} so"]]
    assert all((asked["ranking"], asked["threshold"]) == ("reader", 0.4) for asked in lookup.asked)


def test_a_query_in_words_is_its_own_text() -> None:
    lookup = answering("Lima")
    say(f"a{LOOK}capital{ASKED}", lookup, markup=ASKER, words=FakeWords(), ranking="words")
    assert [asked["texts"] for asked in lookup.asked] == [["capital"]]


def test_by_key_no_text_is_sent() -> None:
    lookup = answering("Lima")
    said, _ = say(f"a{LOOK}", lookup)
    assert said.ranking == "key" and all("texts" not in asked for asked in lookup.asked)


def test_another_ranking_is_refused() -> None:
    with pytest.raises(ValueError, match="none of key, words, reader"):
        config(ranking="guess")
