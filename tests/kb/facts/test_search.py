"""Searches of facts: what a text finds and where, what filters leave, how many there are, and what stays withheld."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts import records
from colmlm.kb.facts.records import FactPage
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CAPITAL, CHILE, PERU, document, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
TITLED = replace(PERU, title="Land of the Incas")


def values(page: FactPage) -> list[str]:
    return [fact.value for fact in page.facts]


def places(page: FactPage) -> list[list[tuple[str, list[str]]]]:
    return [
        [(one.place, [one.said[mark.start : mark.end] for mark in one.marks]) for one in fact.found]
        for fact in page.facts
    ]


def test_a_title_finds_every_fact_of_its_document(kb: KnowledgeBase):
    ingest(kb, TITLED, CHILE)
    page = kb.facts.search(text="Incas")
    assert values(page) == ["Lima", "Amazon", "6,768 m"] and (page.total, page.is_exact) == (3, True)
    assert places(page) == [[("title", ["Incas"])]] * 3


def test_the_words_of_a_sentence_find_the_facts_in_it_in_any_form(kb: KnowledgeBase):
    ingest(kb, TITLED)
    page = kb.facts.search(text="rises mountain")
    assert values(page) == ["Amazon"]
    assert places(page) == [[("question", ["rises"]), ("text", ["mountains", "rises"])]]


def test_best_are_values_then_questions_then_texts(kb: KnowledgeBase):
    of_text = document("coast", "Not far from Lima lies ", ("Callao", "Which port is there?"), ".")
    of_value = document("coal", "It is called ", ("Nueva Lima", "What is it called?"), ".")
    of_question = document("when", "They came in ", ("1535", "When was Lima founded?"), ".")
    ingest(kb, of_text, of_question, of_value, PERU)
    page = kb.facts.search(text="lima")
    assert values(page) == ["Lima", "Nueva Lima", "1535", "Callao"]
    assert values(kb.facts.search(text="lima", sort="id")) == ["Callao", "1535", "Nueva Lima", "Lima"]
    assert values(kb.facts.search(text="lima", sort="newest")) == ["Lima", "Nueva Lima", "1535", "Callao"]


def test_a_word_is_found_by_its_beginning_and_literally_by_any_part(kb: KnowledgeBase):
    kb.facts.add("Who weighed the Earth?", "Henry Cavendish", **WHO)
    for found in ("cav", "Cavendish", "Henry Cav", "weig", "ear", "cavendishs", "cavendish henry"):
        assert values(kb.facts.search(text=found)) == ["Henry Cavendish"], found
    for missed in ("endish", "zzz", "Henry Zav", "ca"):
        assert values(kb.facts.search(text=missed)) == [], missed
    assert values(kb.facts.search(text="endish", literally=True)) == ["Henry Cavendish"]


def test_a_literal_text_is_taken_as_it_stands(kb: KnowledgeBase, subtests: pytest.Subtests):
    kb.facts.add("Which share?", "50 % of_it\\é", **WHO)
    kb.facts.add("Which other?", "50 x ofxit", **WHO)
    for literal in ("%", "0 %", "of_it", "F_I", "\\", "é", "50 % of_it"):
        with subtests.test(text=literal):
            assert values(kb.facts.search(text=literal, literally=True)) == ["50 % of_it\\é"]
            assert [fact.value for fact in kb.facts.find(text=literal)] == ["50 % of_it\\é"]


def test_pages_end_where_what_was_found_does(kb: KnowledgeBase):
    ingest(kb, *numbered(25))
    for order in records.FACT_SORTS:
        found, after = [], 0
        while True:
            page = kb.facts.search(text="value", sort=order, after=after, limit=7)
            found += values(page)
            assert page.total == 25
            if page.next_after is None:
                break
            after = page.next_after
        assert found == [f"value {n}" for n in (range(25) if order != "newest" else range(24, -1, -1))]


@pytest.mark.parametrize("ingests", [1, 2, 12])
def test_a_word_in_a_corpus_is_found_in_every_ingest_and_in_no_other_corpus(kb: KnowledgeBase, ingests: int):
    said = [document(f"d{n}", f"Word {n} ", (f"Value {n}", f"What is {n}?"), ".") for n in range(ingests)]
    for one in said:
        ingest(kb, one)
        ingest(kb, one, corpus="others")
        with kb.sessions.begin() as session:  # as if many documents of others had come between
            session.execute(text("SELECT setval('document_id_seq', nextval('document_id_seq') + 5000)"))
    for found in ("value", "what", "words"):
        page = kb.facts.search(text=found, corpus="lands", sort="id")
        assert values(page) == [f"Value {n}" for n in range(ingests)], found
        assert {fact.source.corpus for fact in page.facts if fact.source} == {"lands"}


def test_filters_leave_what_fits_all_of_them(kb: KnowledgeBase):
    ingest(kb, PERU)
    ingest(kb, CHILE, corpus="others")
    lima, santiago = fact_id(kb, "Lima"), fact_id(kb, "Santiago")
    kb.facts.edit(lima, "Cusco", actor="ada", reason="test")
    deleted = kb.facts.delete([santiago], actor="ben", reason="test")
    assert values(kb.facts.search(corpus="lands", text="capital")) == ["Cusco"]
    assert values(kb.facts.search(actor="ada")) == ["Cusco"] and values(kb.facts.search(kind="update")) == [
        "Cusco"
    ]
    assert values(kb.facts.search(actor="ben")) == []
    assert values(kb.facts.search(actor="ben", state="deleted")) == ["Santiago"]
    assert values(kb.facts.search(actor="tester", state="all")) == ["Cusco", "Amazon", "6,768 m", "Santiago"]
    at = kb.log.changes(after=deleted.seq - 1)[0].at
    assert values(kb.facts.search(since=at, state="all")) == ["Santiago"]
    assert values(kb.facts.search(until=at, kind="ingest")) == ["Cusco", "Amazon", "6,768 m"]
    assert values(kb.facts.search(document_id=1, limit=1)) == ["Cusco"]
    assert kb.facts.search(document_id=1, limit=1).total == 3
    with raises_code("CorpusNotFound"):
        kb.facts.search(corpus="nowhere")
    with pytest.raises(InvalidQuery):
        kb.facts.search(text="a\x00b")


def test_erased_facts_are_listed_apart_and_found_by_no_word(kb: KnowledgeBase):
    ingest(kb, TITLED)
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    kb.facts.delete([amazon], **WHO)
    Erasure(kb).erase([lima], **WHO)
    assert [fact.fact_id for fact in kb.facts.search(state="erased").facts] == [lima]
    assert [fact.fact_id for fact in kb.facts.search(state="deleted").facts] == [lima, amazon]
    assert values(kb.facts.search(text="Lima", state="all")) == []


def test_nobody_finds_by_a_text_what_is_withheld_from_them(kb: KnowledgeBase):
    both = document(
        "both", "Both ", ("Lima", CAPITAL), " and ", ("Quito", "And of Ecuador?"), " are capitals."
    )
    ingest(kb, replace(both, title="Two"))
    assert values(kb.caller_view(past=False).search(text="Lima", sort="id")) == ["Lima", "Quito"]
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    assert values(kb.caller_view(past=True).search(text="Lima")) == ["Quito"]
    assert values(kb.caller_view(past=False).search(text="Lima")) == []
    (quito,) = kb.caller_view(past=False).search(text="Quito").facts
    assert [one.place for one in quito.found] == ["value"]
    kb.facts.edit(quito.fact_id, "Guayaquil", **WHO)
    assert values(kb.caller_view(past=False).search(text="Quito")) == []
    assert values(kb.caller_view(past=True).search(text="Quito")) == ["Guayaquil"]


def test_a_fact_is_found_by_what_it_says_now(kb: KnowledgeBase):
    edit = kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    kb.facts.edit(edit.fact_ids[0], "Miss Austen", **WHO)
    assert values(kb.facts.search(text="Jane", state="all")) == []
    assert values(kb.facts.search(text="Emma Miss")) == ["Miss Austen"]


def test_the_nearest_come_in_their_order_and_through_the_filters(kb: KnowledgeBase):
    ingest(kb, PERU)
    ingest(kb, CHILE, corpus="others")
    ids = [fact_id(kb, value) for value in ("6,768 m", "Santiago", "Lima")]
    page = kb.facts.search(nearest=ids, limit=2)
    assert values(page) == ["6,768 m", "Santiago"] and page.total == 3 and page.next_after is not None
    assert values(kb.facts.search(nearest=ids, after=page.next_after)) == ["Lima"]
    assert values(kb.facts.search(nearest=ids, corpus="lands")) == ["6,768 m", "Lima"]
    assert kb.facts.search(nearest=[]).total == 0


def test_words_that_say_nothing_find_by_value_and_question_alone(kb: KnowledgeBase):
    ingest(kb, PERU)
    assert values(kb.facts.search(text="is the")) == ["Lima", "6,768 m"]
    assert kb.facts.search(text="   ").total == 3
