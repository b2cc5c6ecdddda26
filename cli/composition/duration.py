"""How long annotation takes, told before it begins."""

from __future__ import annotations

# Of one core, as measured (docs/annotation.md): enough to tell seconds from hours.
SECONDS_TO_LOAD, SECONDS_A_KB, SECONDS_A_KB_ASKED = 8.0, 0.25, 9.0
WORTH_TELLING = 20.0  # seconds


def expected(characters: int, *, asks: bool) -> float:
    """Estimates how many seconds one core takes to annotate and key so much text, and where it `asks`, to ask."""
    return SECONDS_TO_LOAD + characters / 1000 * (SECONDS_A_KB_ASKED if asks else SECONDS_A_KB)


def lasting(seconds: float) -> str:
    """Says about how long something takes."""
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} seconds"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.0f} hours"
