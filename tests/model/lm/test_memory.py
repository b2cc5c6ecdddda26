from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from colmlm.model.lm.llama import collapse


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages are asked for on Linux")
def test_memory_that_is_moved_to_huge_pages_holds_what_it_held() -> None:
    held = torch.randint(256, (16 << 20,), dtype=torch.uint8)
    before, huge = held.clone(), huge_kilobytes(held.data_ptr())  # its mapping may hold others' tensors
    for _ in range(5):  # where memory is short, the system takes huge pages apart again at any time
        pages = collapse(held.data_ptr(), held.nbytes)
        assert torch.equal(held, before)
        found = huge_kilobytes(held.data_ptr())
        if found >= max(huge, 2048 * min(pages, 1)):  # the system may have taken all but one apart already
            break
    else:
        pytest.skip(
            f"{pages} huge pages were made, and {found} KiB are left: the system takes them apart at once"
        )


def huge_kilobytes(address: int) -> int:
    """Gives the size of the huge pages of the mapping that this address is in."""
    is_in = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if "-" in first and ":" not in first:
            start, end = (int(bound, 16) for bound in first.split("-"))
            is_in = start <= address < end
        elif is_in and first == "AnonHugePages:":
            return int(others[0])
    raise AssertionError("no mapping")
