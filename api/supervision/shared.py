"""What the server processes of one supervisor share in memory: which of them are up, rate limits, and metrics' files.

It is a file without a name, mapped by all of them. Its lock is the system's, which frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from colmlm.api.door.limits import Clock, taken

_CELL = struct.Struct("<q")
_BUCKET = struct.Struct("<qqdd")  # the token's id and one, its rate, its permits, and when they were counted
_BUCKETS, _NEAR = (
    4096,
    16,
)  # a token's bucket is one of sixteen; where all are others', the one used longest ago goes


class Shared:
    """Made before the first fork. Each process uses it from one thread at a time, but for `counted_since`."""

    def __init__(self, num_servers: int, metrics_folder: Path) -> None:
        self.num_servers, self.metrics_folder = num_servers, metrics_folder
        self._rates_at = _CELL.size * (1 + num_servers)
        size = self._rates_at + _BUCKET.size * _BUCKETS
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
            self._file = os.dup(file.fileno())  # open as long as the process lives

    def tell_up(self, place: int, pid: int) -> None:
        """Notes the process that serves at this place; 0 where there is none."""
        _CELL.pack_into(self._memory, _CELL.size * (1 + place), pid)

    def up(self, place: int) -> int:
        """Gives the process that serves at this place; 0 where there is none."""
        pid: int = _CELL.unpack_from(self._memory, _CELL.size * (1 + place))[0]
        return pid

    def are_all_up(self) -> bool:
        return all(self.up(place) for place in range(self.num_servers))

    def counted_since(self, head: int) -> int:
        """Gives the change since which changes are counted: `head`, where no process was asked before."""
        with self._locked():
            if not (since := _CELL.unpack_from(self._memory, 0)[0]):
                since = head + 1
                _CELL.pack_into(self._memory, 0, since)
        return int(since) - 1

    def rates(self, clock: Clock = time.monotonic) -> Callable[[int, int], float]:
        """Gives what takes a permit of a token at a rate, and says how long to wait where there is none."""

        def take(token_id: int, per_minute: int) -> float:
            with self._locked():
                at = self._bucket(token_id)
                named, rate, permits, since = _BUCKET.unpack_from(self._memory, at)
                now = clock()
                if (named, rate) != (token_id + 1, per_minute):
                    permits, since = float(per_minute), now
                permits, wait = taken(permits, now - since, per_minute)
                _BUCKET.pack_into(self._memory, at, token_id + 1, per_minute, permits, now)
                return wait

        return take

    def _bucket(self, token_id: int) -> int:
        places = [self._rates_at + _BUCKET.size * ((token_id + n) % _BUCKETS) for n in range(_NEAR)]
        found = [(_BUCKET.unpack_from(self._memory, at), at) for at in places]
        own = next((at for (named, *_), at in found if named == token_id + 1), None)
        return min(found, key=lambda one: one[0][3])[1] if own is None else own

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
