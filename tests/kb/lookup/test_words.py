"""Sentences are found by the words of a question, ranked as BM25 ranks them by brute force."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.ingest import MANY_FACTS
from colmlm.kb.lookup.searchable import K1, MOST_CANDIDATES, B, SentenceFound
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CHILE, PERU, fact_id, ingest

WHO = {"actor": "tester", "reason": "test"}


def find(kb: KnowledgeBase, question: str, limit: int = 10) -> list[SentenceFound]:
    with kb.sessions() as session:
        return kb.words.find(session, question, limit)


def said(kb: KnowledgeBase, question: str) -> list[str]:
    """What the sentences say that are found in documents."""
    return [
        kb.documents.text(s.document_id)[s.start : s.end].strip() for s in find(kb, question) if s.document_id
    ]


def brute_force(kb: KnowledgeBase, question: str) -> list[tuple[int, float]]:
    """Scores every sentence, by the lexemes that the server makes of it."""
    listing = text(
        "SELECT s.id, u.lexeme, cardinality(u.positions) FROM sentence s, unnest(s.words) AS u ORDER BY s.id"
    )
    with kb.sessions() as session:
        asked = session.scalar(
            text("SELECT tsvector_to_array(to_tsvector('pg_catalog.english', :q))"), {"q": question}
        )
        counts: dict[int, Counter[str]] = {}
        for sentence, lexeme, count in session.execute(listing):
            counts.setdefault(sentence, Counter())[lexeme] = count
        number = session.scalar(text("SELECT count(*) FROM sentence"))
    mean = sum(map(len, counts.values())) / number
    scores: Counter[int] = Counter()
    for lexeme in asked:
        frequency = sum(lexeme in of for of in counts.values())
        weight = math.log(1 + (number - frequency + 0.5) / (frequency + 0.5))
        for sentence, of in counts.items():
            if tf := of[lexeme]:
                norm = K1 * (1 - B + B * len(of) / mean)
                scores[sentence] += weight * tf * (K1 + 1) / (tf + norm)
    return sorted(scores.items(), key=lambda found: (-found[1], found[0]))


def made_up(count: int, seed: int = 0) -> list[AnnotatedDocument]:
    """Documents of sentences whose words are as unevenly common as those of a language."""
    random = Random(seed)
    vocabulary = [f"w{chr(97 + n % 26)}{n}q" for n in range(2000)]
    weights = [1 / (n + 1) for n in range(2000)]
    texts = [
        ". ".join(" ".join(random.choices(vocabulary, weights, k=random.randint(3, 25))) for _ in range(5))
        for _ in range(count // 5)
    ]
    return [AnnotatedDocument(f"d{n}", f"{said.capitalize()}.") for n, said in enumerate(texts)]


def test_a_sentence_is_found_by_other_forms_of_its_words(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, CHILE)
    assert said(kb, "What are Peru's capitals?")[0] in {"Its capital is Lima.", "Peru lies in South America."}
    assert said(kb, "Where does a RIVER rise, in which mountain?") == ["In its mountains rises the Amazon."]
    assert said(kb, "capital of Chilé")[0] == "The capital of Chile is Santiago."


def test_a_title_finds_all_sentences_under_it(kb: KnowledgeBase) -> None:
    ingest(kb, AnnotatedDocument("a", "It is high. It is old.", (), title="Mount Huascarán"), PERU)
    assert said(kb, "How old is Huascaran?") == ["It is old.", "It is high."]


def test_a_fact_without_a_document_is_found(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    (fact,) = kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO).fact_ids
    (found,) = find(kb, "Emma's writer, was she Jane?")
    assert found[1:5] == (None, fact, 0, len("Who wrote Emma? Jane Austen"))


def test_a_question_without_words_finds_nothing(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    ingest(kb, PERU)
    for question in ("", "  ", "?!", "who is it of the", "' | & ! \\ <-> :*", "████", "\ufeff"):
        with subtests.test(question=question):
            assert find(kb, question) == []


def test_a_question_is_words_and_no_query(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    ingest(kb, PERU)
    for question in (
        "Lima' | 'x",
        "Lima\\",
        "!Lima & <-> :* ()",
        "\\'Lima\\'",
        "Lima " + "x" * 5000,
        "Lima%s %(a)s",
    ):
        with subtests.test(question=question):
            assert said(kb, question) == ["Its capital is Lima."]


def test_the_ranking_is_that_of_brute_force(kb: KnowledgeBase) -> None:
    ingest(kb, *made_up(600))
    random = Random(1)
    for _ in range(40):
        question = " ".join(
            random.choices(made_up(50, seed=2)[random.randrange(10)].text.split(), k=random.randint(1, 9))
        )
        best = brute_force(kb, question)[:20]
        found = find(kb, question, 20)
        assert [round(s.score, 3) for s in found] == [round(score, 3) for _, score in best], question
        by_score = {round(score, 3): set() for _, score in best}  # the last bits of a score order no ties
        for sentence, score in best[:-3]:
            by_score[round(score, 3)].add(sentence)
        assert all(ids <= {s.sentence_id for s in found} for ids in by_score.values())


def test_equal_sentences_come_in_the_order_of_their_ids(kb: KnowledgeBase) -> None:
    ingest(kb, *(AnnotatedDocument(f"d{n}", "A llama stands there.") for n in range(9)))
    ids = [s.sentence_id for s in find(kb, "llamas")]
    assert len(ids) == 9 and ids == sorted(ids)
    assert [s.sentence_id for s in find(kb, "llamas", 4)] == ids[:4]


def test_what_is_stored_is_found_at_once_and_what_is_gone_is_not(kb: KnowledgeBase) -> None:
    """Although how common words are is read once a minute."""
    assert find(kb, "Which river?") == []
    ingest(kb, PERU, CHILE)
    assert said(kb, "capital Lima")[0] == "Its capital is Lima."
    (fact,) = kb.facts.add("Which river is longest?", "Amazon", **WHO).fact_ids
    assert fact in {s.fact_id for s in find(kb, "Amazon river")}
    kb.facts.delete([fact], **WHO)
    assert fact not in {s.fact_id for s in find(kb, "Amazon river")}
    Erasure(kb).erase([fact_id(kb, "Lima")], **WHO)
    assert said(kb, "Lima") == []


def test_words_that_are_everywhere_still_find_the_sentences_with_most_of_them(kb: KnowledgeBase) -> None:
    """More sentences have each word than are ever candidates."""
    many = MOST_CANDIDATES + 500
    common = [AnnotatedDocument(f"c{n}", f"A tower or bridge{n % 7}.") for n in range(many)]
    both = AnnotatedDocument("both", "Granite towers. Granite bridges carry towers of granite.")
    granite = [AnnotatedDocument(f"g{n}", "Granite lies here.") for n in range(many)]
    ingest(kb, *common, both, *granite)
    with kb.engine.begin() as connection:
        connection.execute(text("ANALYZE sentence"))
    assert said(kb, "tower granite")[:2] == ["Granite towers.", "Granite bridges carry towers of granite."]
    assert len(find(kb, "granite")) == len(find(kb, "the tower")) == 10


def test_common_words_are_known_from_the_statistics(kb: KnowledgeBase) -> None:
    ingest(kb, *made_up(1000))
    assert kb.words._counted == {}
    find(kb, "waaa0q " + made_up(5)[0].text)
    counted = dict(kb.words._counted)
    with kb.engine.begin() as connection:
        connection.execute(text("ANALYZE sentence"))
    kb.words._read_at = -math.inf
    find(kb, made_up(5)[0].text)
    known = {
        lexeme: kb.words._collection.common[lexeme]
        for lexeme in counted
        if lexeme in kb.words._collection.common
    }
    assert known and all(count == pytest.approx(counted[lexeme], abs=1.5) for lexeme, count in known.items())


def test_a_large_ingest_tells_at_once_which_words_are_common(kb: KnowledgeBase) -> None:
    """Without statistics every word in many sentences counts alike, and the best sentences are not among the chosen."""
    many = [AnnotatedDocument(f"m{n}", f"A tower numbered {n}.") for n in range(MANY_FACTS)]
    ingest(kb, *many, corpus="towers")
    find(kb, "tower 17")
    assert kb.words._collection.common["tower"] == pytest.approx(MANY_FACTS, rel=0.01)


def test_a_long_question_costs_no_more_than_its_first_words(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    long = " ".join(f"word{n}" for n in range(50_000))
    assert said(kb, f"Lima {long}") == ["Its capital is Lima."]
    assert find(kb, f"{long} Lima") == []
