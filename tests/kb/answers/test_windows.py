"""Windows: where a fact stands in them is where its document says it, also where a sentence ends inside the fact."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from colmlm.kb.answers.windows import SaidWindow, read_windows
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import document, fact_id, ingest

VALUE = "Neptune and Triton c. 1622"
BERNINI = document("bernini", "Bernini made ", (VALUE, "What did Bernini make?"), " for a garden in Rome.")


@pytest.fixture
def cut(kb: KnowledgeBase) -> SaidWindow:
    """The window of the sentence that ends inside the fact."""
    ingest(kb, BERNINI)
    return read(kb)


def read(kb: KnowledgeBase) -> SaidWindow:
    with kb.sessions() as session:
        first = session.execute(text("SELECT id FROM sentence WHERE ordinal = 0")).scalar_one()
        return read_windows(session, [first])[first]


def test_a_span_of_a_fact_that_the_window_cuts_stands_where_its_document_says_it(cut: SaidWindow):
    assert cut.text.strip() == "Bernini made Neptune and Triton c."
    start, end = cut.text.index("Neptune"), cut.text.index(" c.")
    source = cut.source_of(start, end)
    assert source is not None and BERNINI.text[source.start : source.end] == "Neptune and Triton"
    assert [fact.version for fact in cut.facts_overlapping(start, end)] == [1]


def test_what_a_cut_fact_said_before_it_was_corrected_is_not_said(kb: KnowledgeBase, cut: SaidWindow):
    kb.facts.edit(fact_id(kb, VALUE), value="Apollo and Daphne", actor="tester", reason="test")
    (fact,) = read(kb).facts
    assert fact.version is None and "Neptune" not in read(kb).shown_text()
