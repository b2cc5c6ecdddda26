"""`Caller`, on whose behalf and with which rights a tool works, and the tools that read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from colmlm.api.client.client import Client
from colmlm.api.errors import problem_of, right_missing
from colmlm.kb.access.records import Right
from colmlm.kb.answers.records import NO_SURE_ANSWER, Answer
from colmlm.kb.evidence.records import TracedSplice
from colmlm.kb.facts.records import FactRecord, SamplePlace, Source
from colmlm.kb.lookup.options import limit_corpora
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.principal import Principal, acting_as, as_service

T = TypeVar("T")

ALL_RIGHTS = frozenset(Right)


def in_words(error: Exception) -> str:
    """Give the cause and remedy of an error as the API does. An unexpected error is described in the log alone."""
    return problem_of(error)[0].detail


class AskingNear(Protocol):
    """A function that calls `ask` with the client of a base whose model is loaded, or else with the caller's own."""

    def __call__(self, ask: Callable[[Client], T], /) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of tools, with their base and rights. The log names the `principal` if there is one, else `actor`.

    `secret` is that of the process, and keys the codes of dry runs.

    `explain` puts an error into words for the client.

    `turn` is held while a tool works, so that two callers never load at once what a base of this process shares, such
    as a model.
    """

    base: Client
    asking: AskingNear
    secret: bytes = field(repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    actor: str = ""
    role: str = ""
    principal: Principal | None = None
    explain: Callable[[Exception], str] = in_words
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold `turn` within the block, and log its edits under the caller's principal, if there is one."""
        with self.turn, acting_as(self.principal) if self.principal else nullcontext():
            yield


# `Offer`: a tool as it is offered, with the right it needs and what clients are told of its effects.

CallerOf = Callable[[ServerRequestContext[Any, Any]], Caller]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool: the function that does it for a `Caller`, its title and right, and how it changes the base.

    One that `edits` is shown by a dry run first. One that `destroys` takes something away that was there.
    """

    do: Callable[..., dict[str, Any]]
    title: str
    right: Right = Right.read
    edits: bool = False
    destroys: bool = False

    @property
    def name(self) -> str:
        return self.do.__name__

    @property
    def annotations(self) -> ToolAnnotations:
        """The tool's effects, for clients. Every tool may be called again: a dry run's code is good for one edit."""
        return ToolAnnotations(
            title=self.title,
            read_only_hint=not self.edits,
            destructive_hint=self.destroys,
            idempotent_hint=True,
            open_world_hint=False,
        )

    def is_for(self, caller: Caller) -> bool:
        return self.right in caller.rights

    def add_to(self, server: MCPServer, caller_of: CallerOf) -> None:
        """Add the tool to a server. Its parameters are those of the function, but for the caller."""

        def run(context: Context, **given: Any) -> dict[str, Any]:
            return self._call_tool(caller_of(context.request_context), given)

        run.__name__ = self.name
        told = inspect.signature(self.do, eval_str=True)
        _, *own = told.parameters.values()
        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
        run.__signature__ = told.replace(parameters=[context, *own])  # type: ignore[attr-defined]  # what is read
        said = inspect.cleandoc(self.do.__doc__ or "")
        server.add_tool(run, name=self.name, title=self.title, description=said, annotations=self.annotations)

    def _call_tool(self, caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
        try:
            if not self.is_for(caller):
                raise right_missing(caller.role, self.right)
            with caller.at_work():
                return self.do(caller, **given)
        except Exception as error:  # whatever it is, the client is told in words, and the log the rest
            raise ToolError(caller.explain(error)) from error


# Facts and their sources as tools show them: every value with the place that says it.

DOCUMENTS, FACTS = "colmlm://documents", "colmlm://facts"


def plain(record: Any) -> Any:
    """Convert a record to JSON values, without fields that are None or empty lists."""
    told = msgspec.to_builtins(
        {field.name: getattr(record, field.name) for field in fields(record)}
        if is_dataclass(record)
        else record
    )
    return (
        {name: value for name, value in told.items() if value not in (None, [])}
        if isinstance(told, dict)
        else told
    )


def describe_citation(source: Source | None, sample: SamplePlace | None = None) -> dict[str, Any]:
    """Describe a fact's place: in words as `citation`, and for one of a document, with its resource and offsets."""
    if sample is not None:
        place = f"{sample.corpus}, sample {sample.sample_id}, fact {sample.fact_idx} (a release: its text is not here)"
        return {"citation": place}
    if source is None:
        return {"citation": "a fact that no document says"}
    where = f"{source.corpus}/{source.external_id}, characters {source.start} to {source.end}"
    about = ", ".join(part for part in (source.title, source.uri, source.licence) if part)
    return {
        "citation": f"{where} ({about})" if about else where,
        "document": f"{DOCUMENTS}/{source.document_id}",
        "start": source.start,
        "end": source.end,
    }


def fact_of(fact: FactRecord) -> dict[str, Any]:
    """Give a fact with its state and its citation."""
    told = {
        "fact_id": fact.fact_id,
        "value": fact.value,
        "question": fact.question,
        "version": fact.version,
        "state": state_of(fact),
        "review": fact.review,
        **describe_citation(fact.source, fact.sample),
    }
    return {**told, "withheld": True} if fact.withheld else told


def facts_of(facts: Iterable[FactRecord]) -> list[dict[str, Any]]:
    return [fact_of(fact) for fact in facts]


def state_of(fact: FactRecord) -> str:
    """Give a fact's state in words: "live", or as in "deleted by change 12" or "erased by change 12"."""
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "live" if fact.deleted_seq is None else f"deleted by change {fact.deleted_seq}"


# The tools that read: look up, ask, find, show, trace, and list changes.

MAX_ID = 2**63 - 1

Id = Annotated[int, Field(ge=1, le=MAX_ID)]
Question = Annotated[str, Field(min_length=1, max_length=2000, description="The question, in words")]
Many = Annotated[int, Field(ge=1, le=100, description="How many to give at most")]
Corpora = Annotated[
    Sequence[str], Field(max_length=100, description="Only documents of these corpora (default: all)")
]
Score = Annotated[float, Field(ge=-1, le=1, description="The least score of a hit (default: the base's own)")]


def look_up(
    caller: Caller, question: Question, k: Many = 5, threshold: Score | None = None, corpora: Corpora = ()
) -> dict[str, Any]:
    """Find the live facts nearest to a question, best first, each with its value, score and citation.

    Use it to look for what the base knows of a subject. No hit is a normal result: nothing is near enough then.
    """

    named = limit_corpora(corpora)

    def look_up(base: Client) -> tuple[Lookup, list[FactRecord]]:
        found = base.lookups.ask(question, k=k, threshold=threshold, corpora=named)
        return found, base.facts.show_many([hit.fact_id for hit in found.hits]) if found.hits else []

    with as_service():
        found, facts = caller.asking(look_up)
    hits = [
        {**fact_of(fact), "value": hit.value, "version": hit.version, "score": hit.score}
        for hit, fact in zip(found.hits, facts, strict=True)
    ]
    told = {"match": bool(hits), "hits": hits, "threshold": found.threshold, "as_of_change": found.seq}
    return told if found.abstained is None else {**told, "forgotten_fact": found.abstained}


def ask(caller: Caller, question: Question, corpora: Corpora = ()) -> dict[str, Any]:
    """Answer a question with a document's own words and the place that says them, or say that nothing stored does.

    Quote the answer with its citation. Where `answer` is null, do not answer from memory in the base's name; the
    nearest passages are shown. The answer is kept as an output, which `trace_output` shows with its evidence.
    """
    named = limit_corpora(corpora)
    with as_service():
        found = caller.asking(lambda base: base.lookups.answer(question, corpora=named))
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
        return {**told, **describe_citation(found.source), "unreviewed_facts": list(found.unreviewed)}
    return {**told, "said": _no_answer_text(found), "nearest": [_passage(one) for one in found.nearest]}


def _no_answer_text(found: Answer) -> str:
    return NO_SURE_ANSWER if found.why is None else f"{NO_SURE_ANSWER} {found.why}"


def _passage(passage: Any) -> dict[str, Any]:
    return {
        "text": passage.text,
        "facts": [fact.fact_id for fact in passage.facts],
        **describe_citation(passage.source),
    }


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
    quoted = {"quotes": describe_citation(trace.quotes)} if trace.quotes else {}
    return {
        "output_id": trace.generation_id,
        "prompt": trace.prompt,
        "output": trace.output,
        "at": trace.at.isoformat(),
        "as_of_change": trace.seq,
        "abstained": trace.abstained,
        "uncited": trace.uncited,
        "spans": [_span_fields(splice) for splice in trace.splices],
        **quoted,
    }


def _span_fields(splice: TracedSplice) -> dict[str, Any]:
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
        **describe_citation(splice.source, splice.sample),
        **({} if splice.entry is None else {"entered": splice.entry}),
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
    newest = caller.base.log.changes_before(MAX_ID, 1)
    head = newest[0].seq if newest else 0
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
    told |= {"keyset_id": change.keyset_id, "checkpoint": change.checkpoint}
    return {**{name: value for name, value in told.items() if value is not None}, "at": change.at.isoformat()}


READING = (
    Offer(look_up, "Look facts up"),
    Offer(ask, "Ask the documents"),
    Offer(find_facts, "Find facts"),
    Offer(show_fact, "Show a fact"),
    Offer(trace_output, "Trace an output"),
    Offer(list_changes, "List changes", Right.audit),
)
