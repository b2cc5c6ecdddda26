"""What else says an erased fact: redacted as far as that was asked for, and otherwise named with where it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.erasure.records import Stretch
from colmlm.kb.erasure.verbs import Erasure
from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import CAPITAL, document, fact_id, ingest

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
