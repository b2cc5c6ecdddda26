"""Examples of facts, documents and corpora, of edits of these, and of their review."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from colmlm.api.routes import batches, comparing, corpora, documents, facts, mending, review
from colmlm.api.schema.examples.small_base import AT, FACT, HASH, QUESTION, SOURCE, TEXT, WHY
from colmlm.api.wire import answers
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import Why
from colmlm.kb.facts import search
from colmlm.kb.facts.compared import AlsoSaid, ComparedCounts, FactPair, StaleFact
from colmlm.kb.facts.records import CorpusStats, DocumentRecord, FoundIn, Mark
from colmlm.kb.facts.reviews import SettledBefore
from colmlm.kb.review.records import InboxItem, Neighbour, ReviewProgress, Surroundings

_ITEM = InboxItem(
    replace(FACT, review="proposed", review_seq=1), 2, "unverified", Surroundings(3, 0, TEXT, 23, 27),
    (Neighbour(31, "Lima", QUESTION, "accepted", True),),
)  # fmt: skip

EXAMPLES: tuple[Any, ...] = (
    Why(reason=WHY),
    facts.NewFact(question=QUESTION, value="Lima", reason="asked for"),
    comparing.Holding(fact_ids=[12, 15], reason="two capitals, each in its time"),
    facts.NewValue(value="Cusco", reason="typing error in the source", actor="ana"),
    mending.Span(start=23, end=27, text="Lima", reason="cut too short"),
    mending.NewPlace(start=23, end=27, text="Lima", reason="cut too short"),
    mending.NewMark(text="Lima", question=QUESTION, reason="was not marked"),
    review.FactVerdict(fact_id=12, verdict="accept", version=1),
    review.Verdicts(
        verdicts=[review.FactVerdict(fact_id=12, verdict="reject", version=1)], reason="cut too short"
    ),
    review.ReviewLimit(accepted_only=True, corpus="atlas", reason="only what we have read"),
    facts.OneFact(reason=WHY),
    facts.FactSet(fact_ids=[12, 15], reason="deleted by mistake"),
    facts.FactsToRead(fact_ids=[12, 15]),
    facts.DeletedSet(fact_ids=[12, 15], reason=WHY),
    batches.NewFacts(facts=[batches.Draft(question=QUESTION, value="Lima")], reason="asked for"),
    batches.NewValues(
        facts=[batches.Corrected(fact_id=12, value="Lima", question=QUESTION)], reason="corrected"
    ),
    corpora.Deletion(reason="licence withdrawn", dry_run=True),
    documents.NewDocuments(
        corpus="atlas",
        documents=[
            documents.NewDocument(
                id="peru",
                text=TEXT,
                facts=[documents.NewSpan(start=23, end=27, value="Lima", question=QUESTION)],
                title="Peru",
            )
        ],
        reason="first edition",
    ),
    CorpusStats("atlas", 1, 2, 0, 78),
    answers.Deleted(dry_run=True, documents=1, facts=2, seq=None),
    _DOCUMENT := DocumentRecord(
        3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", HASH, 28, 1, AT, None
    ),
    answers.DocumentText(document=_DOCUMENT, text=TEXT),
    documents.Ingested(
        corpus="atlas",
        documents=1,
        facts=1,
        unchanged=0,
        replaced=0,
        still_deleted=0,
        suppressed=0,
        contradictions=0,
        duplicates=0,
        refusals=[],
        seq=41,
        keyed=True,
    ),
    FACT,
    search.as_found(FACT, (FoundIn("value", "Lima", (Mark(0, 4),)),)),
    FactPair(3, FACT, replace(FACT, fact_id=905, value="Cusco", source=None, answer=None), None, 905, None),
    StaleFact(12, "Lima", 2, QUESTION, None, SOURCE, 1, None, why="corrected-before"),
    ComparedCounts(contradictions=3, duplicates=12, stale=1),
    AlsoSaid(12, (905,)),
    EditResult(seq=41, min_seq=41, kind="delete", fact_ids=[12], keyed=True),
    _ITEM,
    answers.InboxPage(
        items=[_ITEM], next=None, total=1, is_exact=True, progress=ReviewProgress(1, 12, 3, True)
    ),
    answers.VerdictResult(
        seqs=[41],
        min_seq=41,
        fact_ids=[12],
        before=[SettledBefore(15, "accept", 2, "accepted", True, 40, "ana")],
    ),
)
