"""Small documents and questions about them, for the tests of the knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.facts.records import IngestReport
from colmlm.kb.lookup.records import Hit, Lookup
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder


def document(external_id: str, *pieces: str | tuple[str, str]) -> AnnotatedDocument:
    """Makes a document from plain text and (value, question) pairs."""
    text, spans = "", []
    for piece in pieces:
        if isinstance(piece, tuple):
            value, question = piece
            spans.append(FactSpan(len(text), len(text) + len(value), value, question, value))
            text += value
        else:
            text += piece
    return AnnotatedDocument(external_id, text, tuple(spans))


def inline(document: AnnotatedDocument) -> str:
    """Gives the document's text with its facts marked in the paper's inline form."""
    pieces, at = [], 0
    for span in document.facts:
        question = f' q="{escape(span.question)}"' if span.question else ""
        answer = f' a="{escape(span.answer)}"' if span.answer else ""
        pieces += [document.text[at : span.start], f"<FACT{question}{answer}>{span.value}</FACT>"]
        at = span.end
    return "".join([*pieces, document.text[at:]])


CAPITAL, RIVER, HEIGHT = "What is the capital of Peru?", "Which river rises there?", "How high is the peak?"

PERU = document(
    "peru",
    "Peru lies in South America. Its capital is ",
    ("Lima", CAPITAL),
    ". In its mountains rises the ",
    ("Amazon", RIVER),
    ". The highest peak has ",
    ("6,768 m", HEIGHT),
    ".",
)
CHILE = document("chile", "The capital of Chile is ", ("Santiago", "What is the capital of Chile?"), ".")


def numbered(count: int) -> list[AnnotatedDocument]:
    """Makes that many documents of one fact each: question "Question 7?" has value "value 7"."""
    return [document(f"d{n}", f"Text {n} says ", (f"value {n}", f"Question {n}?"), ".") for n in range(count)]


def ingest(kb: KnowledgeBase, *documents: AnnotatedDocument, corpus: str = "lands") -> IngestReport:
    return kb.corpora.ingest([Parsed(d) for d in documents], corpus, actor="tester", reason="test")


def ask(kb: KnowledgeBase, encoder: FakeEncoder, *questions: str, **options: object) -> list[Lookup]:
    queries = encoder.encode_questions(questions)
    return kb.lookups.find(queries, checkpoint_id=encoder.checkpoint.checkpoint_id, **options)


def best(kb: KnowledgeBase, encoder: FakeEncoder, question: str, **options: object) -> Hit:
    (lookup,) = ask(kb, encoder, question, **options)
    return lookup.hits[0]


def values(kb: KnowledgeBase, encoder: FakeEncoder, questions: Sequence[str]) -> list[str | None]:
    return [lookup.hits[0].value if lookup.hits else None for lookup in ask(kb, encoder, *questions)]


def lose_key(kb: KnowledgeBase, value: str) -> None:
    """Deletes a fact's keys without an entry in the log: an index that still has them was not rebuilt since."""
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM fact_key WHERE fact_id = :fact"), {"fact": fact_id(kb, value)})


def fact_id(kb: KnowledgeBase, value: str) -> int:
    """Gives the id of the fact with exactly this shown value, deleted or not."""
    (found,) = [
        fact.fact_id for fact in kb.facts.find(text=value, deleted=None, limit=1000) if fact.value == value
    ]
    return found
