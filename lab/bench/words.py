"""`colmlm bench words`: measures how fast and how surely sentences are found by the words of a question."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.lab.bench.machine import machine

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase

WORDS_EXAMPLES = examples(
    "colmlm bench words --sentences 100000",
    "colmlm bench words --squad dev.jsonl --paragraphs 100 --json",
)
ACTOR, REASON = "bench", "benchmark"
VOCABULARY = 200_000
SENTENCES_PER_DOCUMENT = 5
NUM_QUESTIONS = 1000
FIRST = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the place of the sentence that it asks for: its document's external id and an offset."""

    text: str
    document: str
    at: int


def words(
    sentences: Annotated[
        int, typer.Option("--sentences", min=50, help="How many synthetic sentences.")
    ] = 100_000,
    squad: Annotated[
        Path | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="Instead: a SQuAD file and its questions."),
    ] = None,
    paragraphs: Annotated[
        int | None, typer.Option("--paragraphs", min=1, help="Of the SQuAD file. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of synthetic sentences and questions.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure the search for sentences by words, beside bm25s where they are SQuAD's.

    Synthetic words are as unevenly common as those of a language, and a question has some words of its sentence.
    """
    if squad is None:
        documents, questions = synthetic(sentences, seed)
    else:
        documents, questions = of_squad(squad, paragraphs)
    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as home:
        figures = measure(Path(home), documents, questions, compare=squad is not None)
    if as_json:
        print_json(figures | {"machine": machine()})
    else:
        print_table(("what", "measured"), [(name, f"{value:,.4g}") for name, value in figures.items()])


def synthetic(count: int, seed: int) -> tuple[list[AnnotatedDocument], list[Question]]:
    """Makes documents of sentences of Zipf's words, and questions of some words of a sentence and two of any."""
    import numpy as np

    random = np.random.default_rng([seed, count])
    share = 1 / (np.arange(VOCABULARY) + 10)
    lengths = random.integers(5, 26, size=count)
    drawn = random.choice(VOCABULARY, size=int(lengths.sum()), p=share / share.sum())
    said = [[_spelt(word) for word in piece] for piece in np.split(drawn, np.cumsum(lengths)[:-1])]
    texts = [f"{' '.join(sentence).capitalize()}. " for sentence in said]
    documents, places = [], []
    for number, first in enumerate(range(0, count, SENTENCES_PER_DOCUMENT)):
        group = texts[first : first + SENTENCES_PER_DOCUMENT]
        documents.append(AnnotatedDocument(f"d{number}", "".join(group)))
        places += [(f"d{number}", sum(map(len, group[:n]))) for n in range(len(group))]
    questions = []
    for chosen in random.integers(count, size=NUM_QUESTIONS):
        of_sentence = random.choice(said[chosen], size=min(5, len(said[chosen])), replace=False)
        others = random.choice(drawn, size=2)
        questions.append(Question(" ".join([*of_sentence, *map(_spelt, others)]), *places[chosen]))
    return documents, questions


def _spelt(number: int) -> str:
    """Spells a number as a word that the stemmer leaves alone, with consonants and vowels in turn."""
    letters = ""
    while True:
        number, consonant = divmod(number, 14)
        number, vowel = divmod(number, 3)
        letters += "bdfgkmpqtvwxzh"[consonant] + "aou"[vowel]
        if not number:
            return f"{letters}k"


def of_squad(path: Path, paragraphs: int | None) -> tuple[list[AnnotatedDocument], list[Question]]:
    """Reads the first paragraphs of a file, without their facts, and the questions that have a place in them."""
    found = [parsed.document for parsed in read_squad(path) if parsed.document is not None][:paragraphs]
    documents = {d.external_id: AnnotatedDocument(d.external_id, d.text, title=d.title) for d in found}
    placed = ((q, q.place) for q in read_questions(path) if q.document in documents)
    return list(documents.values()), [
        Question(q.question, q.document, place[0]) for q, place in placed if place is not None
    ]


def measure(
    home: Path, documents: Sequence[AnnotatedDocument], questions: Sequence[Question], *, compare: bool
) -> dict[str, Any]:
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.store import database
    from colmlm.kb.store.settings import Settings
    from colmlm.lab.bench.durations import seconds_of

    settings = Settings(home=home, actor=ACTOR)
    engine = database.connect(settings)
    database.migrate(engine)
    engine.dispose()
    with KnowledgeBase.open(settings) as kb:
        note("ingesting")
        given = (Parsed(document) for document in documents)
        seconds = seconds_of(lambda: kb.corpora.ingest(given, "bench", actor=ACTOR, reason=REASON))
        figures = {"ingest_seconds": seconds, **_sizes(kb)}
        note("searching")
        figures |= _search(kb, questions)
        if compare:
            figures |= _bm25s(kb, questions)
    return figures


def _sizes(kb: KnowledgeBase) -> dict[str, Any]:
    from sqlalchemy import text

    statement = text(
        "SELECT (SELECT count(*) FROM sentence), (SELECT sum(octet_length(text)) FROM document),"
        " pg_total_relation_size('sentence')"
    )
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        count, text_bytes, row_bytes = connection.execute(statement).one()
    return {
        "sentences": count,
        "text_bytes": int(text_bytes),
        "bytes_per_text_byte": row_bytes / int(text_bytes),
    }


def _search(kb: KnowledgeBase, questions: Sequence[Question]) -> dict[str, Any]:
    import time

    from colmlm.lab.bench.durations import milliseconds

    gold, seconds, places = _gold(kb, questions), [], []
    with kb.sessions() as session:
        for question, right in zip(questions, gold, strict=True):
            started = time.perf_counter()
            found = [one.sentence_id for one in kb.words.find(session, question.text, max(FIRST))]
            seconds.append(time.perf_counter() - started)
            places.append(found.index(right) if right in found else max(FIRST))
    return {
        "find_p50_ms": milliseconds(seconds, 50),
        "find_p99_ms": milliseconds(seconds, 99),
        **{f"gold_in_first_{n}": sum(place < n for place in places) / len(places) for n in FIRST},
    }


def _gold(kb: KnowledgeBase, questions: Sequence[Question]) -> list[int]:
    """Gives the id of the sentence that each question asks for."""
    starts = {(name, start): sentence for sentence, name, start, _ in _stored(kb)}
    by_document: dict[str, list[int]] = {}
    for name, start in sorted(starts):
        by_document.setdefault(name, []).append(start)
    return [
        starts[q.document, max(start for start in by_document[q.document] if start <= q.at)]
        for q in questions
    ]


def _stored(kb: KnowledgeBase) -> Iterator[tuple[int, str, int, str]]:
    """Yields id, document, start and text of every sentence."""
    from sqlalchemy import text

    statement = text(
        "SELECT s.id, d.external_id, s.span_start, substr(d.text, s.span_start + 1, s.span_end - s.span_start)"
        " FROM sentence s JOIN document d ON d.id = s.document_id ORDER BY s.id"
    )
    with kb.engine.connect() as connection:
        yield from (tuple(row) for row in connection.execute(statement))


def _bm25s(kb: KnowledgeBase, questions: Sequence[Question]) -> dict[str, Any]:
    import bm25s

    from colmlm.kb.lookup.words import K1, B

    note("searching with bm25s")
    gold, stored = _gold(kb, questions), list(_stored(kb))
    index = bm25s.BM25(k1=K1, b=B)
    index.index(bm25s.tokenize([said for *_, said in stored], show_progress=False), show_progress=False)
    asked = bm25s.tokenize([q.text for q in questions], return_ids=False, show_progress=False)
    found, _ = index.retrieve(asked, k=min(max(FIRST), len(stored)), show_progress=False)
    ids = [[stored[at][0] for at in row] for row in found.tolist()]
    return {
        f"bm25s_gold_in_first_{n}": sum(right in row[:n] for right, row in zip(gold, ids, strict=True))
        / len(gold)
        for n in FIRST
    }
