"""Settings of memory: what the allocator keeps, and which tensors lie in huge pages.

With its defaults glibc maps each tensor anew, and training spends most of its time in page faults. Raised thresholds
keep the memory, but then a third of a training step is spent searching glibc's lists of free chunks. jemalloc does
neither, once configured to treat large allocations like any other.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Sequence

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 512 << 20, 128 << 20
_MADV_COLLAPSE, _HUGE = 25, 2 << 20  # Linux 6.1 and later
# By default jemalloc returns allocations over 8 MiB at once; freed memory is kept for 20 seconds instead.
_JEMALLOC_CONFIG = "oversize_threshold:0,dirty_decay_ms:20000,muzzy_decay_ms:20000"


def prefer_jemalloc(again: Sequence[str]) -> None:
    """Restarts this process under jemalloc if the system has it; otherwise raises glibc's thresholds.

    `again` is the command line that starts the process again. Call this first: it replaces the process, and whatever
    was done before is lost. It returns only where no restart is needed, or none is possible.
    """
    library = ctypes.util.find_library("jemalloc")
    if library is None or not sys.platform.startswith("linux"):
        keep_large_tensors()
        return
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "jemalloc" in preloaded:
        return
    environment = {
        "MALLOC_CONF": _JEMALLOC_CONFIG,
        **os.environ,
        "LD_PRELOAD": f"{library}:{preloaded}".rstrip(":"),
    }
    sys.stdout.flush()
    os.execve(again[0], list(again), environment)


def keep_large_tensors() -> bool:
    """Raises glibc's thresholds for this process, within bounds: without a bound glibc keeps all memory it ever freed.

    Returns False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    set_mmap = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    return bool(set_mmap and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def collapse(address: int, num_bytes: int) -> int:
    """Moves this memory into huge pages, where the system can, and gives their number; what it holds stays as it is.

    Each page is asked for by itself, outwards to its bounds: small tensors share a page with their neighbours, and one
    that is not mapped as a whole stays as it was.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform.startswith("linux") else None
    if madvise is None:
        return 0
    pages = range(address // _HUGE * _HUGE, address + num_bytes, _HUGE)
    return sum(madvise(ctypes.c_void_p(p), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE) == 0 for p in pages)
