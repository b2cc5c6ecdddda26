"""Two worker nodes of Ray key the facts of a base; one is killed after a commit and before Ray heard of it.

The nodes are raylets on this machine, each with a worker process. That moment is not left to chance: a lock on the
facts, asked for while the node's worker has claimed a batch, is granted when that is committed, and holds the worker
before its next statement, which it runs before it tells Ray of the part. Then the whole node is killed. The outcome
compares the keys with those that one process made of the same facts in another database.

    python -m tests.acceptance.ray_nodes --facts 100000
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sqlalchemy import Connection, text

from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario, soundness
from colmlm.model.lm.checkpoint import load
from tests import servers
from tests.tiny import tiny_checkpoint

LOOPBACK, WAIT_SECONDS = "127.0.0.1", 240
WORKERS = text("""
SELECT substring(application_name FROM 'process ([0-9]+)')::int AS process, wait_event_type = 'Lock' AS waits,
       EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid = one.pid AND locktype = 'advisory' AND granted) AS has_claimed
FROM pg_stat_activity AS one WHERE datname = current_database() AND application_name LIKE 'colmlm, process % of Ray'
""")
COMMITTED = text("SELECT count(*) FROM change WHERE kind = 'key'")
KEYED = text("SELECT count(*), count(DISTINCT (fact_id, kind)) FROM fact_key")


_FACTS = 4  # of a document


def documents(facts: int) -> Iterator[AnnotatedDocument]:
    """Make documents of four facts each."""
    for number in range(facts // _FACTS):
        text, spans = "", []
        for tower in range(_FACTS):
            value = f"{7 * number + tower} metres"
            text += f"Tower {tower} of town {number} has a height of "
            question = f"How high is tower {tower} of town {number}?"
            spans.append(FactSpan(len(text), len(text) + len(value), value, question, value))
            text += f"{value}. "
        yield AnnotatedDocument(f"town {number}", text, tuple(spans))


def least_cosine(keys: Vectors, others: Vectors) -> float:
    """Compute the least cosine of a row with its like; stored keys are rounded to fp16."""
    lengths = np.linalg.norm(keys, axis=1) * np.linalg.norm(others, axis=1)
    return float(np.min(np.sum(keys * others, axis=1) / lengths))


def run(settings: Settings, *, facts: int = 100_000) -> Figures:
    """Key so many facts by one process, and in another base by two nodes, of which one is killed."""
    folder = settings.home
    checkpoint = tiny_checkpoint(folder / "checkpoint")
    with servers.started("embedded") as server, servers.clone(server) as one, servers.clone(server) as two:
        alone = Settings(home=folder / "alone", database_url=one, actor="tester")
        spread = Settings(home=folder / "spread", database_url=two, actor="tester")
        with KnowledgeBase.open(alone) as kb:
            _ingest(kb, facts)
            began = time.monotonic()
            made = kb.keysets.rekey(ModelEncoder(load(checkpoint, folder)))
            seconds_alone = time.monotonic() - began
            ids_alone, keys_alone = kb.keysets.keys(made.keyset_id)
        with KnowledgeBase.open(spread) as kb:
            _ingest(kb, facts)
            began = time.monotonic()
            figures = _keyed_by_nodes(kb, spread, checkpoint)
            seconds = time.monotonic() - began
            ids, keys = kb.keysets.keys(kb.keysets.active().keyset_id)
            with kb.engine.connect() as connection:
                stored, different = connection.execute(KEYED).one()
            cosine = least_cosine(keys, keys_alone) if len(keys) == len(keys_alone) else 0.0
            return {
                "facts": facts,
                "nodes": 2,
                "keys": stored,
                "duplicates": stored - different,
                "facts_differ": len(set(ids.tolist()) ^ set(ids_alone.tolist())),
                "bytes_equal": np.array_equal(keys, keys_alone),
                "least_cosine": cosine,
                "keys_ok": stored == facts and cosine > 0.999,
                "seconds": round(seconds, 1),
                "seconds_alone": round(seconds_alone, 1),
                **figures,
                **soundness(kb),
            }


def _ingest(kb: KnowledgeBase, facts: int) -> None:
    kb.corpora.ingest(map(Parsed, documents(facts)), "towns", actor="tester", reason="test")


def _keyed_by_nodes(kb: KnowledgeBase, settings: Settings, checkpoint: Path) -> dict[str, Any]:
    os.environ |= {
        "COLMLM_HOME": str(settings.home),
        "COLMLM_DATABASE_URL": str(settings.database_url),
        "COLMLM_CHECKPOINT": str(checkpoint),
        "COLMLM_ACTOR": "tester",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that nodes are on loopback alone
    }
    with _cluster() as (address, nodes):
        command = interpreter.command(
            "-m", "colmlm.cli", "keysets", "fill", "--ray", address, "--ray-workers", "2", "--json"
        )
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                unheard, was_held = _kill_one(kb, nodes, process)
                return {
                    "exit_codes": [code for code in (process.wait(3600),) if code],
                    "committed_unheard": unheard,
                    "unheard_ok": unheard > 0 and was_held,
                }
            finally:
                process.kill()


@contextmanager
def _cluster() -> Iterator[tuple[str, list[psutil.Process]]]:
    """Starts a head that does no work, and two nodes for one worker each; gives the address, and the nodes' raylets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        quiet = {"node_ip_address": LOOPBACK, "include_dashboard": False}
        os.environ["RAY_TMPDIR"] = folder  # it writes there whatever it is given
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={**quiet, "num_cpus": 0})
        try:
            nodes = [cluster.add_node(**quiet, num_cpus=1) for _ in range(2)]
            raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
            yield cluster.address, [psutil.Process(pid) for pid in raylets]
        finally:
            cluster.shutdown()


def _kill_one(
    kb: KnowledgeBase, nodes: list[psutil.Process], command: subprocess.Popen[bytes]
) -> tuple[int, bool]:
    """Kills a node whose worker has committed and not said so; gives the number of such batches, and if it was held."""
    until = time.monotonic() + WAIT_SECONDS
    with kb.engine.connect() as looking, kb.engine.connect() as holding:
        looking = looking.execution_options(isolation_level="AUTOCOMMIT")
        while True:
            assert command.poll() is None and time.monotonic() < until, "no worker was in a transaction"
            busy = [worker for worker in looking.execute(WORKERS) if worker.has_claimed]
            if looking.scalar(COMMITTED) and busy:
                before = looking.scalar(COMMITTED)
                holding.execute(text("LOCK TABLE fact IN ACCESS EXCLUSIVE MODE"))
                unheard = looking.scalar(COMMITTED) - before
                held = _held(looking, busy[0].process)
                if unheard and held:
                    break
                holding.rollback()
            time.sleep(0.02)
        node = next(node for node in nodes if busy[0].process in _below(node))
        for process in [node, *node.children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        return unheard, held


def _held(looking: Connection, process: int) -> bool:
    """Waits a moment for the worker to come to the lock."""
    for _ in range(100):
        if any(worker.process == process and worker.waits for worker in looking.execute(WORKERS)):
            return True
        time.sleep(0.01)
    return False


def _below(node: psutil.Process) -> list[int]:
    return [process.pid for process in node.children(recursive=True)]


if __name__ == "__main__":
    run_scenario(run)
