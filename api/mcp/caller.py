"""`Caller`: on whose behalf a tool works, with which rights and on which base."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import Any, Protocol, TypeVar

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from colmlm.api.client.client import Client
from colmlm.api.errors import problem_of, right_missing
from colmlm.kb.access.records import Right
from colmlm.kb.facts.records import FactRecord, SamplePlace, Source
from colmlm.kb.log.audit import acting_as
from colmlm.kb.principal import Principal

T = TypeVar("T")

ALL_RIGHTS = frozenset(Right)


def in_words(error: Exception) -> str:
    """Give the cause and remedy of an error as the API tells it; what it does not know goes to the log alone."""
    return problem_of(error)[0].detail


class AskingNear(Protocol):
    """Ask a base that has the model loaded already, where there is one, in place of the caller's own."""

    def __call__(self, ask: Callable[[Client], T], /) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls tools. The log names the `principal` where there is one, else `actor`.

    `secret` is that of the process, and keys the codes of dry runs.

    `explain` puts an error into words for the client.

    `turn` is held while a tool works: what a base of this process shares between its callers, such as a model that is
    loaded on first use, is not made for two at once.
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
        """Let the caller edit within the block, in turn with others."""
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
        """What clients are told of it. Every tool may be called again: a dry run's code is good for one edit."""
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
            return self._done(caller_of(context.request_context), given)

        run.__name__ = self.name
        told = inspect.signature(self.do, eval_str=True)
        _, *own = told.parameters.values()
        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
        run.__signature__ = told.replace(parameters=[context, *own])  # type: ignore[attr-defined]  # what is read
        said = inspect.cleandoc(self.do.__doc__ or "")
        server.add_tool(run, name=self.name, title=self.title, description=said, annotations=self.annotations)

    def _done(self, caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
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
    """Give a record as what JSON holds, without what it does not say (None, and empty lists)."""
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


def cited(source: Source | None, sample: SamplePlace | None = None) -> dict[str, Any]:
    """Give where a document says something: in words, as `citation`, and the resource to read it in."""
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
        **cited(fact.source, fact.sample),
    }
    return {**told, "withheld": True} if fact.withheld else told


def facts_of(facts: Iterable[FactRecord]) -> list[dict[str, Any]]:
    return [fact_of(fact) for fact in facts]


def state_of(fact: FactRecord) -> str:
    """Give "live", or by which change it was deleted or erased."""
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "live" if fact.deleted_seq is None else f"deleted by change {fact.deleted_seq}"
