"""Texts are found by the words that they say now: no path of an edit leaves a word behind, or forgets to write one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.facts.sentences import find_astray_sentences, write_all_sentences
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CHILE, PERU, document, fact_id, ingest
from tests.strategies import documents

WHO = {"actor": "tester", "reason": "test"}
ROWS = text(
    "SELECT document_id, fact_id, ordinal, span_start, span_end, words::text FROM sentence"
    " ORDER BY document_id, fact_id, ordinal"
)


def rows(session: Session) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.execute(ROWS)]


def stored(kb: KnowledgeBase) -> list[tuple[Any, ...]]:
    with kb.sessions() as session:
        return rows(session)


def anew(kb: KnowledgeBase) -> list[tuple[Any, ...]]:
    """The sentences as they are written from the texts alone; nothing is kept of it."""
    with kb.sessions() as session:
        session.execute(text("DELETE FROM sentence"))
        write_all_sentences(session)
        return rows(session)


def lexemes(kb: KnowledgeBase) -> set[str]:
    with kb.sessions() as session:
        return set(session.scalars(text("SELECT DISTINCT unnest(tsvector_to_array(words)) FROM sentence")))


def say(kb: KnowledgeBase) -> list[str]:
    """What is said at the places of all sentences, in order."""
    return [
        (kb.documents.text(document) if document else kb.facts.show(fact).question)[start:end]
        for document, fact, _, start, end, _ in stored(kb)
    ]


def test_a_document_has_its_sentences_with_the_words_of_its_title(kb: KnowledgeBase) -> None:
    ingest(kb, AnnotatedDocument("a", "It lies high. Its 1st river rises.", (), title="Bolivia (land)"))
    assert say(kb) == ["It lies high. ", "Its 1st river rises."]
    assert [row[-1] for row in stored(kb)] == [
        "'bolivia':1 'high':5 'land':2 'lie':4",
        "'1st':4 'bolivia':1 'land':2 'rise':6 'river':5",
    ]
    assert stored(kb) == anew(kb)


def test_a_dry_run_and_a_refused_ingest_write_none(kb: KnowledgeBase) -> None:
    kb.corpora.ingest([Parsed(PERU)], "lands", dry_run=True, **WHO)
    assert stored(kb) == []


def test_a_newer_edition_takes_the_place_of_the_older(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, CHILE)
    ingest(kb, document("peru", "Rivers rise in ", ("Bolivia", "Where?"), "."))
    assert lexemes(kb) == {"river", "rise", "bolivia", "capit", "chile", "santiago"}
    assert stored(kb) == anew(kb) and {row[0] for row in stored(kb)} == {2, 3}


def test_another_title_is_another_edition(kb: KnowledgeBase) -> None:
    for title in ("Lost", "Found"):
        ingest(kb, AnnotatedDocument("a", "A text stands.", (), title=title))
    assert lexemes(kb) == {"found", "text", "stand"}


def test_a_fact_without_a_document_is_found_by_what_it_says_now(kb: KnowledgeBase) -> None:
    (fact,) = kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO).fact_ids
    assert lexemes(kb) == {"wrote", "emma", "jane", "austen"}
    assert [row[:5] for row in stored(kb)] == [(None, fact, 0, 0, len("Who wrote Emma? Jane Austen"))]
    kb.facts.edit(fact, "Miss Austen", **WHO)
    assert lexemes(kb) == {"wrote", "emma", "miss", "austen"}
    kb.facts.delete([fact], **WHO)
    assert lexemes(kb) == set()
    kb.facts.restore([fact], **WHO)
    assert lexemes(kb) == {"wrote", "emma", "miss", "austen"} and stored(kb) == anew(kb)


def test_a_fact_that_is_forgotten_and_restored_goes_and_comes(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    (fact,) = kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO).fact_ids
    kb.keysets.rekey(encoder)
    run = Forgetting(kb).plan(Selector(fact_ids=(fact,)), policy="successor", **WHO).run_id
    Forgetting(kb).apply(run, **WHO)
    assert stored(kb) == []
    Forgetting(kb).restore(run, **WHO)
    assert "austen" in lexemes(kb) and stored(kb) == anew(kb)


def test_facts_of_documents_come_and_go_without_their_text(kb: KnowledgeBase) -> None:
    """A text says what it says, whatever became of its facts: who answers from it looks at them."""
    ingest(kb, PERU)
    before = stored(kb)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    kb.corpora.delete("lands", **WHO)
    assert stored(kb) == before == anew(kb)


def test_erased_words_are_gone_at_commit_in_every_document_that_is_redacted(kb: KnowledgeBase) -> None:
    news = document("news", "Nobody went to ", ("Santiago", "Where?"), ". Others saw Lima.")
    ingest(kb, PERU, CHILE, news)
    (alone,) = kb.facts.add("Which town is foggy?", "Lima", **WHO).fact_ids
    before = lexemes(kb)
    Erasure(kb).erase([fact_id(kb, "Amazon")], **WHO)
    assert lexemes(kb) == before - {"amazon"} and stored(kb) == anew(kb)
    Erasure(kb).erase([fact.fact_id for fact in kb.facts.find(text="Lima")], mentions="all", **WHO)
    assert lexemes(kb) == before - {"amazon", "lima", "town", "foggi"} and stored(kb) == anew(kb)
    assert alone not in {row[1] for row in stored(kb)}


def test_what_was_erased_comes_back_only_where_that_is_allowed(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    Erasure(kb).erase([fact_id(kb, "Lima")], **WHO)
    changed = AnnotatedDocument("peru", PERU.text + " It is old.", PERU.facts)
    ingest(kb, changed)
    assert "lima" not in lexemes(kb) and "old" in lexemes(kb) and stored(kb) == anew(kb)
    kb.corpora.ingest([Parsed(changed)], "lands", allow_erased=True, **WHO)
    assert "lima" in lexemes(kb) and stored(kb) == anew(kb)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE document SET text = replace(text, 'Lima', 'Oslo')",
        "UPDATE document SET title = 'Other'",
        "UPDATE document SET replaced_seq = 1",
        "UPDATE fact_version SET value = 'Oslo'",
        "UPDATE fact_version SET to_seq = 2",
        "UPDATE fact SET question = 'Else?'",
    ],
)
def test_no_statement_at_all_leaves_words_that_are_not_said(kb: KnowledgeBase, statement: str) -> None:
    """Not even one that no code of the program makes."""
    ingest(kb, PERU)
    kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    before = stored(kb)
    with kb.engine.begin() as connection:
        connection.execute(text(statement))
    assert len(stored(kb)) < len(before) and set(stored(kb)) < set(before)
    assert {row[:3] for row in stored(kb)} <= {row[:3] for row in anew(kb)}


def test_a_statement_that_changes_nothing_said_leaves_them(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    before = stored(kb)
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = text, uri = 'x', sha256 = sha256"))
    assert stored(kb) == before


@pytest.mark.parametrize(
    "hostile",
    [
        "x" * 100_000,
        "ab-" * 50_000,
        "http://a.b/" + "c/" * 20_000,
        "\U00020000" * 20_000,
        "\ufdfa" * 5_000,
        "'\"\\{},NULL \\N\t\r\n" * 500,
        " ".join(f"w{n}" for n in range(20_000)),
        "e\u0301" * 10_000,
        "\ufeff",
    ],
)
def test_a_hostile_text_is_stored_and_has_its_sentences(kb: KnowledgeBase, hostile: str) -> None:
    ingest(kb, AnnotatedDocument("a", hostile, (), title=hostile[:10_000]))
    kb.facts.add(hostile[:9_000] + "?", hostile[:9_000] + "!", **WHO)
    assert stored(kb) == anew(kb)
    found = [row for row in stored(kb) if row[0]]
    assert (found[0][3], found[-1][4]) == (0, len(hostile))
    assert max(len(row[-1]) for row in stored(kb)) < 50_000
    with kb.sessions() as session:
        assert not find_astray_sentences(session)


def _add(kb: KnowledgeBase, random: Random) -> None:
    kb.facts.add(
        random.choice(["Who?", "Who came?"]),
        random.choice(["Ann", "Bo"]),
        allow_erased=True,
        anyway=True,
        **WHO,
    )


def _some(kb: KnowledgeBase, random: Random, *, live: bool) -> list[int]:
    found = [fact.fact_id for fact in kb.facts.find(deleted=not live) if fact.erased_seq is None]
    return random.sample(found, min(2, len(found)))


def _edit(kb: KnowledgeBase, random: Random) -> None:
    for fact in _some(kb, random, live=True):
        kb.facts.edit(fact, random.choice(["Cy", "Dee. Who", "█"]), anyway=True, **WHO)


def _delete(kb: KnowledgeBase, random: Random) -> None:
    kb.facts.delete(_some(kb, random, live=True), abstain=random.random() < 0.5, **WHO)


def _restore(kb: KnowledgeBase, random: Random) -> None:
    kb.facts.restore(_some(kb, random, live=False), **WHO)


def _erase(kb: KnowledgeBase, random: Random) -> None:
    mentions = random.choice(["same-document", "all", "none"])
    Erasure(kb).erase(_some(kb, random, live=random.random() < 0.7), mentions=mentions, **WHO)


def _ingest(kb: KnowledgeBase, random: Random, many: list[AnnotatedDocument]) -> None:
    named = {
        name: AnnotatedDocument(name, d.text, d.facts, d.title) for name, d in zip("abc", many, strict=False)
    }
    given = [Parsed(one) for one in named.values()]
    kb.corpora.ingest(given, "lands", allow_erased=random.random() < 0.3, **WHO)


EDITS = [_add, _edit, _delete, _restore, _erase]


@pytest.mark.slow(reason="draws many examples of edits")
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.integers(0, 10**6).map(Random),
    st.lists(st.sampled_from(EDITS) | st.lists(documents() | st.just(PERU), max_size=3), max_size=10),
)
def test_after_any_edits_the_sentences_are_those_written_from_scratch(
    kb: KnowledgeBase, random: Random, steps: list[Any]
) -> None:
    """One base goes through all examples, so that each begins where the one before ended."""
    for step in steps:
        _ingest(kb, random, step) if isinstance(step, list) else step(kb, random)
        assert stored(kb) == anew(kb), step
        with kb.sessions() as session:
            assert not find_astray_sentences(session)


def test_what_is_astray_is_named(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, CHILE, AnnotatedDocument("c", "A text. Another one. Yet more."))
    facts = [kb.facts.add(f"Who is {n}?", f"Number {n}", **WHO).fact_ids[0] for n in range(2)]
    for statement, documents_, facts_ in (
        ("DELETE FROM sentence WHERE document_id = 1 AND ordinal = 0", (1,), ()),
        ("UPDATE sentence SET words = words || to_tsvector('zebra') WHERE document_id = 2", (2,), ()),
        ("UPDATE sentence SET span_end = span_end - 1 WHERE document_id = 3 AND ordinal = 1", (3,), ()),
        (f"DELETE FROM sentence WHERE fact_id = {facts[0]}", (), (facts[0],)),
        (
            f"INSERT INTO sentence (fact_id, ordinal, span_start, span_end, words) VALUES ({facts[1]}, 7, 0, 1, '')",
            (),
            (facts[1],),
        ),
    ):
        with kb.sessions() as session:
            session.execute(text(statement))
            found = find_astray_sentences(session)
        assert (found.document_ids, found.fact_ids) == (documents_, facts_), statement


def test_a_span_keeps_its_place_in_characters_and_not_bytes(kb: KnowledgeBase) -> None:
    said = "🏔️ Élan é. 東京 rises. Lima falls."
    ingest(kb, AnnotatedDocument("a", said, (FactSpan(said.index("Lima"), said.index("Lima") + 4, "Lima"),)))
    assert "".join(say(kb)) == said and say(kb)[-1] == "Lima falls."
