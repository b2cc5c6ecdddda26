"""The search by words over sentences of Zipf's words, beside exact BM25."""

from __future__ import annotations

import pytest

from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import ingest
from tests.kb.lookup.word_corpus import ExactBM25, WordCorpus


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
