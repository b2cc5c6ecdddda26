"""`Offer`: a tool as it is offered, with the right it needs and what clients are told of its effects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from colmlm.api.errors import RightMissing
from colmlm.api.mcp.caller import Caller
from colmlm.kb.access.tokens import Right

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
        """Adds the tool to a server. Its parameters are those of the function, but for the caller."""

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
                raise RightMissing(caller.role, self.right)
            with caller.at_work():
                return self.do(caller, **given)
        except Exception as error:  # whatever it is, the client is told in words, and the log the rest
            raise ToolError(caller.explain(error)) from error
