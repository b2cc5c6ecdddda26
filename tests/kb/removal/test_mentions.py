"""What else says an erased fact: redacted as far as that was asked for, and otherwise named with where it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.facts.suppression import Digests
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.records import Stretch
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ErasedTextRow, SuppressionRow
from colmlm.kb.texts.wording import normalise_wording, normalised_before
from tests.kb.corpora import CAPITAL, document, fact_id, ingest
from tests.spellings import SPELLINGS

BY = {"actor": "tester", "reason": "request"}
GONE = MARK * 4
PERU = document(
    "peru", "Of LIMA: the capital is ", ("Lima", CAPITAL), ". Lima\u2019s port, and ", ("lima", "Beans?"), "."
)
OTHER = replace(
    document("coast", "On the coast lies Ｌｉｍａ, in ", ("Peru", "Where?"), "."), title="Lima and around"
)


@pytest.fixture
def lands(kb: KnowledgeBase) -> KnowledgeBase:
    kb.corpora.ingest([Parsed(PERU), Parsed(OTHER)], "lands", actor="tester", reason="of lima")
    return kb


def texts(kb: KnowledgeBase) -> list[str]:
    return [kb.documents.text(number) for number in (1, 2)]


def where(text: str, word: str) -> tuple[Stretch, ...]:
    return (Stretch(text.index(word), text.index(word) + len(word)),)


def test_the_same_document_says_it_no_more_but_where_another_fact_stands(lands: KnowledgeBase) -> None:
    lima, beans = (f.fact_id for f in lands.facts.find(document_id=1))
    preview = Erasure(lands).preview([lima])
    done = Erasure(lands).erase([lima], **BY).erased
    assert preview.left == done.left
    assert texts(lands) == [
        f"Of {GONE}: the capital is {GONE}. {GONE}\u2019s port, and lima.",
        OTHER.text,
    ]
    assert lands.facts.show(beans).value == "lima"
    left = done.left
    own, other = left.documents
    assert (own.document_id, own.own, own.spans) == (1, True, where(texts(lands)[0], "lima"))
    assert (other.document_id, other.own, other.spans) == (2, False, where(OTHER.text, "Ｌｉｍａ"))
    assert (left.titles, left.facts, left.reasons) == ((2,), (beans,), (1,))
    assert lands.upkeep.fsck().ok


def test_the_same_file_comes_in_again_as_it_stands(lands: KnowledgeBase) -> None:
    Erasure(lands).erase([lands.facts.find(document_id=1)[0].fact_id], **BY)
    assert ingest(lands, PERU).unchanged == 1


def test_all_documents_are_redacted_on_request(lands: KnowledgeBase) -> None:
    done = Erasure(lands).erase([lands.facts.find(document_id=1)[0].fact_id], **BY, mentions="all").erased
    assert texts(lands)[1] == OTHER.text.replace("Ｌｉｍａ", GONE)
    assert done.documents == (1, 2) and [one.document_id for one in done.left.documents] == [1]
    assert lands.facts.show(fact_id(lands, "Peru")).value == "Peru" and lands.upkeep.fsck().ok


def test_none_leaves_every_mention_and_says_where(kb: KnowledgeBase) -> None:
    alone = document("a", "Cusco is old: ", ("Cusco", "Which?"), ".")
    ingest(kb, alone)
    said = kb.outputs.record(NewOutput("Cusco?", "yes", "fake", "auto", kb.log.head_seq(), ()))
    done = Erasure(kb).erase([fact_id(kb, "Cusco")], **BY, mentions="none").erased
    assert kb.documents.text(1) == f"Cusco is old: {MARK * 5}."
    assert [one.spans for one in done.left.documents] == [(Stretch(0, 5),)]
    assert done.left.generations == (said,) and kb.outputs.trace(said).prompt == "Cusco?"
    assert kb.upkeep.fsck().ok


def test_what_is_stored_about_documents_is_redacted_or_named(kb: KnowledgeBase) -> None:
    about = {"licence": "by Lima (CC BY)", "revision": "Lima, 2"}
    named = {"title": "Of Lima", "uri": "https://example.org/Lima", "external_id": "lima"}
    own, other = replace(PERU, **about, **named), replace(OTHER, **about, title="Coast")
    kb.corpora.ingest([Parsed(own), Parsed(other)], "lands", actor="tester", reason="test")
    lima = kb.facts.find(document_id=1)[0].fact_id
    done = Erasure(kb).erase([lima], **BY).erased
    shown, others = kb.documents.read(1)[0], kb.documents.read(2)[0]
    assert (shown.licence, shown.revision) == (f"by {GONE} (CC BY)", f"{GONE}, 2")
    assert (shown.title, shown.uri, shown.external_id) == tuple(named.values())
    assert (others.licence, done.left.titles) == (about["licence"], (1, 2))
    assert ingest(kb, own).unchanged == 1 and kb.corpora.standings("lands").standing_of(own) == "unchanged"
    assert kb.upkeep.fsck().ok


def test_what_is_stored_about_every_document_is_redacted_on_request(kb: KnowledgeBase) -> None:
    plain = document("plain", "Nothing.")
    texts = {name: f"of lima, {name}" for name in ("title", "uri", "licence", "revision")}
    kb.corpora.ingest([Parsed(PERU), Parsed(replace(plain, **texts))], "lands", actor="tester", reason="test")
    done = Erasure(kb).erase([kb.facts.find(document_id=1)[0].fact_id], **BY, mentions="all").erased
    shown, _ = kb.documents.read(2)
    assert done.documents == (1, 2) and done.left.titles == (2,)
    assert {name: getattr(shown, name) for name in texts} == {
        "title": texts["title"],
        "uri": texts["uri"],
        "licence": f"of {GONE}, licence",
        "revision": f"of {GONE}, revision",
    }


@dataclass(frozen=True)
class Spelt:
    """A value of its own in another spelling: the document that states it, another, and an output that says it."""

    name: str
    value: str
    stored: str
    own: AnnotatedDocument
    other: AnnotatedDocument
    output: int

    @classmethod
    def into(cls, kb: KnowledgeBase, number: int, name: str) -> Spelt:
        # Two letters at the end of its last word make it the value of no other spelling.
        ending = "abcdefg"[number // 7] + "abcdefg"[number % 7]
        value, stored = (re.sub(r"(\w)([^\w]*|_)$", rf"\1{ending}\2", said) for said in SPELLINGS[name])
        own = document(f"own {number}", f"It is {stored}: ", (value, "Which is it?"), ".")
        other = document(f"other {number}", f"Also {stored} says it; ", ("Peru", "Where?"), ".")
        ingest(kb, own, other)
        said = NewOutput(f"{stored}?", "yes", "fake", "auto", kb.log.head_seq(), ())
        return cls(name, value, stored, own, other, kb.outputs.record(said))


def documents_of(kb: KnowledgeBase) -> dict[str, int]:
    return {one.external_id: one.document_id for one in kb.documents.find(corpus="lands", limit=100)}


def test_a_value_in_another_spelling_is_redacted_and_stays_out(
    kb: KnowledgeBase, subtests: pytest.Subtests
) -> None:
    spelt = [Spelt.into(kb, number, name) for number, name in enumerate(SPELLINGS)]
    assert len({normalise_wording(one.value) for one in spelt}) == len(SPELLINGS)
    done = Erasure(kb).erase([fact_id(kb, one.value) for one in spelt], **BY, mentions="all").erased
    assert not done.left
    told = documents_of(kb)
    for one in spelt:
        with subtests.test(spelling=one.name):
            bare = one.stored.strip("_*`")
            shown = [kb.documents.text(told[document.external_id]) for document in (one.own, one.other)]
            assert not any(bare in text for text in (*shown, kb.outputs.trace(one.output).prompt))
            assert [len(text) for text in shown] == [len(one.own.text), len(one.other.text)]
            assert ingest(kb, one.own).unchanged == 1
            restated = document(one.own.external_id, "Now: ", (one.stored, "What?"), " it is.")
            assert ingest(kb, restated).suppressed == 1
            now = documents_of(kb)[restated.external_id]
            assert now != told[restated.external_id] and bare not in kb.documents.text(now)
    assert len(kb.facts.find(text="Peru")) == len(SPELLINGS) and kb.upkeep.fsck().ok


def test_a_value_with_a_sign_of_its_own_takes_no_others_with_it(kb: KnowledgeBase) -> None:
    said = "To find a short route, a planner runs a search called "
    own = document(
        "own", said, ("A*", "Which search?"), ". It is a *fast* one. D is a letter: ", ("D", "Which?")
    )
    ingest(kb, own)
    asked = [NewOutput(f"{one}?", "yes", "fake", "auto", kb.log.head_seq(), ()) for one in ("A*", "a", "D*")]
    outputs = [kb.outputs.record(output) for output in asked]
    Erasure(kb).erase([fact_id(kb, "A*")], **BY, mentions="all")
    assert kb.documents.text(1) == own.text.replace("A*", MARK * 2)
    assert [kb.outputs.trace(output).prompt for output in outputs] == [f"{MARK * 2}?", "a?", "D*?"]
    starred = document("starred", ("D*", "Which star?"), " is another.")
    ingest(kb, starred)
    Erasure(kb).erase([fact_id(kb, "D*")], **BY)
    assert kb.outputs.trace(outputs[2]).prompt == f"{MARK * 2}?"
    restated = document("starred", ("D", "Which star?"), " is another.")
    assert not ingest(kb, restated).suppressed and kb.upkeep.fsck().ok


def test_what_an_earlier_release_left_about_a_document_goes_when_it_is_erased_again(
    kb: KnowledgeBase,
) -> None:
    kb.corpora.ingest([Parsed(PERU)], "lands", actor="tester", reason="test")
    lima = kb.facts.find(document_id=1)[0].fact_id
    Erasure(kb).erase([lima], **BY)
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE document SET licence = 'by Lima', revision = 'Cusco, 2'"))
    again = Erasure(kb).erase([lima], **BY).erased
    shown, _ = kb.documents.read(1)
    assert (shown.licence, shown.revision, again.documents) == (f"by {GONE}", "Cusco, 2", (1,))
    assert Erasure(kb).erase([lima], **BY).erased.seq is None


@pytest.mark.parametrize("value", ["Brien_\u2019s Rock", "10\uff5e20", "in C:\\x"])
def test_what_an_earlier_release_digested_stays_out(kb: KnowledgeBase, value: str) -> None:
    own = document("own", "It is ", (value, "Which is it?"), ".")
    ingest(kb, own)
    erased = fact_id(kb, value)
    Erasure(kb).erase([erased], **BY)
    before = normalised_before(value)
    with kb.sessions.begin() as session:
        digests = Digests.of(session)
        place = (own.external_id, str(own.facts[0].start))
        session.execute(text("DELETE FROM suppression"))
        session.execute(text("DELETE FROM erased_text"))
        made = digests._make(("place", before, *place))
        session.add(SuppressionRow(digest=made, seq=kb.log.head_seq()))
        session.add(
            ErasedTextRow(
                fact_id=erased,
                digest=digests.of_words(before.split(" ")),
                first_word=digests.of_first_word(before.split(" ")[0]),
                num_words=len(before.split(" ")),
                seq=kb.log.head_seq(),
                everywhere=True,
            )
        )
    assert "Rock" not in value or before != normalise_wording(value)
    assert ingest(kb, own).suppressed == 1
    output = NewOutput(f"{value}?", "yes", "fake", "auto", 1, ())
    assert value not in kb.outputs.trace(kb.outputs.record(output)).prompt
