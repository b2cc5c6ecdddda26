"""Ray's driver, a process of its own that `spreading` starts: `python -m colmlm.cli.composition.bulk.driver`.

Ray takes over a process: it knows one cluster in it, replaces handlers of signals, writes on stdout, and puts the
current directory on the path of all workers. So it gets this one, in an empty directory, with the environment that its
workers are to have. On stdin it reads an order, and then rounds of rows, each ended by an empty line. On stdout it
says once that it is in its cluster, and then of each row what came of it, in the order in which rows are done. Where
stdin ends, the command has, or wants no more: then it ends with all that it started, whatever that is at.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, TextIO

import msgspec

from colmlm.cli.composition.bulk.messages import (
    CONNECTED,
    STOP_SECONDS,
    Order,
)
from colmlm.cli.composition.bulk.worker import RayWorker

if TYPE_CHECKING:
    pass


LOOPBACK = "127.0.0.1"
STORE_BYTES = 256 << 20  # rows are small; by default Ray takes a third of the memory


def main() -> None:
    """Do what the order on stdin says, until stdin ends."""
    answers = _stdout()
    # Not sys.stdin: Python locks that when it ends, and the thread reads until then.
    source = os.fdopen(0, "rb", closefd=False)
    order = msgspec.json.decode(source.readline(), type=Order)
    waiting: SimpleQueue[list[str]] = SimpleQueue()
    threading.Thread(target=_read, args=(source, waiting), name="the command", daemon=True).start()
    with _cluster(order):
        _say(answers, CONNECTED)
        while True:
            for told in _worked(order, waiting.get()):
                _say(answers, told)


def _say(answers: TextIO, line: str) -> None:
    answers.write(f"{line}\n")
    answers.flush()


def rounds(source: BinaryIO) -> Iterator[list[str]]:
    """Give round after round of rows, which are UTF-8 whatever the locale says."""
    while rows := [line.decode().rstrip("\n") for line in takewhile(bytes.strip, source)]:
        yield rows


def _read(source: BinaryIO, waiting: SimpleQueue[list[str]]) -> None:
    """Read rounds until stdin ends; then ends this process as Ray wants it to, or else by the system."""
    try:
        for rows in rounds(source):
            waiting.put(rows)
    finally:  # also where a row cannot be read, or the others would wait for more
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)


def _stdout() -> TextIO:
    """Give stdout, and send to stderr what anybody else writes there."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


@contextmanager
def _cluster(order: Order) -> Iterator[None]:
    """Connect to the cluster, or starts one on this machine that nobody outside of it can reach."""
    import logging

    import ray

    if order.address is None:
        ray.init(
            address="local",
            num_cpus=order.workers,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=LOOPBACK,
            _temp_dir=order.directory,
        )
    else:
        ray.init(address=order.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _worked(order: Order, rows: list[str]) -> Iterator[str]:
    """Give what came of each row. A row whose worker or node died is worked again, and its outcome given once."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    has_gpus = bool(there := int(ray.cluster_resources().get("GPU", 0)))
    workers = order.workers or there or max(1, int(ray.cluster_resources().get("CPU", 1)))
    made = ray.data.from_items([{"row": row} for row in rows], override_num_blocks=len(rows)).map(
        RayWorker,
        fn_constructor_args=(order.errand, msgspec.json.encode(order.given).decode()),
        compute=ActorPoolStrategy(size=min(workers, len(rows))),
        num_cpus=0 if has_gpus else 1,
        num_gpus=1 if has_gpus else 0,
    )
    for row in made.iter_rows():
        yield str(row["told"])


if __name__ == "__main__":
    main()
