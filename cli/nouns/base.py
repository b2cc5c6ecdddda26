"""`Base`: a knowledge base, here or elsewhere, by its nouns."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colmlm.api.ports import GenerationRequest, Item
    from colmlm.cli.nouns.facts import CorpusVerbs, DocumentVerbs, FactVerbs, OutputVerbs
    from colmlm.cli.nouns.log import Log
    from colmlm.cli.nouns.removal import ErasureVerbs, ForgetVerbs
    from colmlm.cli.nouns.running import JobVerbs, KeysetVerbs, KeyVerbs
    from colmlm.kb.records import Edit, Lookup, OutputTrace
    from colmlm.kb.upkeep.statistics import Statistics


class Decoder(Protocol):
    """Decodes a prompt, and stores the output; of `cli.composition.generator.StoringGenerator`."""

    def generate(self, request: GenerationRequest) -> OutputTrace: ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]: ...


class Base(Protocol):
    """A knowledge base, here or elsewhere."""

    @property
    def server(self) -> str | None:
        """Its address, where it is elsewhere."""
        ...

    @property
    def facts(self) -> FactVerbs: ...

    @property
    def outputs(self) -> OutputVerbs: ...

    @property
    def log(self) -> Log: ...

    @property
    def documents(self) -> DocumentVerbs: ...

    @property
    def jobs(self) -> JobVerbs: ...

    @property
    def keysets(self) -> KeysetVerbs: ...

    @property
    def keys(self) -> KeyVerbs: ...

    @property
    def forgetting(self) -> ForgetVerbs: ...

    @property
    def erasures(self) -> ErasureVerbs: ...

    @property
    def corpora(self) -> CorpusVerbs: ...

    def actor(self, named: str | None) -> str:
        """Who an edit is recorded under; elsewhere "" where nobody is named: the key's own name."""
        ...

    def only_here(self, **given: object) -> None:
        """Refuse those of these options that are given, where they cannot be heeded elsewhere."""
        ...

    def use_checkpoint(self, path: Path | None) -> None:
        """Encode with this checkpoint, None: the settings' own. Elsewhere the server encodes with its own."""
        ...

    def insert(
        self,
        question: str,
        value: str,
        *,
        answer: str | None,
        actor: str,
        reason: str,
        allow_erased: bool,
        is_keyed: bool,
    ) -> tuple[Edit, bool]:
        """Add a fact and key it, unless it is not to be; and whether it has a key now."""
        ...

    def look_up(
        self, question: str, *, k: int, threshold: float | None, min_seq: int | None, as_of: int | None
    ) -> Lookup: ...

    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> AbstractContextManager[Decoder]:
        """Decodes on this machine, or `there`; looks up and stores in this base."""
        ...

    def statistics(self) -> Statistics: ...
