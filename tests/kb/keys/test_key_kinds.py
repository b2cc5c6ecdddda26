"""Several keys of a fact: its context and its question. Off until asked for, then for every fact of the keyset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, Vectors, activated
from tests.kb.corpora import CAPITAL, PERU, ask, best, document, fact_id, ingest, numbered

WHO = {"actor": "tester", "reason": "test"}
BOTH = ("context", "question")


@dataclass(slots=True)
class ContextEncoder(FakeEncoder):
    """Reads a document's fact from the text before its span alone, as a model does: its question does not find it."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        self.calls.append(len(documents))
        return [self._stack([d.text[: span.start] for span in d.facts]) for d in documents]


@pytest.fixture
def encoder() -> ContextEncoder:
    return ContextEncoder()


def kinds(kb: KnowledgeBase, keyset_id: int) -> list[tuple[int, str]]:
    with kb.engine.connect() as connection:
        statement = "SELECT fact_id, kind FROM fact_key WHERE keyset_id = %s ORDER BY fact_id, kind"
        return [tuple(row) for row in connection.exec_driver_sql(statement, (keyset_id,))]


def found(kb: KnowledgeBase, encoder: FakeEncoder, question: str) -> str | None:
    (lookup,) = ask(kb, encoder, question)
    return lookup.hits[0].value if lookup.hits else None


def test_questions_are_keyed_once_asked_for_and_of_all_facts_from_then_on(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, PERU)
    kb.facts.add("Who was it?", "Ann", **WHO)
    keyset = kb.keysets.rekey(encoder)
    assert [kind for _, kind in kinds(kb, keyset.keyset_id)] == ["context"] * 3 + ["question"]
    assert found(kb, encoder, CAPITAL) is None and found(kb, encoder, "Who was it?") == "Ann"

    heard: list[tuple[int, int]] = []
    keyset = kb.keysets.rekey(encoder, kinds=BOTH, on_facts=lambda *of: heard.append(of))
    assert heard == [(3, 3)] and keyset.num_unkeyed == 0
    assert [kind for _, kind in kinds(kb, keyset.keyset_id)] == [*BOTH * 3, "question"]
    assert found(kb, encoder, CAPITAL) == "Lima"
    assert best(kb, encoder, PERU.text[: PERU.facts[0].start]).value == "Lima"

    ingest(kb, *numbered(3), corpus="more")
    assert kb.keysets.show(kb.keysets.active().keyset_id).num_unkeyed == 3
    keyset = kb.keysets.rekey(encoder, corpus="more")  # asked for once, not again
    assert keyset.num_keys == 7 + 6 and keyset.num_unkeyed == 0
    assert found(kb, encoder, "Question 1?") == "value 1"
    assert kb.keysets.rekey(encoder).num_keys == 13 and kb.upkeep.fsck().ok


def test_a_corpus_alone_is_keyed_by_questions_and_the_rest_counts_as_unkeyed(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, PERU)
    ingest(kb, *numbered(2), corpus="more")
    kb.keysets.rekey(encoder)
    keyset = kb.keysets.rekey(encoder, corpus="more", kinds=BOTH)
    assert (keyset.num_keys, keyset.num_unkeyed) == (3 + 4, 3)
    assert found(kb, encoder, "Question 1?") == "value 1" and found(kb, encoder, CAPITAL) is None


def test_k_facts_are_found_though_each_takes_two_places_in_the_search(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, *numbered(40))
    kb.keysets.rekey(encoder, kinds=BOTH)
    for k in (1, 7, 39, 40):
        (lookup,) = ask(kb, encoder, "Question 3?", k=k, threshold=-1)
        facts = [hit.fact_id for hit in lookup.hits]
        assert len(facts) == len(set(facts)) == k and lookup.hits[0].value == "value 3"
    vectors = {d.facts[0].value: encoder.encode_documents([d])[0][0] for d in numbered(40)}
    query = encoder.encode_questions(["Question 3?"])[0]
    asked = encoder.encode_questions([f"Question {n}?" for n in range(40)])
    stored = [np.stack([vectors[f"value {n}"], asked[n]]).astype("<f2").astype(np.float32) for n in range(40)]
    expected = sorted(((keys @ query).max() for keys in stored), reverse=True)
    assert [hit.score for hit in lookup.hits] == pytest.approx(expected, abs=1e-4)


def test_a_deleted_fact_is_found_by_neither_key_and_an_erased_one_has_none(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    from colmlm.kb.removal.erase import Erasure

    ingest(kb, PERU)
    keyset = kb.keysets.rekey(encoder, kinds=BOTH)
    lima = fact_id(kb, "Lima")
    before = PERU.text[: PERU.facts[0].start]
    kb.facts.delete([lima], **WHO)
    assert found(kb, encoder, CAPITAL) is None and found(kb, encoder, before) is None
    kb.facts.restore([lima], **WHO)
    assert found(kb, encoder, CAPITAL) == "Lima"
    Erasure(kb).erase([lima], **WHO)
    assert len(kinds(kb, keyset.keyset_id)) == 4 and found(kb, encoder, CAPITAL) is None


def test_a_corrected_question_is_keyed_anew_and_the_old_one_finds_nothing(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, document("peru", "Its capital is ", ("Lima", "What is its capital?"), ". It is old."))
    kb.keysets.rekey(encoder, kinds=BOTH)
    ingest(kb, document("peru", "Its capital is ", ("Lima", "Which city rules it?"), ". It is old."))
    assert found(kb, encoder, "What is its capital?") is None
    kb.keysets.rekey(encoder)
    assert found(kb, encoder, "Which city rules it?") == "Lima"
    assert found(kb, encoder, "What is its capital?") is None
    ingest(kb, document("peru", "Now its capital is ", ("Lima", "Which city rules it?"), ". It is old."))
    keyset = kb.keysets.rekey(encoder)
    live = {fact.fact_id for fact in kb.facts.find()}
    assert [kind for of, kind in kinds(kb, keyset.keyset_id) if of in live] == list(BOTH)
    assert best(kb, encoder, "Now its capital is ").value == "Lima" and kb.upkeep.fsck().ok


SEAT = "Where does Peru's government sit?"


def test_a_question_that_a_person_wrote_is_found_whatever_the_keyset_keys(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, PERU)
    keyset = kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    kb.facts.edit(lima, question=SEAT, **WHO)
    assert kb.keysets.show(keyset.keyset_id).num_unkeyed == 1
    assert kb.keysets.key_facts(encoder, [lima], most=8)
    assert found(kb, encoder, SEAT) == "Lima"
    assert kinds(kb, keyset.keyset_id) == [
        (lima, "context"),
        (lima, "question"),
        *[(n, "context") for n in (2, 3)],
    ]
    assert not kb.keysets.has_question_keys(keyset.keyset_id), "the keyset chose none"
    assert kb.keysets.rekey(encoder).num_keys == 4 and kb.upkeep.fsck().ok


def test_the_next_keyset_keys_what_people_wrote_and_what_they_marked(
    kb: KnowledgeBase, encoder: ContextEncoder
):
    ingest(kb, PERU)
    ingest(kb, *numbered(2), corpus="more")
    kb.keysets.rekey(encoder)
    kb.facts.edit(fact_id(kb, "Lima"), question=SEAT, **WHO)
    marked = kb.facts.add_to(1, {"text": "South America"}, question="Where is Peru?", **WHO).fact_ids[0]
    later = ContextEncoder("later")
    keyset = kb.keysets.rekey(later)
    assert keyset.num_unkeyed == 0
    asked = [fact for fact, kind in kinds(kb, keyset.keyset_id) if kind == "question"]
    assert asked == [fact_id(kb, "Lima"), marked]
    activated(kb, keyset.keyset_id)
    assert [found(kb, later, one) for one in (SEAT, "Where is Peru?")] == ["Lima", "South America"]
    assert found(kb, later, "Question 1?") is None


def test_another_question_takes_the_key_of_the_one_before(kb: KnowledgeBase, encoder: ContextEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    for question in (SEAT, "Which city governs Peru?"):
        kb.facts.edit(lima, question=question, **WHO)
        kb.keysets.key_facts(encoder, [lima], most=8)
    assert [found(kb, encoder, one) for one in (SEAT, "Which city governs Peru?")] == [None, "Lima"]


def test_a_document_that_changes_keeps_the_question_of_a_person(kb: KnowledgeBase, encoder: ContextEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.facts.edit(fact_id(kb, "Lima"), question=SEAT, **WHO)
    text = f"As is known. {PERU.text}"
    moved = tuple(replace(span, start=span.start + 13, end=span.end + 13) for span in PERU.facts)
    ingest(kb, replace(PERU, text=text, facts=moved))
    kb.keysets.rekey(encoder)
    assert found(kb, encoder, SEAT) == "Lima"


def test_predicted_keys_do_not_stand_for_what_a_person_wrote(kb: KnowledgeBase, encoder: ContextEncoder):
    ingest(kb, *numbered(40))
    kb.keysets.rekey(encoder)
    kb.facts.edit(fact_id(kb, "value 7"), question="Which is the seventh?", **WHO)
    kb.keysets.rekey(encoder)
    later = ContextEncoder("later")
    keyset, _ = kb.keysets.adapt(later, sample=12)
    (lookup,) = kb.lookups.in_keyset(keyset.keyset_id).find(
        later.encode_questions(["Which is the seventh?"]), checkpoint_id=later.checkpoint.checkpoint_id
    )
    assert lookup.hits[0].value == "value 7" and lookup.hits[0].score > 0.99
