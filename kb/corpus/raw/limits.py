"""The limits for reading one document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Why reading a document ended: the limit that it exceeded, or "broken" where its reader failed.
Breach = Literal["memory", "time", "size", "broken"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one document: megabytes of memory, seconds of processor time, and characters of its text."""

    memory_mb: int = 1024
    seconds: int = 60
    characters: int = 20_000_000

    def sentence(self, breach: Breach, how: str = "") -> str:
        """Gives the reason of a refusal; `how` says how the reader ended, as far as that is known."""
        match breach:
            case "memory":
                return f"reading it took more than {self.memory_mb} MB of memory (COLMLM_DOCUMENT_MEMORY_MB)"
            case "time":
                return f"reading it took more than {self.seconds} seconds (COLMLM_DOCUMENT_SECONDS)"
            case "size":
                return f"it gave more than {self.characters} characters (COLMLM_DOCUMENT_CHARACTERS)"
            case "broken":
                return f"its reader broke off ({how}): it is damaged, or takes more than {self.memory_mb} MB of memory"
