"""`colmlm bench facts`: measures how fast pages of facts are found by words and filters."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, islice
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import psutil
import typer
from sqlalchemy import text

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.lab.bench.machine import machine

if TYPE_CHECKING:
    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.kb.facts.compared import Kind
    from colmlm.kb.facts.records import FactSearch
    from colmlm.kb.review.records import InboxFilters
    from colmlm.kb.service import KnowledgeBase
    from colmlm.lab.bench.word_corpus import WordCorpus

FACTS_EXAMPLES = examples("colmlm bench facts --facts 1000000 --json")
CORPORA = 10
COMMON = 30  # of the commonest words, those asked for
PROPOSED = 8  # of the corpora, those whose facts nobody has reviewed
ASKED_AGAIN = 10  # of so many facts, one asks what the one before asks
DOUBTED = 20  # of so many facts, one whose question the check of its annotator doubts


def facts(
    number: Annotated[int, typer.Option("--facts", min=500, help="How many synthetic facts.")] = 100_000,
    searches: Annotated[int, typer.Option("--searches", min=1, help="How many of each kind.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of texts and searches.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure pages of facts: found by rare, common and several words, by no word, and by each filter."""
    from colmlm.lab.bench.empty_base import empty_base
    from colmlm.lab.bench.word_corpus import WordCorpus

    corpus = WordCorpus.made(number, seed)
    with empty_base() as kb:
        fill(kb, corpus, seed)
        figures = measure(kb, corpus, searches, seed)
    if as_json:
        print_json({"facts": number, "figures": figures, "machine": machine()})
    else:
        rows = ((name, *(f"{value:,.1f}" for value in of.values())) for name, of in figures.items())
        print_table(("search", "p50 ms", "p99 ms", "CPU ms", "found"), rows)


def fill(kb: KnowledgeBase, corpus: WordCorpus, seed: int) -> None:
    """Ingests the documents, with titles and questions, as ten corpora by three actors, eight of them unreviewed."""
    from colmlm.kb.corpus.format import Parsed

    documents = _documents(corpus, seed)
    for n in range(CORPORA):
        note(f"ingesting corpus {n}")
        part = islice(documents, -(-len(corpus.documents) // CORPORA))
        kb.corpora.ingest(
            map(Parsed, part),
            f"corpus{n}",
            actor=f"actor{n % 3}",
            reason="benchmark",
            generated=n < PROPOSED,
        )


def _documents(corpus: WordCorpus, seed: int) -> Iterator[AnnotatedDocument]:
    from colmlm.lab.bench.word_corpus import spelt

    drawn, said = random.Random(seed), iter(corpus.words)
    numbers = count()
    asked = ""

    def some(many: int) -> str:
        return " ".join(spelt(int(word)) for word in drawn.choice(corpus.words)[:many])

    for document in corpus.documents:
        spans = []
        for fact in document.facts:
            words = " ".join(spelt(int(word)) for word in next(said)[:4])
            number = next(numbers)
            if number % ASKED_AGAIN != 1:
                asked = f"What is the {words} {some(1)}?"
            spans.append(replace(fact, question=asked, doubt=None if number % DOUBTED else "unverified"))
        yield replace(document, title=some(3).capitalize(), facts=tuple(spans))


def measure(kb: KnowledgeBase, corpus: WordCorpus, searches: int, seed: int) -> dict[str, dict[str, float]]:
    """Times `searches` of every kind, each for a page of fifty facts."""
    figures = {}
    for name, asked in _kinds(corpus, random.Random(seed)).items():
        note(f"searching: {name}")
        found = (kb.facts.search(**sought).total for sought in asked)
        figures[name] = _timed(kb, islice(found, searches))
    for name, listed in _lists(kb, random.Random(seed)).items():
        note(f"listing: {name}")
        figures[name] = _timed(kb, islice(listed, searches))
    return figures


def _timed(kb: KnowledgeBase, found: Iterator[int]) -> dict[str, float]:
    """Times each of what is found one after the other; each gives how many facts or pairs there are in all."""
    from colmlm.lab.bench.durations import milliseconds

    server, seconds, totals = _server(kb), [], []
    worked, started = _worked(server), time.perf_counter()
    for total in found:
        seconds.append(time.perf_counter() - started)
        totals.append(total)
        started = time.perf_counter()
    return {
        "p50_ms": milliseconds(seconds, 50),
        "p99_ms": milliseconds(seconds, 99),
        "mean_cpu_ms": 1000 * (_worked(server) - worked) / len(seconds),
        "mean_found": sum(totals) / len(totals),
    }


def _lists(kb: KnowledgeBase, drawn: random.Random) -> dict[str, Iterator[int]]:
    """Gives the lists of facts that are compared, each from anywhere on, and the pages of the inbox."""
    last = max((pair.pair_id for pair in kb.comparisons.pairs("duplicates", limit=10_000).pairs), default=1)

    def pairs(kind: Kind, corpus: str | None = None) -> Iterator[int]:
        return (kb.comparisons.pairs(kind, corpus=corpus, after=drawn.randrange(last)).total for _ in count())

    def inbox(**filters: Unpack[InboxFilters]) -> Iterator[int]:
        after: int | None = None
        while True:
            page = kb.review.inbox(after=after or 0, **filters)
            after = page.next_after
            yield page.total

    return {
        "inbox": inbox(),
        "inbox of a corpus": inbox(corpus="corpus7"),
        "inbox, what was doubted": inbox(kind="doubted"),
        "contradictions": pairs("contradictions"),
        "contradictions in a corpus": pairs("contradictions", "corpus7"),
        "duplicates": pairs("duplicates"),
        "stale facts": (kb.comparisons.stale().total for _ in count()),
        "counts of the three": (kb.comparisons.counts().contradictions for _ in count()),
    }


def _server(kb: KnowledgeBase) -> psutil.Process:
    """Gives the process of the server that serves the connection which one search after the other uses."""
    with kb.sessions() as session:
        return psutil.Process(session.scalar(text("SELECT pg_backend_pid()")))


def _worked(server: psutil.Process) -> float:
    """Gives the seconds of a processor that the server and this process have used, whatever else runs here."""
    times = server.cpu_times()
    return float(times.user + times.system) + time.process_time()


def _kinds(corpus: WordCorpus, drawn: random.Random) -> dict[str, Iterator[FactSearch]]:
    from colmlm.lab.bench.word_corpus import VOCABULARY, spelt

    def words(many: int) -> str:
        said = drawn.choice(corpus.words)
        return " ".join(spelt(int(drawn.choice(said))) for _ in range(many))

    def forever(made: Any) -> Iterator[FactSearch]:
        return (made() for _ in count())

    last = datetime(2100, 1, 1, tzinfo=UTC)
    return {
        "every fact": forever(dict),
        "newest first": forever(lambda: {"order": "newest"}),
        "a corpus": forever(lambda: {"corpus": f"corpus{drawn.randrange(CORPORA)}"}),
        "deleted": forever(lambda: {"state": "deleted"}),
        "by an actor": forever(lambda: {"actor": f"actor{drawn.randrange(3)}"}),
        "by a kind of change": forever(lambda: {"kind": drawn.choice(["delete", "ingest", "update"])}),
        "since a time": forever(lambda: {"since": last.replace(year=drawn.choice([2000, 2100]))}),
        "a word of a text": forever(lambda: {"text": words(1)}),
        "two words of a text": forever(lambda: {"text": words(2)}),
        "a word of the commonest": forever(lambda: {"text": spelt(drawn.randrange(COMMON))}),
        "a rare word": forever(lambda: {"text": spelt(drawn.randrange(VOCABULARY // 2, VOCABULARY))}),
        "a word that nobody says": forever(lambda: {"text": f"y{words(1)}"}),
        "a word in a corpus": forever(lambda: {"text": words(1), "corpus": "corpus7"}),
    }
