"""`colmlm bench words`: sentences of Zipf's words, and people's questions beside bm25s."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.lab.bench.words import synthetic
from tests.cli.conftest import invoke


def test_synthetic_questions_have_words_of_their_sentence() -> None:
    documents, questions = synthetic(200, seed=1)
    assert (documents, questions) == synthetic(200, seed=1) and len(documents) == 40
    texts = {document.external_id: document.text for document in documents}
    for question in questions:
        sentence = texts[question.document][question.at :].partition(".")[0].lower().split()
        assert len(set(question.text.split()) & set(sentence)) >= 1


@pytest.mark.slow
def test_it_finds_sentences_and_compares_with_bm25s(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    context = "Lima lies in Peru. Santiago lies in Chile."
    qas = [
        {"question": "Which town is Chilean?", "answer": "Santiago", "answer_start": 19},
        {"question": "What lies in Peru?", "answer": "Lima", "answer_start": 0},
    ]
    file = tmp_path / "squad.jsonl"
    lines = [{"title": None, "context": context, "qas": qas}]
    lines += [
        {"title": None, "context": f"Nobody knows town {n}. It has no name.", "qas": []} for n in range(9)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = invoke("bench", "words", "--squad", file, "--json").json
    assert figures["sentences"] == 20 and figures["find_p50_ms"] > 0
    for name in ("gold_in_first", "bm25s_gold_in_first"):
        assert 0.5 <= figures[f"{name}_1"] <= figures[f"{name}_3"] <= figures[f"{name}_5"] <= 1
    assert "bytes_per_text_byte" in invoke("bench", "words", "--sentences", 50).out
