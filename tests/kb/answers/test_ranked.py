"""Ranked lookups: what is spliced is a live fact, whatever found it, and nothing where a deleted one would be it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import InvalidQuery, KeysetMismatch
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, SayingReader, WordEncoder, activated
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, document, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
NOWHERE = "Nothing that is known"
Find = Callable[..., Lookup]


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def andes(kb: KnowledgeBase, encoder: WordEncoder) -> KnowledgeBase:
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    return kb


@pytest.fixture
def find(andes: KnowledgeBase, encoder: WordEncoder) -> Find:
    """A function that looks up one text, by the query of another where one is given."""

    def one(
        text: str, ranking: str, *, query: str = "", reader: JudgedReader | None = None, **options
    ) -> Lookup:
        ranked = RankedLookups(andes, lambda: reader or NearReader())
        queries, of = encoder.encode_questions([query or text]), encoder.checkpoint.checkpoint_id
        (found,) = ranked.find(queries, checkpoint_id=of, ranking=ranking, texts=[text], **options)
        return found

    return one


def said(found: Lookup) -> list[str]:
    return [hit.value for hit in found.hits]


def test_by_key_it_is_the_lookup_that_it_always_was(andes: KnowledgeBase, encoder: WordEncoder):
    asked = encoder.encode_questions([CAPITAL, HEIGHT, NOWHERE])
    of, ranked = encoder.checkpoint.checkpoint_id, RankedLookups(andes, NearReader)
    assert ranked.find(asked, checkpoint_id=of, k=3) == andes.lookups.find(asked, checkpoint_id=of, k=3)
    assert ranked.find(asked, checkpoint_id=of, ranking="key", texts=["", "", ""]) == ranked.find(
        asked, checkpoint_id=of
    )


def test_words_find_what_the_key_does_not(find: Find):
    text = "In its mountains rises the"
    assert said(find(text, "key", query=NOWHERE)) == []
    assert said(find(text, "words", query=NOWHERE, threshold=0.0)) == ["Amazon"]


def test_by_words_the_threshold_is_the_keysets_and_holds_for_cosine_and_words(find: Find):
    near, far = find(CAPITAL, "words"), find("In its mountains rises the", "words", query=NOWHERE)
    assert said(near) == ["Lima"] and 1 < near.hits[0].score <= 1.1
    assert far.threshold == near.threshold == 0.7
    assert not far.hits and far.runner_up is not None and far.runner_up < 0.7


def test_a_text_without_words_is_found_by_its_key_alone(find: Find):
    found = find("", "words", query=CAPITAL)
    assert said(found) == ["Lima"] and found.hits[0].score == pytest.approx(1.0, abs=0.01)


def test_the_fact_under_the_place_that_is_read_is_found(find: Find, andes: KnowledgeBase):
    found = find(CAPITAL, "reader", query=NOWHERE)
    (hit,) = found.hits
    assert (hit.value, hit.fact_id, hit.version, hit.key_id) == ("Lima", fact_id(andes, "Lima"), 1, None)
    assert 0.5 < hit.score <= 1 and found.threshold == 0.5 and found.seq == andes.log.head_seq()


def test_a_corrected_fact_is_found_as_it_is_now(find: Find, andes: KnowledgeBase):
    andes.facts.edit(fact_id(andes, "Lima"), value="Cusco Region", **WHO)
    for ranking in ("words", "reader"):
        (hit,) = find(CAPITAL, ranking).hits
        assert (hit.value, hit.version) == ("Cusco Region", 2)


def test_nothing_is_found_in_place_of_a_deleted_fact_that_the_reader_would_take(
    find: Find, andes: KnowledgeBase
):
    lima = fact_id(andes, "Lima")
    andes.facts.delete([lima], **WHO)
    found = find(CAPITAL, "reader")
    assert (found.hits, found.abstained, found.runner_up) == ((), lima, None)
    assert find(CAPITAL, "reader", threshold=1.0).abstained is None  # it was not sure enough of that
    assert "Lima" not in said(find(CAPITAL, "words", threshold=-1.0))
    andes.facts.restore([lima], **WHO)
    assert said(find(CAPITAL, "reader")) == said(find(CAPITAL, "words")) == ["Lima"]


def test_a_tombstone_that_is_nearest_by_key_and_words_hides_what_is_behind_it(
    find: Find, andes: KnowledgeBase
):
    lima = fact_id(andes, "Lima")
    andes.facts.delete([lima], **WHO, abstain=True)
    assert (find(CAPITAL, "words").hits, find(CAPITAL, "words").abstained) == ((), lima)


def test_a_fact_that_is_deleted_while_the_reader_reads_is_not_found(find: Find, andes: KnowledgeBase):
    lima = fact_id(andes, "Lima")
    deleted = []

    def delete_once() -> None:
        if not deleted:
            deleted.append(andes.facts.delete([lima], **WHO))

    found = find(CAPITAL, "reader", reader=NearReader(delete_once))
    assert (found.hits, found.abstained, found.seq) == ((), lima, deleted[0].seq)


def test_a_fact_that_is_deleted_behind_the_search_for_words_is_not_found(
    andes: KnowledgeBase, encoder: WordEncoder
):
    class Deleting(type(andes.words)):  # type: ignore[misc]
        def find(self, *asked, **options):
            found = super().find(*asked, **options)
            if one := andes.facts.find(text="Lima"):
                andes.facts.delete([one[0].fact_id], **WHO)
            return found

    andes.words = Deleting()
    (found,) = RankedLookups(andes, NearReader).find(
        encoder.encode_questions([CAPITAL]),
        checkpoint_id=encoder.checkpoint.checkpoint_id,
        ranking="words",
        texts=[CAPITAL],
        threshold=-1.0,
    )
    assert found.hits and "Lima" not in said(found)


def test_texts_that_change_all_the_time_are_refused(find: Find, andes: KnowledgeBase):
    lima, values = fact_id(andes, "Lima"), iter(f"City {n}" for n in range(99))
    changing = NearReader(lambda: andes.facts.edit(lima, value=next(values), **WHO))
    with pytest.raises(InvalidQuery, match="keep changing"):
        find(CAPITAL, "reader", reader=changing)


def test_below_the_threshold_nothing_is_found(find: Find):
    found = find(CAPITAL, "reader", threshold=1.0)
    assert not found.hits and found.runner_up is not None and found.runner_up < 1
    assert find("Who discovered hydrogen?", "reader").hits == ()


def test_a_place_that_is_hardly_its_fact_splices_nothing(kb: KnowledgeBase, encoder: WordEncoder):
    ingest(kb, document("oslo", "The harbour was opened by King Harald The ", ("V", "Which of them?"), "."))
    kb.keysets.rekey(encoder)
    text = "Who opened the harbour?"
    (found,) = RankedLookups(kb, NearReader).find(
        encoder.encode_questions([text]),
        checkpoint_id=encoder.checkpoint.checkpoint_id,
        ranking="reader",
        texts=[text],
        threshold=0.0,
    )
    assert (found.hits, found.runner_up, found.abstained) == ((), None, None)


def test_a_fact_without_a_document_is_found(find: Find, andes: KnowledgeBase, encoder: WordEncoder):
    question = "What is the capital of Ecuador?"
    andes.facts.add(question, "Quito", **WHO)
    assert said(find(question, "reader")) == ["Quito"]  # a reader needs no key of it
    andes.keysets.rekey(encoder)
    assert said(find(question, "words")) == ["Quito"]


def test_rows_are_answered_together_as_they_are_alone(find: Find, andes: KnowledgeBase, encoder: WordEncoder):
    texts = [CAPITAL, "Who discovered hydrogen?", HEIGHT]
    asked = encoder.encode_questions(texts)
    for ranking in ("words", "reader"):
        together = RankedLookups(andes, NearReader).find(
            asked, checkpoint_id=encoder.checkpoint.checkpoint_id, ranking=ranking, texts=texts
        )
        alone = [find(text, ranking) for text in texts]
        assert [said(one) for one in together] == [said(one) for one in alone] == [["Lima"], [], ["6,768 m"]]
        assert [one.seq for one in together] == [andes.log.head_seq()] * 3


@pytest.mark.parametrize("ranking", ["words", "reader"])
def test_a_change_is_waited_for(find: Find, andes: KnowledgeBase, ranking: str):
    seq = andes.facts.edit(fact_id(andes, "Lima"), value="Cusco", **WHO).seq
    found = find(CAPITAL, ranking, min_seq=seq)
    assert said(found) == ["Cusco"] and found.seq >= seq
    with raises_code("NoSuchChange"):
        find(CAPITAL, ranking, min_seq=seq + 1)


@pytest.mark.parametrize("ranking", ["words", "reader"])
def test_queries_of_another_checkpoint_are_refused(andes: KnowledgeBase, ranking: str):
    other = WordEncoder(salt="other")
    with pytest.raises(KeysetMismatch):
        RankedLookups(andes, NearReader).find(
            other.encode_questions([CAPITAL]),
            checkpoint_id=other.checkpoint.checkpoint_id,
            ranking=ranking,
            texts=[CAPITAL],
        )


def test_a_keyset_that_is_activated_before_the_end_is_noticed(andes: KnowledgeBase, encoder: WordEncoder):
    query, of = encoder.encode_questions([CAPITAL]), encoder.checkpoint.checkpoint_id
    (near,) = andes.lookups.nearest(query, checkpoint_id=of, k=1)
    activated(andes, andes.keysets.rekey(WordEncoder(salt="newer")).keyset_id)
    with pytest.raises(KeysetMismatch):
        andes.searcher.among(
            query, [{hit.key_id: 0.0 for hit in near.hits}], checkpoint_id=of, threshold=None, seq=1
        )


def test_what_cannot_be_ranked_so_is_refused(
    andes: KnowledgeBase, encoder: WordEncoder, subtests: pytest.Subtests
):
    for options, cause in (
        ({"ranking": "guess", "texts": [CAPITAL]}, "not one of key, words, reader"),
        ({"ranking": "words", "texts": []}, "a text for each query: 0 for 1"),
        ({"ranking": "reader", "texts": [CAPITAL], "k": 2}, "Leave k out"),
        ({"ranking": "words", "texts": [CAPITAL], "threshold": 2.0}, "no.* a cosine"),
    ):
        with subtests.test(options=options, cause=cause), pytest.raises(InvalidQuery, match=cause):
            RankedLookups(andes, NearReader).find(
                encoder.encode_questions([CAPITAL]), checkpoint_id=encoder.checkpoint.checkpoint_id, **options
            )


def test_the_past_is_ranked_by_key_alone(andes: KnowledgeBase, encoder: WordEncoder):
    asked = encoder.encode_questions([CAPITAL])
    past = andes.lookups.as_of(andes.log.head_seq())
    with pytest.raises(InvalidQuery, match="by key alone"):
        past.find(asked, checkpoint_id=encoder.checkpoint.checkpoint_id, ranking="reader", texts=[CAPITAL])


@pytest.mark.parametrize("ranking", ["key", "words", "reader"])
def test_steady_lookups_end_in_the_keyset_that_they_began_in(
    andes: KnowledgeBase, encoder: WordEncoder, ranking: str
):
    steady, strict = RankedLookups(andes, NearReader, steady=True), RankedLookups(andes, NearReader)

    def values(ranked: RankedLookups) -> list[str]:
        (found,) = ranked.find(
            encoder.encode_questions([CAPITAL]),
            checkpoint_id=encoder.checkpoint.checkpoint_id,
            ranking=ranking,
            texts=[CAPITAL],
        )
        return said(found)

    assert values(steady) == values(strict) == ["Lima"]
    second = andes.keysets.rekey(WordEncoder(salt="other")).keyset_id
    activated(andes, second)
    assert values(steady) == ["Lima"]
    with pytest.raises(KeysetMismatch):
        values(strict)
    andes.facts.delete([fact_id(andes, "Lima")], **WHO)
    assert values(steady) == []
    andes.keysets.rollback()
    assert values(steady) == values(strict) == []
    activated(andes, second)
    andes.keysets.retire(second - 1)
    with pytest.raises(KeysetMismatch):
        values(steady)


def test_the_fact_that_asks_the_text_itself_is_found_though_nothing_is_read(
    andes: KnowledgeBase, find: Find
) -> None:
    leak, deaf = "Whom do I call about a leak?", SayingReader("nothing at all")
    (added,) = andes.facts.add(leak, "Miriam Okafor", **WHO).fact_ids
    found = find(leak, "reader", reader=deaf)
    assert [(hit.fact_id, hit.score) for hit in found.hits] == [(added, 0.99)]
    assert not find("Whom do I call about a flood?", "reader", reader=deaf).hits
    andes.facts.delete([added], **WHO)
    assert not find(leak, "reader", reader=deaf).hits


def test_the_question_of_a_tombstone_gets_none_even_where_the_reader_is_sure_of_another(
    andes: KnowledgeBase, find: Find
):
    fooled = SayingReader("Santiago")
    assert said(find(CAPITAL, "reader", reader=fooled)) == ["Lima"], "its own question"
    lima = fact_id(andes, "Lima")
    andes.facts.delete([lima], abstain=True, **WHO)
    found = find(CAPITAL, "reader", reader=fooled)
    assert (found.hits, found.abstained) == ((), lima)
