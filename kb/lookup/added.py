"""The keys that an index was given lately, so that a search from before need not be repeated for a few."""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 256  # ids; what more were given is searched for


class AddedKeys:
    """The last keys that were added to an index, by the changes that did. One thread notes, others ask meanwhile."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], ...] = ()  # change and key
        self._forgotten = 0  # no key that a change past this one added is missing from the last

    def note(self, seq: int, key_ids: Sequence[int]) -> None:
        """Notes what change `seq` adds."""
        last = (*self._last, *((seq, key_id) for key_id in key_ids))
        if len(last) > KEPT:
            self._forgotten = seq  # before they are dropped, for whoever reads both meanwhile
            last = ()
        self._last = last

    def since(self, seq: int) -> list[int] | None:
        """Gives the keys that changes past `seq` have added; None where that is not known any more."""
        last = self._last
        return None if self._forgotten > seq else [key_id for added, key_id in last if added > seq]
