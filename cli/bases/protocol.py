"""`Base`: the protocol of a knowledge base for commands, on this machine or behind an API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from colmlm.api.nouns.nouns import Nouns

if TYPE_CHECKING:
    from colmlm.api.nouns.generation import DecoderVerbs

T = TypeVar("T")


class Base(Nouns, Protocol):
    """A knowledge base with what commands need beside its nouns."""

    @property
    def server(self) -> str | None:
        """The address of its API; None where it is this machine's."""
        ...

    def actor(self, named: str | None) -> str:
        """Gives the actor to log: `named`, else that of the settings; for a server "", which means the token."""
        ...

    def only_here(self, **given: object) -> None:
        """Refuses those of these options that are given, where the base is behind an API that does not support them."""
        ...

    def use_checkpoint(self, path: Path | None) -> None:
        """Encodes with this checkpoint (None: that of the settings). A server encodes with its own."""
        ...

    def use_ray(self, address: str | None, workers: int | None) -> None:
        """Has bulk work done by Ray there (None: as the settings say). A server's worker has settings of its own."""
        ...

    def answered(
        self, ask: Callable[[Base], T], *, checkpoint: Path | None, as_of: int | None, verbose: bool
    ) -> T:
        """Gives what `ask` gives of this base, or of a server on this machine that has the model loaded already."""
        ...

    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> AbstractContextManager[DecoderVerbs]:
        """Gives a decoder on this machine, or the server's where `there`; it looks up and stores in this base."""
        ...
