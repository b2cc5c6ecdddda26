"""Gathered: does at once what many requests ask for while the same kind of work is under way.

A request that comes alone waits for nobody. Work always begins after it was asked for, so what it reads is at least as
new as the request: what was committed before a request came holds for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Gathered(Generic[A, T]):
    """Calls `work` with all that was asked for since its last call, up to `most`, one call at a time.

    `work` gives a result for each, or raises what all of them get. For one event loop.
    """

    def __init__(self, work: Callable[[list[A]], Awaitable[Sequence[T]]], most: int) -> None:
        self._work, self._most = work, most
        self._waiting: list[tuple[A, asyncio.Future[T]]] = []
        self._working: asyncio.Task[None] | None = None

    async def ask(self, asked: A) -> T:
        mine: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, mine))
        if self._working is None:
            self._working = asyncio.create_task(self._work_off())
        return await mine

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        finally:
            self._working = None

    async def _answer(self, batch: list[tuple[A, asyncio.Future[T]]]) -> None:
        try:
            results = await self._work([asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - it is raised again where each of them waits
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), result in zip(batch, results, strict=True):
            if not waiting.done():  # its client may have left
                waiting.set_result(result)
