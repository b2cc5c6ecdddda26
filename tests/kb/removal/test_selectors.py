"""Selectors: what each part matches, that parts are joined by and, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from colmlm.kb.errors import FactNotFound
from colmlm.kb.removal.selector import Selector, select_facts
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
EVERY = ["Lima", "Amazon", "6,768 m", "Santiago", "Lima"]


@pytest.fixture
def lands(kb: KnowledgeBase) -> KnowledgeBase:
    """Three facts of Peru (change 1), one of Chile (change 2), and one without a document (change 3)."""
    ingest(kb, replace(PERU, uri="https://example.org/peru", licence="CC0"))
    ingest(kb, replace(CHILE, uri="https://example.org/chile", licence="CC-BY"), corpus="others")
    kb.facts.add(CAPITAL, "Lima", **WHO)
    return kb


def chosen(kb: KnowledgeBase, **parts: object) -> list[str]:
    with kb.sessions() as session:
        ids = select_facts(session, Selector(**parts), allow_empty=True)  # type: ignore[arg-type]
    assert ids == sorted(ids)
    return [kb.facts.show(fact_id).value for fact_id in ids]


def test_each_part_matches_what_it_says_and_all_must(lands: KnowledgeBase):
    assert chosen(lands, everything=True) == EVERY
    assert chosen(lands, corpus="lands") == EVERY[:3]
    assert chosen(lands, document="lands/peru") == chosen(lands, document="1") == EVERY[:3]
    assert chosen(lands, uri="https://example.org/chile") == ["Santiago"]
    assert chosen(lands, uri_prefix="https://example.org/") == EVERY[:4]
    assert chosen(lands, uri_prefix="https://example.org/%") == []
    assert chosen(lands, licence="CC0") == EVERY[:3]
    assert chosen(lands, question=CAPITAL) == ["Lima", "Lima"]
    assert chosen(lands, text="lima") == ["Lima", "Lima"] and chosen(lands, text="CAPITAL OF") == [
        "Lima",
        "Santiago",
        "Lima",
    ]
    assert chosen(lands, first_seq=2) == ["Santiago", "Lima"] and chosen(lands, last_seq=2) == EVERY[:4]
    assert chosen(lands, fact_ids=(1, 4)) == ["Lima", "Santiago"]
    assert chosen(lands, question=CAPITAL, corpus="lands") == ["Lima"]
    assert chosen(lands, question=CAPITAL, licence="CC-BY") == []


def test_time_is_that_of_the_change_that_made_the_fact(lands: KnowledgeBase):
    first, second, _ = (change.at for change in lands.log.changes())
    assert chosen(lands, since=second) == EVERY[3:] and chosen(lands, until=first) == EVERY[:3]
    assert chosen(lands, since=first, until=second - timedelta(microseconds=1)) == EVERY[:3]


def test_facts_like_one_are_those_with_a_near_key(lands: KnowledgeBase, encoder: FakeEncoder):
    lands.keysets.rekey(encoder)
    assert chosen(lands, like=1) == ["Lima", "Lima"] and chosen(lands, like=1, corpus="lands") == ["Lima"]
    assert chosen(lands, like=2, radius=-1.0) == EVERY
    lands.facts.delete([1], **WHO)
    assert chosen(lands, like=1) == ["Lima"], "a deleted fact still says what to resemble"


def test_only_live_facts_are_chosen(lands: KnowledgeBase):
    lands.facts.delete([fact_id(lands, "Santiago")], **WHO)
    assert chosen(lands, text="Santiago") == []
    with lands.sessions() as session, raises_code("NothingSelected"):
        select_facts(session, Selector(text="Santiago"))
    with lands.sessions() as session, pytest.raises(FactNotFound) as missing:
        select_facts(session, Selector(fact_ids=(1, 99, 2**70)))
    assert missing.value.fact_ids == (99, 2**70)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"everything": True, "text": "x"},
        {"text": ""},
        {"corpus": "a\x00b"},
        {"radius": 0.5},
        {"like": 1, "radius": 1.5},
        {"like": 2**70},
        {"first_seq": -1},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
    ],
)
def test_a_selector_that_means_nothing_or_too_much_is_refused(parts: dict[str, object]):
    with raises_code("InvalidSelector"):
        Selector(**parts)  # type: ignore[arg-type]


def test_a_document_is_named_by_id_or_by_corpus_and_name(lands: KnowledgeBase):
    with lands.sessions() as session, raises_code("InvalidSelector"):
        select_facts(session, Selector(document="peru"))
    assert chosen(lands, document="9" * 30 + "/x") == []


def test_a_selector_comes_back_from_json(lands: KnowledgeBase):
    said = Selector(fact_ids=(1, 2), text="Lima", since=datetime(2026, 1, 1, tzinfo=UTC), like=1, radius=0.5)
    assert Selector.from_json(said.to_json()) == said
    assert Selector.from_json({"everything": True}) == Selector(everything=True)
    with raises_code("InvalidSelector"):
        Selector.from_json({"txet": "Lima"})
