"""`RemoteBase`: a knowledge base behind its API for commands, which can also decode with a model of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from colmlm.api.client.api import refuse
from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection
from colmlm.cli.composition.runtime import Runtime

if TYPE_CHECKING:
    from colmlm.kb.evidence.generation import StoringDecoder
    from colmlm.kb.evidence.records import NewOutput, OutputTrace
    from colmlm.kb.facts.records import Source


T = TypeVar("T")


class RemoteBase(Client):
    """What `LocalBase` is, by requests to a server. The runtime only decodes, and opens no database."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        super().__init__(connection, runtime.telling)
        self._runtime = runtime

    @property
    def server(self) -> str:
        return self.connection.url

    def actor(self, named: str | None) -> str:
        return named or ""

    def only_here(self, **given: object) -> None:
        refuse(**given)

    def use_checkpoint(self, path: Path | None) -> None:
        self.only_here(checkpoint=path)

    def use_ray(self, address: str | None, workers: int | None) -> None:
        self.only_here(ray=address, ray_workers=workers)

    def answered(
        self, ask: Callable[[Any], T], *, checkpoint: Path | None, as_of: int | None, verbose: bool
    ) -> T:
        found = ask(self)
        if verbose:
            self._runtime.telling.note(f"Answered by the server at {self.server}.")
        return found

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringDecoder]:
        if there:
            refuse(checkpoint=checkpoint, as_of=as_of)
            yield self.decoder
            return
        from colmlm.cli.composition.generator import StoringGenerator
        from colmlm.kb.lookup.options import KEY

        runtime = Runtime.from_environment(checkpoint=checkpoint)
        loaded, outputs = runtime.checkpoint, OutputsElsewhere(self)
        self.lookups.require(loaded.checkpoint_id)
        if as_of is None:
            yield StoringGenerator(loaded, outputs, self.lookups, ranking=runtime.serving.ranking)
        else:
            yield StoringGenerator(loaded, outputs, self.lookups.as_of(as_of), as_of, ranking=KEY)


class NearBase(RemoteBase):
    """The base behind a server that runs on this home with the checkpoint that a command asks for."""

    def use_checkpoint(self, path: Path | None) -> None:
        """Do nothing, since the server has it."""

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringDecoder]:
        yield self.decoder


@dataclass(frozen=True, slots=True)
class OutputsElsewhere:
    """Stores outputs in the knowledge base of a server; a `cli.composition.generator.OutputStore`."""

    client: Client

    def store(self, generation: NewOutput) -> OutputTrace:
        return self.client.outputs.record_from_elsewhere(generation)

    def source(self, fact_id: int) -> Source | None:
        """Give None, since the server gives the source only once the output is stored."""
        return None

    def head_seq(self) -> int:
        return self.client.lookups.space().head_seq
