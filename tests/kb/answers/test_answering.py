"""Answers to questions: what is live is said where its document says it, and nothing else ever is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, SayingReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, document, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def answers(kb: KnowledgeBase, encoder: WordEncoder) -> Answering:
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), NearReader())


def test_an_answer_stands_where_it_says_and_names_its_fact(answers: Answering, kb: KnowledgeBase):
    found = answers.ask(CAPITAL)
    assert (found.answer, found.abstained) == ("Lima", False)
    assert found.source is not None and found.source.external_id == "peru"
    assert PERU.text[found.source.start : found.source.end] == "Lima"
    assert [fact.fact_id for fact in found.facts] == [fact_id(kb, "Lima")]
    assert found.seq == kb.log.head_seq()


def test_a_corrected_fact_is_said_as_it_is_now(answers: Answering, kb: KnowledgeBase):
    lima = fact_id(kb, "Lima")
    kb.facts.edit(lima, value="Cusco Region", **WHO)
    found = answers.ask(CAPITAL)
    assert found.answer == "Cusco Region"
    assert found.source is not None and PERU.text[found.source.start : found.source.end] == "Lima"
    assert [(fact.fact_id, fact.version) for fact in found.facts] == [(lima, 2)]
    height = answers.ask(HEIGHT)  # behind the longer value, offsets are the document's all the same
    assert height.source is not None and height.answer == "6,768 m"
    assert PERU.text[height.source.start : height.source.end] == "6,768 m"


def test_nothing_is_said_in_place_of_a_deleted_fact(answers: Answering, kb: KnowledgeBase):
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    found = answers.ask(CAPITAL)
    assert found.abstained and found.withheld and not found.facts
    assert found.nearest and all("Lima" not in passage.text for passage in found.nearest)
    kb.facts.restore([fact_id(kb, "Lima")], **WHO)
    assert answers.ask(CAPITAL).answer == "Lima"


def test_a_deleted_facts_sentence_is_read_as_if_it_were_live(answers: Answering, kb: KnowledgeBase):
    def nearness() -> dict[str, float]:
        return {place.window.text: place.candidate.cosine for place in answers.read_question(CAPITAL).places}

    live = nearness()
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    deleted = nearness()
    assert max(live.values()) > 0.9
    assert deleted == pytest.approx(live, abs=1e-3)


def test_passages_that_lie_within_another_are_not_shown_again(answers: Answering):
    shown = [one.source for one in answers.ask(HEIGHT).nearest if one.source]
    assert len(shown) > 1
    for one in shown:
        assert not [
            other
            for other in shown
            if other is not one
            and other.document_id == one.document_id
            and other.start <= one.start
            and one.end <= other.end
        ]


def test_a_fact_that_is_deleted_while_the_reader_reads_is_not_said(answers: Answering, kb: KnowledgeBase):
    lima = fact_id(kb, "Lima")
    deleted = []

    def delete_once() -> None:
        if not deleted:
            deleted.append(kb.facts.delete([lima], **WHO))

    found = replace(answers, reader=NearReader(delete_once)).ask(CAPITAL)
    assert found.abstained and found.withheld
    assert found.seq == deleted[0].seq


def test_what_reaches_into_an_erased_stretch_is_not_said(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    amazon, height = fact_id(kb, "Amazon"), fact_id(kb, "6,768 m")
    between = PERU.text[PERU.text.index("Amazon") : PERU.text.index("6,768 m")]
    assert Answering(kb, None, SayingReader(f"{between}6,768 m")).ask(HEIGHT).answer == f"{between}6,768 m"
    Erasure(kb).erase([height], **WHO)
    marks = MARK * len("6,768 m")
    for said, expected in ((f"{between}{marks}", None), (marks, None), ("Amazon", "Amazon")):
        found = Answering(kb, None, SayingReader(said)).ask(HEIGHT)
        assert found.answer == expected, said
    assert [fact.fact_id for fact in found.facts] == [amazon]


def test_a_tombstone_is_read_and_takes_no_other_fact_its_key(kb: KnowledgeBase, encoder: WordEncoder):
    question = "Which metropolis governs?"  # in words that no document has
    ingest(
        kb,
        document("seat", "There they meet in ", ("Callao", question), "."),
        document("coin", "There they pay with ", ("Soles", "Which money circulates?"), "."),
    )
    kb.keysets.rekey(encoder)
    kb.facts.delete([fact_id(kb, "Callao")], **WHO, abstain=True)
    found = Answering(kb, Questions(kb, [encoder]), NearReader()).ask(question)
    assert [passage.source.external_id for passage in found.nearest if passage.source] == ["seat", "coin"]
    assert found.abstained and all("Callao" not in passage.text for passage in found.nearest)


def test_a_base_without_keys_is_found_by_its_words(kb: KnowledgeBase, encoder: WordEncoder):
    ingest(kb, PERU, CHILE)
    for questions in (None, Questions(kb, [encoder])):
        assert Answering(kb, questions, NearReader()).ask(CAPITAL).answer == "Lima"


def test_a_fact_without_a_document_answers_with_its_value(answers: Answering, kb: KnowledgeBase):
    kb.facts.add("What is the capital of Ecuador?", "Quito", **WHO)
    found = answers.ask("What is the capital of Ecuador?")
    assert (found.answer, found.source) == ("Quito", None)
    assert [fact.value for fact in found.facts] == ["Quito"]


def test_what_nothing_answers_gets_the_nearest_passages(answers: Answering):
    found = answers.ask("Who discovered hydrogen?")
    assert found.abstained and not found.withheld
    assert answers.ask(CAPITAL, threshold=1.0).abstained


def test_a_question_that_is_none_is_refused(answers: Answering, subtests: pytest.Subtests):
    for question in ("", "  ", "x" * 2001):
        with subtests.test(question=question), pytest.raises(InvalidQuery):
            answers.ask(question)


def test_the_papers_mode_gives_the_nearest_fact(answers: Answering, kb: KnowledgeBase):
    found = answers.nearest_fact(CAPITAL, threshold=0.0)
    assert found.answer == "Lima" and found.facts[0].fact_id == fact_id(kb, "Lima")
    assert answers.nearest_fact("Who discovered hydrogen?", threshold=0.9).abstained


def test_of_two_that_contradict_the_newer_is_the_answer(answers: Answering, kb: KnowledgeBase):
    quito, question = "What is the capital of Ecuador?", "what is the capital of  Ecuador?"
    first = kb.facts.add(quito, "Quito", **WHO).fact_ids[0]
    second = kb.facts.add(question, "Guayaquil", anyway=True, **WHO).fact_ids[0]
    found = answers.ask(quito)
    assert found.answer == "Guayaquil" and [fact.fact_id for fact in found.facts] == [second]
    kb.facts.edit(first, "Quito City", **WHO)
    assert answers.ask(quito).answer == "Quito City"
    kb.comparisons.note_both_right(first, second, **WHO)
    assert not answers.ask(quito).abstained


LEAK = "Whom do I call about a leak?"  # what the reader of these tests finds no words of


def test_an_accepted_fact_that_asks_the_question_is_said_whatever_the_reader_thinks(
    kb: KnowledgeBase, answers: Answering
) -> None:
    deaf = replace(answers, reader=SayingReader("nothing at all"))
    (said,) = kb.facts.add(LEAK, "Miriam Okafor", **WHO).fact_ids
    before = kb.log.head_seq()
    for question in (LEAK, "whom do I call  about a leak"):
        asked = deaf.answer_in_mode(question, "read", nearest=1)
        found = asked.answer
        assert (found.answer, found.score, found.withheld) == ("Miriam Okafor", 0.99, False)
        assert [fact.fact_id for fact in found.facts] == [said] and len(found.nearest) == 1
        assert [(part.fact_id, part.start, part.end) for part in asked.parts] == [(said, 0, 13)]
    assert deaf.ask("Whom do I call about a flood?").abstained
    assert deaf.ask(LEAK, corpora=["lands"]).abstained
    kb.facts.edit(said, "Tomas Lindqvist", **WHO)
    assert deaf.ask(LEAK).answer == "Tomas Lindqvist"
    assert deaf.ask_as_of(LEAK, before).answer == "Miriam Okafor"
    kb.facts.delete([said], **WHO)
    assert deaf.ask(LEAK).abstained


def test_a_fact_of_a_document_that_asks_the_question_is_said_where_the_document_says_it(
    kb: KnowledgeBase, answers: Answering, encoder: WordEncoder
) -> None:
    deaf = replace(answers, reader=SayingReader("nothing at all"))
    ingest(kb, document("Leaks", ("Miriam Okafor", LEAK), " mends pipes."))
    kb.keysets.rekey(encoder)
    okafor = fact_id(kb, "Miriam Okafor")
    found = deaf.ask(LEAK)
    assert found.answer == "Miriam Okafor" and found.source is not None
    assert (found.source.start, found.source.end) == (0, 13)
    seq = kb.log.head_seq()
    kb.facts.delete([okafor], **WHO)
    assert deaf.ask(LEAK).abstained
    assert deaf.ask_as_of(LEAK, seq).answer == "Miriam Okafor"


def test_a_question_whose_fact_was_deleted_with_abstain_gets_no_other_answer(
    kb: KnowledgeBase, answers: Answering, encoder: WordEncoder
) -> None:
    fooled = replace(answers, reader=SayingReader("Tomas Lindqvist"))
    ingest(
        kb,
        document("Leaks", ("Miriam Okafor", LEAK), " mends pipes."),
        document("Paint", ("Tomas Lindqvist", "Who paints?"), " paints walls, and has no part in a leak."),
    )
    kb.keysets.rekey(encoder)
    okafor = fact_id(kb, "Miriam Okafor")
    assert fooled.ask(LEAK).answer == "Miriam Okafor", (
        "its own question goes before what the reader takes for it"
    )
    kb.facts.delete([okafor], **WHO)
    assert fooled.ask(LEAK).answer == "Tomas Lindqvist"
    kb.facts.restore([okafor], **WHO)
    kb.facts.delete([okafor], abstain=True, **WHO)
    for question in (LEAK, LEAK.upper(), LEAK.rstrip("?")):
        found = fooled.ask(question)
        assert found.abstained and found.withheld, question
    assert fooled.ask("Who paints?").answer == "Tomas Lindqvist"
    forgotten = kb.log.head_seq()
    kb.facts.add(LEAK, "Jo Park", **WHO)
    assert fooled.ask(LEAK).answer == "Jo Park", "a live fact asks it again"
    kb.facts.restore([okafor], **WHO)
    for question in (LEAK, LEAK.upper()):
        past = fooled.ask_as_of(question, forgotten)
        assert past.abstained and past.withheld, question
    assert fooled.ask_as_of(LEAK, forgotten - 1).answer == "Miriam Okafor", (
        "restored, and not yet deleted again"
    )
    assert fooled.ask_as_of("Who paints?", forgotten).answer == "Tomas Lindqvist"


def test_an_own_question_is_not_settled_where_two_facts_hold_or_two_documents_differ(
    kb: KnowledgeBase, answers: Answering
) -> None:
    deaf = replace(answers, reader=SayingReader("nothing at all"))
    (first,) = kb.facts.add(LEAK, "Miriam Okafor", **WHO).fact_ids
    (second,) = kb.facts.add(LEAK, "Tomas Lindqvist", anyway=True, **WHO).fact_ids
    assert deaf.ask(LEAK).answer == "Tomas Lindqvist"
    kb.comparisons.note_both_right(first, second, **WHO)
    assert deaf.ask(LEAK).abstained
    kb.facts.delete([second], **WHO)
    assert deaf.ask(LEAK).answer == "Miriam Okafor"
    born = "When was she born?"
    ingest(
        kb,
        document("Ada", "Ada was born in ", ("1815", born), "."),
        document("Marie", "Marie was born in ", ("1867", born), "."),
    )
    assert deaf.ask(born).abstained


def test_a_proposed_fact_that_asks_the_question_has_to_be_read(kb: KnowledgeBase, answers: Answering) -> None:
    deaf = replace(answers, reader=SayingReader("nothing at all"))
    kb.facts.add(LEAK, "Miriam Okafor", proposed=True, **WHO)
    assert deaf.ask(LEAK).abstained


def test_the_past_is_read_as_it_was(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, CHILE)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    answers, lima = Answering(kb, Questions(kb, [encoder]), NearReader()), fact_id(kb, "Lima")
    first = kb.log.head_seq()
    kb.facts.edit(lima, "Cusco", **WHO)
    second = kb.log.head_seq()
    kb.facts.delete([lima], **WHO)
    third = kb.log.head_seq()
    kb.facts.restore([lima], **WHO)

    def said(seq: int) -> tuple[str | None, bool, int]:
        found = answers.ask_as_of(CAPITAL, seq)
        return found.answer, found.withheld, found.seq

    assert said(first) == ("Lima", False, first)
    assert said(second) == ("Cusco", False, second)
    assert said(third) == (None, True, third)
    assert answers.ask(CAPITAL).answer == "Cusco"
    with raises_code("NoSuchChange"):
        answers.ask_as_of(CAPITAL, 10**6)


def test_of_a_fact_that_came_later_the_past_says_nothing(kb: KnowledgeBase) -> None:
    ingest(kb, CHILE)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    before = kb.log.head_seq()
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    answers = Answering(kb, Questions(kb, [encoder]), NearReader())
    past = answers.ask_as_of(CAPITAL, before)
    assert past.answer != "Lima" and all("Lima" not in one.text for one in past.nearest)
