"""Runs everything at once on real processes: lookups, streams, edits, forgets, jobs, keyset switches, a kill -9.

Two servers run on one database and begin with the model of the old keyset. They load that of the new one, which has
passed its gate; then it is activated and rolled back again and again, and no request may be refused. The worker is
killed once, and another continues its jobs. The outcome has errors, wrong answers, how much the servers' memory grew,
and whether index, keys and log agree.

    python -m tests.acceptance.mixed_load --minutes 30
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from colmlm.kb import interpreter
from colmlm.kb.access.tokens import create_token
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.programs import options_of, own_database, report
from tests.acceptance.server import ServerProcess, environment, server_process
from tests.fakes import FakeEncoder, measured
from tests.kb.corpora import ingest, numbered
from tests.places import ROOT

FACTS, ASKED = 400, 300  # facts from ASKED on are edited and forgotten; the others' answers never change
JOB_SECONDS = 120.0
PHASE_SECONDS = 300.0  # extra time for a busy machine
IDLE_SECONDS = 2.0  # uvicorn closes a connection that was idle for five
OLD, NEW = FakeEncoder(), FakeEncoder(salt="2")
WHO = {"actor": "mixed load", "reason": "acceptance"}
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)", re.MULTILINE)


@dataclass(slots=True)
class Counts:
    """Counts of one client. `wrong` counts answers with another value, `returned` answers with a deleted fact."""

    lookups: int = 0
    generations: int = 0
    edits: int = 0
    forgets: int = 0
    jobs: int = 0
    of_new: int = 0  # answers by the new model
    errors: int = 0
    wrong: int = 0
    returned: int = 0
    causes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    lookups: int
    generations: int
    edits: int
    forgets: int
    jobs: int
    activations: int
    rollbacks: int
    worker_kills: int
    of_new: int
    errors: int
    wrong: int
    returned: int
    causes: list[str]
    exit_codes: list[int | None]
    memory_mb_at_first: list[float]
    memory_mb_at_last: list[float]
    index_ok: bool
    chain_ok: bool

    @property
    def is_good(self) -> bool:
        clean = not (self.errors or self.wrong or self.returned or any(self.exit_codes))
        return clean and self.index_ok and self.chain_ok


class Refused(Exception):
    """An answer with an unexpected status."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body[:200]!r}")


class Client:
    """A connection to each server; requests go to the `preferred` one."""

    def __init__(self, addresses: list[str], token: str, counts: Counts, preferred: int = 0) -> None:
        self.connections = [
            http.client.HTTPConnection(address.removeprefix("http://"), timeout=60) for address in addresses
        ]
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.counts = counts
        self.preferred = preferred
        self.last_asked = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        return self._ask(self.preferred, method, path, body)

    def _ask(self, number: int, method: str, path: str, body: object) -> bytes:
        connection = self.connections[number]
        if time.monotonic() - self.last_asked > IDLE_SECONDS:
            connection.close()  # the server may have closed it; the next request opens it again
        connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = connection.getresponse()
        said = answer.read()
        self.last_asked = time.monotonic()
        if answer.status >= 300:
            raise Refused(answer.status, said)
        return said

    def values(self, question: str, **options: Any) -> list[str]:
        asked = {"questions": [question], **options}
        told = json.loads(self.ask("POST", "/v1/lookups", asked))
        self.counts.of_new += told["checkpoint_id"] == NEW.checkpoint.checkpoint_id
        (answer,) = told["answers"]
        return [hit["value"] for hit in answer["hits"]]

    def resident_mb(self, number: int) -> float:
        (found,) = _RESIDENT.findall(self._ask(number, "GET", "/metrics", None).decode())
        return round(float(found) / 1e6, 1)


Step = Callable[[Client, int], None]


def run(settings: Settings, seconds: float, switches: int = 2) -> Outcome:
    """Loads the empty, migrated database of `settings` for that many seconds."""
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        new = prepare(kb)
        with kb.sessions.begin() as session:
            token = create_token(session, "mixed load", "operator")
        servers = [
            stack.enter_context(server_process(settings, "--keeper", COLMLM_LOG_LEVEL="warning"))
            for _ in range(2)
        ]
        addresses = [server.address for server in servers]
        worker = stack.enter_context(worker_process(settings))
        wait_until_up(addresses, token)
        started = time.monotonic()
        load = Load(kb, addresses, token)
        first = load.memory()
        with ThreadPoolExecutor(max_workers=len(load.steps)) as threads:
            working = [threads.submit(load.repeat, step, number) for number, step in enumerate(load.steps)]
            try:
                load.await_steps(seconds / 3)
                worker.kill()  # SIGKILL, at any point of its work
                stack.enter_context(worker_process(settings))
                load.await_steps(seconds / 3)
                for _ in range(switches):
                    kb.keysets.activate(new, max_edits=10**9)
                    load.await_steps(seconds / 6 / switches)
                    kb.keysets.rollback()
                    load.await_steps(seconds / 6 / switches)
            finally:
                load.is_over.set()
            counts = [one.result() for one in working]
        last = load.memory()
        took = time.monotonic() - started
        codes = [stopped(server) for server in servers]
        kb.lookups.catch_up()
        report = kb.upkeep.fsck()
    return Outcome(
        seconds=round(took, 1),
        activations=switches,
        rollbacks=switches,
        worker_kills=1,
        **{name: sum(getattr(c, name) for c in counts) for name in _SUMMED},
        causes=[cause for c in counts for cause in c.causes][:20],
        exit_codes=codes,
        memory_mb_at_first=first,
        memory_mb_at_last=last,
        index_ok=report.ok,
        chain_ok=report.chain_ok,
    )


_SUMMED = ("lookups", "generations", "edits", "forgets", "jobs", "of_new", "errors", "wrong", "returned")


@contextmanager
def worker_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a worker process, which is killed on leaving if it still runs."""
    env = {**os.environ, **environment(settings)}
    with subprocess.Popen(interpreter.command("-m", "colmlm.cli", "worker"), cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def prepare(kb: KnowledgeBase) -> int:
    """Ingests facts with keys of both models; gives the id of the keyset that is to be activated."""
    ingest(kb, *numbered(FACTS))
    encoders = [replace(encoder, home=kb.settings.home) for encoder in (OLD, NEW)]
    for encoder in encoders:
        Path(str(encoder.checkpoint.path)).mkdir(parents=True)
    _, new = (
        kb.keysets.calibrate(kb.keysets.rekey(encoder).keyset_id, measured(0.9)).keyset_id
        for encoder in encoders
    )
    assert kb.keysets.check(new, NEW, active_encoder=OLD).passed
    return new


def _models(address: str, token: str) -> list[str]:
    """Gives the checkpoints that a server has loaded."""
    with Client([address], token, Counts()) as client:
        loaded: list[str] = json.loads(client.ask("GET", "/health"))["models"]
        return loaded


def wait_until_up(addresses: list[str], token: str) -> None:
    """Waits until the servers are ready and have loaded the model that is to be switched to."""
    for address in addresses:
        until = time.monotonic() + 60
        while True:
            connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
            connection.request("GET", "/readyz")
            missing = json.loads(connection.getresponse().read())["missing"]
            connection.close()
            if not missing and NEW.checkpoint.checkpoint_id in _models(address, token):
                break
            assert time.monotonic() < until, missing
            time.sleep(0.1)


def stopped(server: ServerProcess) -> int | None:
    sys.stderr.write(server.stop())  # its warnings
    return server.process.returncode


class Load:
    """The clients, each in a thread of its own, until the load is over."""

    def __init__(self, kb: KnowledgeBase, addresses: list[str], token: str) -> None:
        self.kb, self.addresses, self.token = kb, addresses, token
        self.is_over = threading.Event()
        self.steps: list[Step] = [
            self.look_up,
            self.look_up,
            self.look_up,
            self.generate,
            self.edit,
            self.forget,
            self.work,
        ]
        self.num_ended = [0] * len(self.steps)
        ids = {int(f.value.split()[1]): f.fact_id for f in kb.facts.find(limit=FACTS)}
        self.edited = [(n, ids[n]) for n in range(ASKED, FACTS - 20)]
        self.forgotten = [(n, ids[n]) for n in range(FACTS - 20, FACTS)]

    def client(self, counts: Counts, number: int = 0) -> Client:
        return Client(self.addresses, self.token, counts, number % len(self.addresses))

    def memory(self) -> list[float]:
        with self.client(Counts()) as client:
            return [client.resident_mb(number) for number in range(len(self.addresses))]

    def await_steps(self, seconds: float) -> None:
        """Waits so long, and until each client has begun and ended a step meanwhile, however slow the machine is."""
        before, until = list(self.num_ended), time.monotonic() + seconds
        latest = until + PHASE_SECONDS
        while time.monotonic() < until or any(
            ended < had + 2 for ended, had in zip(self.num_ended, before, strict=True)
        ):
            assert time.monotonic() < latest, f"steps ended: {self.num_ended}, before: {before}"
            time.sleep(0.05)

    def repeat(self, step: Step, client_number: int) -> Counts:
        counts, number = Counts(), client_number
        with self.client(counts, client_number) as client:
            while not self.is_over.is_set():
                number += 7
                try:
                    step(client, number)
                except Exception as error:
                    self.failed(client, f"{step.__name__}: {type(error).__name__}: {error}")
                    for connection in client.connections:
                        connection.close()
                self.num_ended[client_number] += 1
        return counts

    def failed(self, client: Client, cause: str) -> None:
        """Counts a step that failed."""
        client.counts.errors += 1
        client.counts.causes.append(cause)

    def look_up(self, client: Client, number: int) -> None:
        number %= ASKED
        values = client.values(f"Question {number}?")
        client.counts.lookups += 1
        client.counts.wrong += values[:1] != [f"value {number}"]

    def generate(self, client: Client, number: int) -> None:
        number %= ASKED
        body = {"prompt": f"Question {number}?", "stream": True}
        said = client.ask("POST", "/v1/generations", body).decode()
        client.counts.generations += 1
        client.counts.wrong += f"value {number}" not in said or "event: trace" not in said

    def edit(self, client: Client, number: int) -> None:
        """Deletes, asks, restores, corrects and asks: each answer has to be the newest."""
        n, fact_id = self.edited[number % len(self.edited)]
        question, value = f"Question {n}?", f"edited {number}"
        seq = self._sent(client, "DELETE", f"/v1/facts/{fact_id}", {"reason": "load"})
        client.counts.returned += client.values(question, min_seq=seq) != []
        self._sent(client, "POST", "/v1/facts/restore", {"fact_ids": [fact_id], "reason": "load"})
        seq = self._sent(client, "PATCH", f"/v1/facts/{fact_id}", {"value": value, "reason": "load"})
        client.counts.wrong += client.values(question, min_seq=seq) != [value]
        client.counts.edits += 3
        client.counts.lookups += 2

    def _sent(self, client: Client, method: str, path: str, body: object) -> int:
        return int(json.loads(client.ask(method, path, body))["seq"])

    def forget(self, client: Client, number: int) -> None:
        """Plans, applies, asks a server, restores and asks again."""
        forgetting = Forgetting(self.kb)
        plan = forgetting.plan(Selector(fact_ids=tuple(fact_id for _, fact_id in self.forgotten)), **WHO)
        edit = forgetting.apply(plan.run_id, **WHO)
        n, _ = self.forgotten[number % len(self.forgotten)]
        try:
            client.counts.returned += client.values(f"Question {n}?", min_seq=edit.seq) != []
        finally:
            back = forgetting.restore(plan.run_id, **WHO)
        client.counts.wrong += client.values(f"Question {n}?", min_seq=back.seq) != [f"value {n}"]
        client.counts.forgets += 1
        client.counts.lookups += 2

    def work(self, client: Client, number: int) -> None:
        """Queues a check of everything and waits for its end; if its worker is killed, the next takes it up."""
        jobs = Jobs(self.kb)
        job = jobs.submit(Check(), actor="mixed load")
        until = time.monotonic() + JOB_SECONDS
        while not (job := jobs.get(job.job_id)).is_over and time.monotonic() < until:
            time.sleep(0.05)
        if job.state != "succeeded":
            raise RuntimeError(f"job {job.job_id} is {job.state}: {job.error}")
        client.counts.jobs += 1


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--switches", type=int, default=10, help="activations, each rolled back")
    options = parser.parse_args()
    with own_database("mixed load") as settings:
        outcome = run(settings, 60 * options.minutes, options.switches)
    return report(outcome, is_good=outcome.is_good, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
