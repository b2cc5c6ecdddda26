"""Work that is gathered: for all who asked, begun after they asked, and one refusal for all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from colmlm.api.middleware.limiters import Batcher


class Doubling:
    """Doubles numbers, a batch each time it is let go on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, asked: list[int]) -> Sequence[int]:
        self.batches.append(asked)
        await self.go_on.wait()
        if 13 in asked:
            raise ValueError("13")
        return [2 * number for number in asked]


def test_who_asks_while_work_is_done_is_answered_by_the_next_which_begins_later() -> None:
    async def scene() -> None:
        doubling = Doubling()
        gathered = Batcher(doubling, most=3)
        asking = [asyncio.create_task(gathered.ask(number)) for number in (1,)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking += [asyncio.create_task(gathered.ask(number)) for number in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        assert doubling.batches == [[1]]
        doubling.go_on.set()
        assert await asyncio.gather(*asking) == [2, 4, 6, 8, 10]
        assert doubling.batches == [[1], [2, 3, 4], [5]]
        assert await gathered.ask(6) == 12

    asyncio.run(scene())


def test_an_error_is_everybodys_and_who_left_keeps_nobody() -> None:
    async def scene() -> None:
        doubling = Doubling()
        gathered = Batcher(doubling, most=3)
        left, *asking = [asyncio.create_task(gathered.ask(number)) for number in (1, 13, 2)]
        await asyncio.sleep(0)
        left.cancel()
        doubling.go_on.set()
        for one in asking:
            with pytest.raises(ValueError, match="13"):
                await one
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await gathered.ask(4) == 8

    asyncio.run(scene())
