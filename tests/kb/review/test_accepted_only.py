"""Accepted facts alone answer where a lookup, a keyset or a corpus says so; proposed ones are marked elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.lookup.options import EVERY_FACT
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, ask, document, fact_id, ingest

WHO = {"actor": "ann", "reason": "read"}
HARBOUR = "Which harbour is the largest?"


def propose(kb: KnowledgeBase, *documents: Any, corpus: str = "raw") -> None:
    kb.corpora.ingest(
        [Parsed(d) for d in documents], corpus, generated=True, actor="annotator", reason="added"
    )


@pytest.fixture
def harbours(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Forty proposed facts that answer a question as well as one accepted fact, which is the youngest."""
    propose(kb, *(document(f"p{n}", "There lies ", (f"Port {n}", HARBOUR), ".") for n in range(40)))
    ingest(kb, document("a", "There lies ", ("Callao", HARBOUR), "."))
    kb.keysets.rekey(encoder)
    return kb


def test_hits_say_whether_their_fact_was_reviewed(harbours: KnowledgeBase, encoder: FakeEncoder):
    (lookup,) = ask(harbours, encoder, HARBOUR, k=41)
    reviews = {hit.value: hit.review for hit in lookup.hits}
    assert len(reviews) == 41 and reviews["Callao"] == "accepted" and reviews["Port 3"] == "proposed"


def test_an_accepted_fact_behind_proposed_ones_is_found(harbours: KnowledgeBase, encoder: FakeEncoder):
    (lookup,) = ask(harbours, encoder, HARBOUR, accepted_only=True)
    assert [hit.value for hit in lookup.hits] == ["Callao"]
    (lookup,) = ask(harbours, encoder, HARBOUR, k=5, accepted_only=True)
    assert [hit.value for hit in lookup.hits] == ["Callao"]
    (lookup,) = ask(harbours, encoder, HARBOUR)
    assert [hit.review for hit in lookup.hits] == ["proposed"]


def test_a_corpus_or_a_keyset_limits_every_lookup_from_the_commit_on(
    harbours: KnowledgeBase, encoder: FakeEncoder
):
    port = fact_id(harbours, "Port 7")
    harbours.review.settle([ReviewVerdict(port, "accept", 1)], **WHO)
    for limit in ({"corpus": "raw"}, {"keyset_id": harbours.keysets.active().keyset_id}):
        harbours.review.limit(accepted_only=True, **limit, **WHO)
        (lookup,) = ask(harbours, encoder, HARBOUR, k=50)
        assert {hit.value for hit in lookup.hits} == {"Callao", "Port 7"}
        queries = encoder.encode_questions([HARBOUR])
        (near,) = harbours.lookups.nearest(queries, checkpoint_id="fake", k=50, fact_filter=EVERY_FACT)
        assert len(near.hits) == 41, "who curates or forgets sees all"
        harbours.review.limit(accepted_only=False, **limit, **WHO)
        (lookup,) = ask(harbours, encoder, HARBOUR, k=50)
        assert len(lookup.hits) == 41
    assert harbours.keysets.active().accepted_only is False


def test_a_retraining_opens_nothing_that_was_limited(harbours: KnowledgeBase):
    harbours.review.limit(accepted_only=True, keyset_id=harbours.keysets.active().keyset_id, **WHO)
    newer = FakeEncoder("newer")
    made = harbours.keysets.rekey(newer).keyset_id
    harbours.keysets.activate(made, force=True)
    (lookup,) = ask(harbours, newer, HARBOUR, k=50)
    assert harbours.keysets.active().keyset_id == made and [hit.value for hit in lookup.hits] == ["Callao"]


def test_another_corpus_answers_as_before(harbours: KnowledgeBase, encoder: FakeEncoder):
    propose(harbours, document("q", "Beside it lies ", ("Ancón", HARBOUR), "."), corpus="others")
    harbours.keysets.rekey(encoder)
    harbours.review.limit(accepted_only=True, corpus="raw", **WHO)
    (lookup,) = ask(harbours, encoder, HARBOUR, k=50)
    assert {hit.value for hit in lookup.hits} == {"Callao", "Ancón"}


def test_the_past_is_looked_up_whatever_was_accepted_then(harbours: KnowledgeBase, encoder: FakeEncoder):
    harbours.review.limit(accepted_only=True, corpus="raw", **WHO)
    past = harbours.lookups.as_of(harbours.log.head_seq())
    queries = encoder.encode_questions([HARBOUR])
    (found,) = past.find(queries, checkpoint_id="fake", k=50)
    assert len(found.hits) == 41 and {hit.review for hit in found.hits} == {"accepted", "proposed"}
    with pytest.raises(InvalidQuery, match="past"):
        past.find(queries, checkpoint_id="fake", accepted_only=True)


def test_a_rejected_fact_is_no_hit_from_the_commit_on(harbours: KnowledgeBase, encoder: FakeEncoder):
    port = fact_id(harbours, "Port 0")
    harbours.review.settle([ReviewVerdict(port, "reject", 1)], **WHO)
    (lookup,) = ask(harbours, encoder, HARBOUR, k=50)
    assert "Port 0" not in {hit.value for hit in lookup.hits} and len(lookup.hits) == 40


@pytest.fixture
def words() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def answers(kb: KnowledgeBase, words: WordEncoder) -> Answering:
    propose(kb, PERU)
    ingest(kb, CHILE)
    kb.keysets.rekey(words)
    return Answering(kb, Questions(kb, [words]), NearReader())


def test_answers_mark_what_nobody_has_reviewed_and_leave_it_out_where_asked(
    answers: Answering, kb: KnowledgeBase
):
    found = answers.ask(CAPITAL)
    lima = fact_id(kb, "Lima")
    assert (found.answer, found.unreviewed) == ("Lima", (lima,))
    without = answers.ask(CAPITAL, accepted_only=True)
    assert without.answer != "Lima" and not without.withheld and not without.unreviewed
    assert all(fact.review == "accepted" for passage in without.nearest for fact in passage.facts)
    kb.review.settle([ReviewVerdict(lima, "accept", 1)], **WHO)
    found = answers.ask(CAPITAL, accepted_only=True)
    assert (found.answer, found.unreviewed) == ("Lima", ())


def test_a_corpus_limits_answers_too_also_by_the_nearest_fact(answers: Answering, kb: KnowledgeBase):
    assert answers.nearest_fact(CAPITAL).unreviewed
    kb.review.limit(accepted_only=True, corpus="raw", **WHO)
    assert answers.ask(CAPITAL).answer != "Lima"
    assert answers.nearest_fact(CAPITAL).answer != "Lima"
    assert answers.nearest_fact("What is the capital of Chile?").answer == "Santiago"


def test_an_accepted_sentence_behind_many_proposed_ones_is_read(kb: KnowledgeBase):
    propose(
        kb,
        *(
            document(f"p{n}", "The largest harbour there is ", (f"Port {n}", "Which?"), ".")
            for n in range(60)
        ),
    )
    ingest(kb, document("a", "The largest harbour there, they say, is ", ("Callao", "What?"), "."))
    answering = Answering(kb, None, NearReader())
    assert answering.ask("What is the largest harbour?").unreviewed
    found = answering.ask("What is the largest harbour?", accepted_only=True)
    assert (found.answer, found.unreviewed) == ("Callao", ())


def test_a_fact_that_is_limited_while_it_is_read_is_not_said(answers: Answering, kb: KnowledgeBase):
    limited = []

    def limit_once() -> None:
        if not limited:
            limited.append(kb.review.limit(accepted_only=True, corpus="raw", **WHO))

    found = Answering(kb, answers.questions, NearReader(limit_once)).ask(CAPITAL)
    assert limited and found.answer != "Lima"


@pytest.mark.parametrize("ranking", ["words", "reader"])
def test_lookups_by_any_ranking_leave_proposed_facts_out(
    answers: Answering, kb: KnowledgeBase, words: WordEncoder, ranking: str
):
    lookups = RankedLookups(kb, NearReader)
    asked: dict[str, Any] = {
        "checkpoint_id": words.checkpoint.checkpoint_id,
        "ranking": ranking,
        "texts": [CAPITAL],
        "threshold": 0.0,
    }
    queries = words.encode_questions([CAPITAL])
    (found,) = lookups.find(queries, **asked)
    assert [(hit.value, hit.review) for hit in found.hits] == [("Lima", "proposed")]
    (found,) = lookups.find(queries, **asked, accepted_only=True)
    assert all(hit.review == "accepted" for hit in found.hits)
