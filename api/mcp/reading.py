"""The tools that read: look up, ask, find, show, trace, and list changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from colmlm.api.client.client import Client
from colmlm.api.mcp.caller import Caller, Offer, cited, fact_of, facts_of, plain
from colmlm.kb.access.records import Right
from colmlm.kb.answers.records import NOTHING, Answer
from colmlm.kb.evidence.records import TracedSplice
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.lookup.records import Lookup

MAX_ID = 2**63 - 1

Id = Annotated[int, Field(ge=1, le=MAX_ID)]
Question = Annotated[str, Field(min_length=1, max_length=2000, description="The question, in words")]
Many = Annotated[int, Field(ge=1, le=100, description="How many to give at most")]
Score = Annotated[float, Field(ge=-1, le=1, description="The least score of a hit (default: the base's own)")]


def look_up(
    caller: Caller, question: Question, k: Many = 5, threshold: Score | None = None
) -> dict[str, Any]:
    """Find the live facts nearest to a question, best first, each with its value, score and citation.

    Use it to look for what the base knows of a subject. No hit is a normal result: nothing is near enough then.
    """

    def look_up(base: Client) -> tuple[Lookup, list[FactRecord]]:
        found = base.lookups.ask(question, k=k, threshold=threshold)
        return found, base.facts.show_many([hit.fact_id for hit in found.hits]) if found.hits else []

    found, facts = caller.asking(look_up)
    hits = [
        {**fact_of(fact), "value": hit.value, "version": hit.version, "score": hit.score}
        for hit, fact in zip(found.hits, facts, strict=True)
    ]
    told = {"match": bool(hits), "hits": hits, "threshold": found.threshold, "as_of_change": found.seq}
    return told if found.abstained is None else {**told, "forgotten_fact": found.abstained}


def ask(caller: Caller, question: Question) -> dict[str, Any]:
    """Answer a question with a document's own words and the place that says them, or say that nothing stored does.

    Quote the answer with its citation. Where `answer` is null, do not answer from memory in the base's name; the
    nearest passages are shown. The answer is kept as an output, which `trace_output` shows with its evidence.
    """
    found = caller.asking(lambda base: base.lookups.answer(question))
    told = {
        "answer": found.answer,
        "grain": found.grain,
        "score": found.score,
        "threshold": found.threshold,
        "facts": [plain(fact) for fact in found.facts],
        "as_of_change": found.seq,
        "output_id": found.generation_id,
    }
    if found.answer is not None:
        return {**told, **cited(found.source), "unreviewed_facts": list(found.unreviewed)}
    return {**told, "said": _why_not(found), "nearest": [_passage(one) for one in found.nearest]}


def _why_not(found: Answer) -> str:
    return NOTHING if found.why is None else f"{NOTHING} {found.why}"


def _passage(passage: Any) -> dict[str, Any]:
    return {"text": passage.text, "facts": [fact.fact_id for fact in passage.facts], **cited(passage.source)}


def find_facts(
    caller: Caller,
    text: Annotated[
        str, Field(max_length=2000, description="Words of value, question or sentence; empty: all")
    ] = "",
    corpus: Annotated[str, Field(description="Of this corpus only")] = "",
    state: Annotated[Literal["live", "deleted", "all"], Field(description="In which state")] = "live",
    limit: Many = 20,
    after: Annotated[int, Field(ge=0, le=MAX_ID, description="The next_after of the page before")] = 0,
) -> dict[str, Any]:
    """List facts by their words, corpus and state, with how many there are. Use it to find the id of a fact."""
    page = caller.base.facts.search(
        text=text or None, corpus=corpus or None, state=state, limit=limit, after=after
    )
    return {
        "facts": facts_of(page.facts),
        "total": page.total,
        "total_is_exact": page.is_exact,
        "next_after": page.next_after,
    }


def show_fact(caller: Caller, fact_id: Id) -> dict[str, Any]:
    """Show a fact: its value, its source sentence, every value it has had, who changed it and why, and its uses."""
    trace = caller.base.outputs.trace_fact(fact_id)
    return {
        **fact_of(trace.fact),
        "sentence": trace.context,
        "versions": [plain(version) for version in trace.versions],
        "changes": [_change(change) for change in trace.history],
        "output_ids": sorted({use.generation_id for use in trace.uses}),
    }


def trace_output(caller: Caller, output_id: Id) -> dict[str, Any]:
    """Show a stored output or answer with the fact and document behind every spliced span, and edits of them since."""
    trace = caller.base.outputs.trace(output_id)
    quoted = {"quotes": cited(trace.quotes)} if trace.quotes else {}
    return {
        "output_id": trace.generation_id,
        "prompt": trace.prompt,
        "output": trace.output,
        "at": trace.at.isoformat(),
        "as_of_change": trace.seq,
        "abstained": trace.abstained,
        "uncited": trace.uncited,
        "spans": [_span(splice) for splice in trace.splices],
        **quoted,
    }


def _span(splice: TracedSplice) -> dict[str, Any]:
    span = {
        "output_start": splice.output_start,
        "output_end": splice.output_end,
        "outcome": splice.outcome,
        "score": splice.score,
    }
    if splice.fact_id is None:
        return span
    return {
        **span,
        "value": splice.value,
        "fact_id": splice.fact_id,
        "version": splice.version,
        "is_live": splice.live,
        "is_current": splice.is_current,
        **cited(splice.source, splice.sample),
        "changes_since": [_change(change) for change in splice.history],
    }


def list_changes(
    caller: Caller,
    after: Annotated[
        int, Field(ge=-MAX_ID, le=MAX_ID, description="After this change; -20: the last twenty changes")
    ] = -20,
    limit: Many = 20,
    fact_id: Annotated[int, Field(ge=0, le=MAX_ID, description="Of this fact only; 0: of all")] = 0,
) -> dict[str, Any]:
    """List changes of the log, oldest first: who changed which facts, when and why. It holds no text of a fact."""
    head = int(caller.base.log.head()["seq"])
    begin = after if after >= 0 else 0 if fact_id else max(0, head + after)
    changes = caller.base.log.changes(begin, limit, fact_id=fact_id or None)
    more = changes[-1].seq if len(changes) == limit else None
    return {"changes": [_change(change) for change in changes], "last_change": head, "next_after": more}


def _change(change: Any) -> dict[str, Any]:
    told = {
        name: getattr(change, name) for name in ("seq", "kind", "fact_ids", "num_facts", "actor", "reason")
    }
    by = str(change.principal) if change.principal else None
    told |= {"on_behalf_of": change.on_behalf_of, "by": by, "undoes": change.undoes}
    return {**{name: value for name, value in told.items() if value is not None}, "at": change.at.isoformat()}


OFFERS = (
    Offer(look_up, "Look facts up"),
    Offer(ask, "Ask the documents"),
    Offer(find_facts, "Find facts"),
    Offer(show_fact, "Show a fact"),
    Offer(trace_output, "Trace an output"),
    Offer(list_changes, "List changes", Right.audit),
)
