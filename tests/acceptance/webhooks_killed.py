"""Kills workers that deliver webhooks with -9, again and again, while facts are edited and the receiver fails at times.

Two workers run throughout; one of them is killed at a random instant and replaced. The outcome has how many changes
were made, how many messages came and how many of them came twice, and how many were `lost`, `overtaken` (taken before
one that is older was) or `unverified` by the library for Standard Webhooks.

    python -m tests.acceptance.webhooks_killed --kills 30 --json
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

from standardwebhooks.webhooks import WebhookVerificationError

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario
from tests.places import PYTHONPATH, ROOT
from tests.receiver import LOOPBACK, Received, Receiver, receiver

WORKERS = 2
REFUSED_EACH = 10  # of so many requests one is answered 503
AT_MOST = 0.2  # seconds after the arrival of a message at which a worker is killed
PATIENCE = 200.0  # seconds

Worker = subprocess.Popen[bytes]


def run(settings: Settings, *, kills: int = 30, seed: int = 1) -> Figures:
    """Kill so many workers while facts are edited and the receiver fails at times."""
    began, drawn = time.monotonic(), random.Random(seed)
    with KnowledgeBase.open(replace(settings, webhook_networks=LOOPBACK)) as kb, receiver() as hook:
        hook.answer = refusing()
        secret, _ = kb.webhooks.add(hook.url, kinds=["insert"])
        with working(kb) as workers:
            with edited(kb) as seqs:
                for _ in range(kills):
                    hook.await_number(len(hook.received) + 1, PATIENCE)
                    time.sleep(drawn.uniform(0, AT_MOST))
                    kill(workers.pop(drawn.randrange(WORKERS)))
                    workers.append(worker(kb))
            hook.await_taken(len(seqs), PATIENCE)
        return outcome(hook, seqs, secret, kills, time.monotonic() - began)


def refusing() -> Callable[[Received], tuple[int, dict[str, str]]]:
    """Answers 503 now and then."""
    came = [0]

    def answer(_: Received) -> tuple[int, dict[str, str]]:
        came[0] += 1
        return (204 if came[0] % REFUSED_EACH else 503), {}

    return answer


@contextmanager
def edited(kb: KnowledgeBase) -> Iterator[list[int]]:
    """Adds facts one after another in the block, and gives the numbers of the changes so far."""
    seqs: list[int] = []
    is_over = threading.Event()

    def edit() -> None:
        while not is_over.wait(0.1):
            seqs.append(kb.facts.add(f"Question {len(seqs)}?", "value", actor="ann", reason="edit").seq)

    editing = threading.Thread(target=edit)
    editing.start()
    try:
        yield seqs
    finally:
        is_over.set()
        editing.join()


@contextmanager
def working(kb: KnowledgeBase) -> Iterator[list[Worker]]:
    """Runs workers in the block, which may replace them."""
    workers = [worker(kb) for _ in range(WORKERS)]
    try:
        yield workers
    finally:
        for one in workers:
            kill(one)


def worker(kb: KnowledgeBase) -> Worker:
    url, home = kb.engine.url.render_as_string(hide_password=False), kb.settings.home
    command = interpreter.command("-m", "tests.kb.webhooks.process", url, home)
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)


def kill(one: Worker) -> None:
    one.kill()
    one.wait()


def outcome(hook: Receiver, seqs: list[int], secret: str, kills: int, seconds: float) -> Figures:
    """Say what became of the changes that were made while workers were killed."""
    taken = hook.taken()
    firsts = list(dict.fromkeys(taken))
    return {
        "changes": len(seqs),
        "kills": kills,
        "requests": len(hook.received),
        "refused": len(hook.received) - len(taken),
        "repeated": len(taken) - len(firsts),
        "lost": len(set(seqs) - set(taken)),
        "overtaken": sum(later < earlier for earlier, later in pairwise(firsts)),
        "unverified": sum(not _is_verified(one, secret) for one in hook.received),
        "seconds": round(seconds, 1),
    }


def _is_verified(one: Received, secret: str) -> bool:
    try:
        one.verified(secret)
    except WebhookVerificationError:
        return False
    return True


if __name__ == "__main__":
    run_scenario(run)
