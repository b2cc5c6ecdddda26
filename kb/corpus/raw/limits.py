"""What reading one document may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Why a document was given up: what it took too much of, or that its reader ended over it.
Breach = Literal["memory", "time", "size", "broken"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Megabytes of memory, seconds of processor time, and characters of text that may come of it."""

    memory_mb: int = 1024
    seconds: int = 60
    characters: int = 20_000_000

    def sentence(self, breach: Breach, how: str = "") -> str:
        """The reason of a refusal; `how` is what is known of a reader's end."""
        match breach:
            case "memory":
                return f"reading it took more than {self.memory_mb} MB of memory (COLMLM_DOCUMENT_MEMORY_MB)"
            case "time":
                return f"reading it took more than {self.seconds} seconds (COLMLM_DOCUMENT_SECONDS)"
            case "size":
                return f"it gave more than {self.characters} characters (COLMLM_DOCUMENT_CHARACTERS)"
            case "broken":
                return f"its reader broke off ({how}): it is damaged, or takes more than {self.memory_mb} MB of memory"
