"""`colmlm bench words`: measures how fast and how surely sentences are found by the words of a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.lab.bench.empty_base import ACTOR, REASON, empty_base
from colmlm.lab.bench.machine import machine

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from colmlm.kb.service import KnowledgeBase
    from colmlm.lab.bench.word_corpus import ExactBM25, Question, WordCorpus

WORDS_EXAMPLES = examples(
    "colmlm bench words --sentences 100000",
    "colmlm bench words --sentences 100000 --dim 64 --json",
    "colmlm bench words --squad dev.jsonl --paragraphs 100 --json",
)
FIRST = (1, 3, 5)
COMPARED = 100  # questions whose best sentences are also sought by brute force


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
    dim: Annotated[
        int | None,
        typer.Option(
            "--dim",
            min=4,
            help="Give each synthetic sentence's fact a key of this width, and time lookups by both.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of synthetic sentences and questions.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure the search for sentences by words, beside bm25s where they are SQuAD's.

    Synthetic words are as unevenly common as those of a language, and a question has some words of its sentence. With
    --dim lookups by key alone, by key and words, and with the reader are timed in turns.
    """
    if squad is not None and dim is not None:
        raise typer.BadParameter("only synthetic sentences get keys.", param_hint="--dim")
    figures = of_squad(squad, paragraphs) if squad is not None else synthetic(sentences, dim, seed)
    if as_json:
        print_json(figures | {"machine": machine()})
    else:
        print_table(("what", "measured"), [(name, f"{value:,.4g}") for name, value in figures.items()])


def synthetic(sentences: int, dim: int | None, seed: int) -> dict[str, Any]:
    """Measures the search among synthetic sentences, and with `dim` lookups by key and words."""
    from colmlm.lab.bench.lookup_ways import lookup_figures
    from colmlm.lab.bench.word_corpus import WordCorpus

    corpus = WordCorpus.made(sentences, seed)
    with empty_base() as kb:
        figures = _ingest(kb, corpus.documents) | _search(kb, corpus.questions) | _common(kb, corpus)
        if dim is not None:
            note("looking up")
            with Runtime.from_environment() as runtime:
                figures |= lookup_figures(kb, corpus, dim, seed, runtime.reader)
    return figures


def of_squad(path: Path, paragraphs: int | None) -> dict[str, Any]:
    """Measures the search among the first paragraphs of a file, by the questions that have a place in them."""
    from colmlm.lab.bench.word_corpus import Question

    found = [parsed.document for parsed in read_squad(path) if parsed.document is not None][:paragraphs]
    documents = {d.external_id: AnnotatedDocument(d.external_id, d.text, title=d.title) for d in found}
    placed = ((q, q.place) for q in read_questions(path) if q.document in documents)
    questions = [Question(q.question, q.document, place[0]) for q, place in placed if place is not None]
    with empty_base() as kb:
        return _ingest(kb, list(documents.values())) | _search(kb, questions) | _bm25s(kb, questions)


def _ingest(kb: KnowledgeBase, documents: Sequence[AnnotatedDocument]) -> dict[str, Any]:
    from colmlm.lab.bench.durations import seconds_of

    note("ingesting")
    given = (Parsed(document) for document in documents)
    seconds = seconds_of(lambda: kb.corpora.ingest(given, "bench", actor=ACTOR, reason=REASON))
    return {"ingest_seconds": seconds, **_sizes(kb)}


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


def _common(kb: KnowledgeBase, corpus: WordCorpus) -> dict[str, Any]:
    """Times questions that have common words alone, and compares with brute force what is found of both kinds."""
    import time

    from colmlm.lab.bench.durations import milliseconds
    from colmlm.lab.bench.word_corpus import ExactBM25

    seconds: list[float] = []
    with kb.sessions() as session:
        for question in corpus.common:
            started = time.perf_counter()
            kb.words.find(session, question, max(FIRST))
            seconds.append(time.perf_counter() - started)
        note("searching by brute force")
        asked = {"": [one.text for one in corpus.questions], "common_": corpus.common}
        exact = ExactBM25(corpus)
        shares = {
            f"{kind}best_{max(FIRST)}_found": _exactness(kb, session, exact, questions[:COMPARED])
            for kind, questions in asked.items()
        }
    return {
        "common_find_p50_ms": milliseconds(seconds, 50),
        "common_find_p99_ms": milliseconds(seconds, 99),
        **shares,
    }


def _exactness(kb: KnowledgeBase, session: Session, exact: ExactBM25, questions: Sequence[str]) -> float:
    """Gives which share of the truly best sentences is found."""
    from sqlalchemy import func, select

    from colmlm.kb.tables import SentenceRow

    first = session.scalar(select(func.min(SentenceRow.id))) or 0
    shares = []
    for question in questions:
        found = [one.sentence_id - first for one in kb.words.find(session, question, max(FIRST))]
        shares.append(exact.share_found(question, found, max(FIRST)))
    return sum(shares) / len(shares)


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
