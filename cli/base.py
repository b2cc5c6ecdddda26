"""`Base`: a knowledge base as a command works with it, here or elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from colmlm.kb.nouns.generation import DecoderVerbs
from colmlm.kb.nouns.nouns import Nouns


class Base(Nouns, Protocol):
    """A knowledge base as commands see it."""

    @property
    def server(self) -> str | None:
        """Its address, where it is elsewhere."""
        ...

    def actor(self, named: str | None) -> str:
        """Who an edit is recorded under; elsewhere "" where nobody is named: the key's own name."""
        ...

    def only_here(self, **given: object) -> None:
        """Refuse those of these options that are given, where they cannot be heeded elsewhere."""
        ...

    def use_checkpoint(self, path: Path | None) -> None:
        """Encode with this checkpoint, None: the settings' own. Elsewhere the server encodes with its own."""
        ...

    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> AbstractContextManager[DecoderVerbs]:
        """Decodes on this machine, or `there`; looks up and stores in this base."""
        ...
