"""`colmlm bench words`: sentences of Zipf's words, and people's questions beside bm25s."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.word_corpus import ExactBM25, WordCorpus
from tests.cli.conftest import invoke
from tests.kb.corpora import ingest


def test_synthetic_questions_have_words_of_their_sentence() -> None:
    made, again = WordCorpus.made(200, seed=1), WordCorpus.made(200, seed=1)
    assert (made.documents, made.questions, made.common) == (again.documents, again.questions, again.common)
    texts = {document.external_id: document.text for document in made.documents}
    assert len(texts) == 40
    for question in made.questions:
        sentence = texts[question.document][question.at :].partition(".")[0].lower().split()
        assert len(set(question.text.split()) & set(sentence)) >= 1
    for document in made.documents:
        assert all(document.text[fact.start : fact.end] == fact.value for fact in document.facts)


def test_brute_force_agrees_with_the_search_of_a_small_base(kb: KnowledgeBase) -> None:
    corpus = WordCorpus.made(300, seed=2)
    ingest(kb, *corpus.documents)
    exact = ExactBM25(corpus)
    with kb.sessions() as session:
        for question in [one.text for one in corpus.questions[:20]] + corpus.common[:20]:
            found = kb.words.find(session, question, 5)
            scores = exact.scores(question)
            assert [one.score for one in found] == pytest.approx(sorted(scores)[:-6:-1], abs=1e-3)
            assert exact.share_found(question, [one.sentence_id - 1 for one in found], 5) == 1
    assert exact.share_found(corpus.common[0], [], 5) == 0


@pytest.mark.slow(reason="runs a benchmark to its end")
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


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_lookups_are_timed_by_key_alone_with_words_and_with_the_reader() -> None:
    figures = invoke("bench", "words", "--sentences", 60, "--dim", 8, "--json").json
    assert figures["sentences"] == figures["facts"] == 60
    assert figures["best_5_found"] == figures["common_best_5_found"] == 1
    for name in ("by_key", "by_key_and_words", "with_the_reader"):
        assert 0 < figures[f"{name}_p50_ms"] <= figures[f"{name}_p99_ms"]
    assert figures["by_key_and_words_vs_key"] > 0 and figures["with_the_reader_vs_key"] > 0


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_pages_of_facts_are_timed_by_kind_of_search() -> None:
    done = invoke("bench", "facts", "--facts", "500", "--searches", "3", "--json")
    figures = json.loads(done.out)["figures"]
    assert figures["every fact"]["mean_found"] == 500 and figures["a corpus"]["mean_found"] == 50
    assert figures["deleted"]["mean_found"] == 0 and figures["a word of a text"]["mean_found"] > 0
    assert figures["inbox"]["mean_found"] == 400 and figures["inbox of a corpus"]["mean_found"] == 50
    assert figures["inbox, what was doubted"]["mean_found"] == 20
