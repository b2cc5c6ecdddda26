"""Judges items in several conversations at once, and keeps each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Item = TypeVar("Item")


def judge_each(
    items: Iterable[Item],
    judge: Callable[[Item], dict[str, Any]],
    keep: Callable[[Item, dict[str, Any]], None],
    *,
    concurrency: int,
    stop: Callable[[], None],
) -> None:
    """Judges each item in a thread, and keeps the row in the calling thread.

    If one fails, `stop` is called, the conversations in progress are finished and kept, and the error is raised.
    """
    waiting = iter(items)
    running: dict[Future[dict[str, Any]], Item] = {}
    with ThreadPoolExecutor(concurrency, "judge") as pool:
        try:
            while True:
                while len(running) < concurrency and (item := next(waiting, None)) is not None:
                    running[pool.submit(judge, item)] = item
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    keep(item, future.result())
        except BaseException:
            stop()
            for future in wait(running).done:
                if future.exception() is None:
                    keep(running[future], future.result())
            raise
