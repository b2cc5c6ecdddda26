"""Keep the allocator from giving large tensors back to the kernel at every step.

Left alone, glibc maps each tensor anew and training spends most of its time in page faults. Raised
thresholds keep the memory, but then a third of a training step goes into searching glibc's lists of free
chunks. jemalloc does neither, once told to treat large allocations like any other.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Sequence

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 512 << 20, 128 << 20
# By default jemalloc returns allocations over 8 MiB at once; freed memory is kept for 20 seconds instead.
_JEMALLOC_CONFIG = "oversize_threshold:0,dirty_decay_ms:20000,muzzy_decay_ms:20000"


def prefer_jemalloc(again: Sequence[str]) -> None:
    """Start this process anew under jemalloc where the system has it; else raise glibc's thresholds.

    `again` is the command line that does so.
    Call it first: nothing done before survives. Returns where there is nothing to change any more.
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
    """Raise glibc's thresholds for this process, within bounds: without one it keeps all it ever freed.

    False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    set_mmap = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    return bool(set_mmap and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
