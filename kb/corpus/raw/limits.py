"""The limits for reading one document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

# A reader with less memory than that does not even start.
Memory = Annotated[int, Meta(ge=128, le=1_000_000, description="a number from 128 to 1000000")]
Time = Annotated[int, Meta(ge=1, le=86_400, description="a number from 1 to 86400")]
Characters = Annotated[int, Meta(ge=1000, le=100_000_000, description="a number from 1000 to 100000000")]

# Why reading a document ended: the limit that it exceeded, or "broken" where its reader failed.
Breach = Literal["memory", "time", "size", "broken"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one document: megabytes of memory, seconds of processor time, and characters of its text."""

    memory_mb: Memory = 1024
    seconds: Time = 60
    characters: Characters = 20_000_000

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
