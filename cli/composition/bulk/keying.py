"""Keys a queue in parts on Ray."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colmlm.kb.keys.records import RekeyPart

if TYPE_CHECKING:
    from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.composition.bulk.spreading import Spreading, spreading_of


def keying_elsewhere(runtime: Runtime, checkpoint: Path | None = None) -> KeyingElsewhere | None:
    """Give what keys parts of a rekey on Ray, by the checkpoint that is named, or else the one that was registered.

    It is None where the settings of the runtime name no place for bulk work.
    """
    spreading = spreading_of(runtime)
    return None if spreading is None else KeyingElsewhere(spreading, checkpoint)


@dataclass(frozen=True, slots=True)
class KeyingElsewhere:
    """A `kb.keys.rekey.Elsewhere`: has parts of a rekey worked on Ray."""

    spreading: Spreading
    checkpoint: Path | None = None

    def __call__(self, parts: Sequence[RekeyPart]) -> Generator[int, None, None]:
        with closing(self.outcomes(parts)) as outcomes:
            for stored in outcomes:
                yield stored or 0

    def outcomes(self, parts: Sequence[RekeyPart]) -> Generator[int | None, None, None]:
        """Give how many keys were stored of each part as it is done, and None every second."""
        from colmlm.kb.log.audit import (
            current_entry,  # imports the database's library, which help does not need
        )

        named = None if self.checkpoint is None else str(self.checkpoint.absolute())
        given = {"origin": asdict(current_entry()), "checkpoint": named}
        return self.spreading.outcomes("key", given, parts)
