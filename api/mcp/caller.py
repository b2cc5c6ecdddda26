"""`Caller`: on whose behalf a tool works, with which rights and on which base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from colmlm.api.errors import problem_of
from colmlm.api.nouns.nouns import Nouns
from colmlm.kb.access.tokens import Right
from colmlm.kb.log.audit import acting_as
from colmlm.kb.principal import Principal

T = TypeVar("T")

ALL_RIGHTS = frozenset(Right)


def in_words(error: Exception) -> str:
    """Gives the cause and remedy of an error as the API tells it; what it does not know goes to the log alone."""
    return problem_of(error)[0].detail


class AskingNear(Protocol):
    """Asks a base that has the model loaded already, where there is one, in place of the caller's own."""

    def __call__(self, ask: Callable[[Nouns], T], /) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls tools. The log names the `principal` where there is one, else `actor`.

    `secret` is that of the process, and keys the codes of dry runs.

    `explain` puts an error into words for the client.

    `turn` is held while a tool works: what a base of this process shares between its callers, such as a model that is
    loaded on first use, is not made for two at once.
    """

    base: Nouns
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
        """Lets the caller edit within the block, in turn with others."""
        with self.turn, acting_as(self.principal) if self.principal else nullcontext():
            yield
