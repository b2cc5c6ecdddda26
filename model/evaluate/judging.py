"""Does judging in several conversations at once, and keeps what each came to as soon as it is there."""

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
    """Judge each item in a thread, and keep the row in this one.

    Where something fails, `stop` is called, what is being judged is waited for and kept, and the error raised.
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
