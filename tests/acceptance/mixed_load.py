"""Runs everything at once on real processes: lookups, streams, edits, forgets, jobs, keyset switches, a kill -9.

Two servers run on one database and begin with the model of the old keyset. They load that of the new one, which has
passed its gate; then it is activated and rolled back again and again, and no request may be refused. The worker is
killed once, and another continues its jobs. The figures have errors, wrong answers (`returned`: with a deleted fact),
how much the servers' memory grew, and whether index, keys and log agree.

    python -m tests.acceptance.mixed_load --minutes 30 --json
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import (
    Figures,
    LoadClient,
    ServerLoad,
    fill_base,
    run_scenario,
    soundness,
    token_of,
    worker_process,
)
from colmlm.lab.faults.target import PATIENCE, WHO
from tests.acceptance.server import ServerProcess, server_process
from tests.fakes import FakeEncoder, measured

FACTS, ASKED = 400, 300  # facts from ASKED on are edited and forgotten; the others' answers never change
OLD, NEW = FakeEncoder(), FakeEncoder(salt="2")
COUNTED = ("lookups", "generations", "edits", "forgets", "jobs", "of_new", "errors", "wrong", "returned")
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)", re.MULTILINE)


def run(settings: Settings, *, minutes: float = 30.0, switches: int = 10) -> Figures:
    """Do everything at once for so long, activate the new keyset again and again, and roll it back each time."""
    seconds = 60 * minutes
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        new, token = prepare(kb), token_of(kb)
        servers = [
            stack.enter_context(server_process(settings, "--load-models", COLMLM_LOG_LEVEL="warning"))
            for _ in range(2)
        ]
        addresses = [server.address for server in servers]
        worker = stack.enter_context(worker_process(settings))
        await_models(addresses, token)
        started = time.monotonic()
        load = MixedLoad(kb, addresses, token)
        first = [resident_mb(address, token) for address in addresses]
        with load.running():
            load.await_steps(seconds / 3)
            worker.kill()  # SIGKILL, at any point of its work
            stack.enter_context(worker_process(settings))
            load.await_steps(seconds / 3)
            for _ in range(switches):
                kb.keysets.activate(new, max_edits=10**9)
                load.await_steps(seconds / 6 / switches)
                kb.keysets.rollback()
                load.await_steps(seconds / 6 / switches)
        last = [resident_mb(address, token) for address in addresses]
        return {
            "seconds": round(time.monotonic() - started, 1),
            "activations": switches,
            "rollbacks": switches,
            "worker_kills": 1,
            **load.figures(*COUNTED),
            "exit_codes": failed_exits(servers),
            "memory_mb_at_first": first,
            "memory_mb_at_last": last,
            **soundness(kb),
        }


def prepare(kb: KnowledgeBase) -> int:
    """Ingest facts with keys of both models; give the id of the keyset that is to be activated."""
    fill_base(kb, FACTS)
    encoders = [replace(encoder, home=kb.settings.home) for encoder in (OLD, NEW)]
    for encoder in encoders:
        Path(str(encoder.checkpoint.path)).mkdir(parents=True)
    _, new = (
        kb.keysets.calibrate(kb.keysets.rekey(encoder).keyset_id, measured(0.9)).keyset_id
        for encoder in encoders
    )
    assert kb.keysets.check(new, NEW, active_encoder=OLD).passed
    return new


def is_ready(address: str, token: str = "") -> bool:
    """Tell whether a server is ready and, where a token is given, has loaded the model that is switched to."""
    client = LoadClient([address], token)
    try:
        client.ask("GET", "/readyz")
        return not token or NEW.checkpoint.checkpoint_id in client.read("GET", "/health")["models"]
    except (OSError, HTTPException):
        return False
    finally:
        client.close()


def await_models(addresses: Sequence[str], token: str) -> None:
    """Wait until the servers are ready and have loaded the model that is to be switched to."""
    until = time.monotonic() + 60
    while not all(is_ready(address, token) for address in addresses):
        assert time.monotonic() < until, "no server is ready"
        time.sleep(0.1)


def resident_mb(address: str, token: str) -> float:
    client = LoadClient([address], token)
    (found,) = _RESIDENT.findall(client.ask("GET", "/metrics").decode())
    client.close()
    return round(float(found) / 1e6, 1)


def failed_exits(servers: Sequence[ServerProcess]) -> list[int | None]:
    """Stop servers, and give the exit codes of those that fail."""
    for server in servers:
        sys.stderr.write(server.stop())  # its warnings
    return [server.process.returncode for server in servers if server.process.returncode]


class MixedLoad(ServerLoad):
    """Clients that do everything."""

    def __init__(self, kb: KnowledgeBase, addresses: Sequence[str], token: str) -> None:
        steps = (self.generate, self.edit, self.forget, self.work)
        super().__init__(addresses, token, [*[self.look_up] * 3, *steps])
        self.kb = kb
        ids = {int(f.value.split()[1]): f.fact_id for f in kb.facts.find(limit=FACTS)}
        self.edited = [(n, ids[n]) for n in range(ASKED, FACTS - 20)]
        self.forgotten = [(n, ids[n]) for n in range(FACTS - 20, FACTS)]

    def values(self, client: LoadClient, number: int, **options: Any) -> list[str]:
        """Look up the question of a numbered fact, and give the values that are found."""
        told = client.read("POST", "/v1/lookups", {"questions": [f"Question {number}?"], **options})
        client.counts["lookups"] += 1
        client.counts["of_new"] += told["checkpoint_id"] == NEW.checkpoint.checkpoint_id
        (answer,) = told["answers"]
        return [hit["value"] for hit in answer["hits"]]

    def look_up(self, client: LoadClient, number: int) -> None:
        number %= ASKED
        client.counts["wrong"] += self.values(client, number)[:1] != [f"value {number}"]

    def generate(self, client: LoadClient, number: int) -> None:
        number %= ASKED
        body = {"prompt": f"Question {number}?", "stream": True}
        said = client.ask("POST", "/v1/generations", body).decode()
        client.counts["generations"] += 1
        client.counts["wrong"] += f"value {number}" not in said or "event: trace" not in said

    def edit(self, client: LoadClient, number: int) -> None:
        """Delete, ask, restore, correct and ask: each answer has to be the newest."""
        n, fact_id = self.edited[number % len(self.edited)]
        value, fact = f"edited {number}", f"/v1/facts/{fact_id}"
        seq = client.read("DELETE", fact, {"reason": "load"})["seq"]
        client.counts["returned"] += self.values(client, n, min_seq=seq) != []
        self.restore(client, fact_id)
        seq = client.read("PATCH", fact, {"value": value, "reason": "load"})["seq"]
        client.counts["wrong"] += self.values(client, n, min_seq=seq) != [value]
        client.counts["edits"] += 3

    def restore(self, client: LoadClient, fact_id: int) -> None:
        client.ask("POST", "/v1/facts/restore", {"fact_ids": [fact_id], "reason": "load"})

    def forget(self, client: LoadClient, number: int) -> None:
        """Plan, apply, ask a server, restore and ask again."""
        forgetting = Forgetting(self.kb)
        plan = forgetting.plan(Selector(fact_ids=tuple(fact_id for _, fact_id in self.forgotten)), **WHO)
        edit = forgetting.apply(plan.run_id, **WHO)
        n, _ = self.forgotten[number % len(self.forgotten)]
        try:
            client.counts["returned"] += self.values(client, n, min_seq=edit.seq) != []
        finally:
            back = forgetting.restore(plan.run_id, **WHO)
        client.counts["wrong"] += self.values(client, n, min_seq=back.seq) != [f"value {n}"]
        client.counts["forgets"] += 1

    def work(self, client: LoadClient, number: int) -> None:
        """Queue a check of everything and wait for its end; if its worker is killed, the next takes it up."""
        jobs = Jobs(self.kb)
        job = jobs.submit(Check(), actor="mixed load")
        until = time.monotonic() + PATIENCE
        while not (job := jobs.get(job.job_id)).is_over and time.monotonic() < until:
            time.sleep(0.05)
        if job.state != "succeeded":
            raise RuntimeError(f"job {job.job_id} is {job.state}: {job.error}")
        client.counts["jobs"] += 1


if __name__ == "__main__":
    run_scenario(run)
