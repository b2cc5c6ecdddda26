"""Three servers and two workers on one base, under everything at once, each killed once and started again.

It is the mixed load, sent to whichever servers are ready, as a load balancer does that probes them. Every server has a
home of its own, and what takes the place of a killed one begins with an empty home: it fetches the snapshot that
servers share. A request that fails counts as an error unless its server was just killed. The outcome has these errors,
for each kill of a server the seconds until the last request failed of it, and for each server until it was ready.

    python -m tests.acceptance.many_servers --minutes 20
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path

from colmlm.kb.access.tokens import create_token
from colmlm.kb.lookup import shared
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.mixed_load import (
    Client,
    Load,
    Refused,
    Step,
    prepare,
    stopped,
    wait_until_up,
    worker_process,
)
from tests.acceptance.programs import options_of, own_database, report
from tests.acceptance.server import ServerProcess, server_process

SERVERS, WORKERS = 3, 2
PROBE_SECONDS = 0.5  # between two looks at each server, as a load balancer has them
SUMMED = ("lookups", "generations", "edits", "forgets", "jobs", "errors", "wrong", "returned")


@dataclass(frozen=True, slots=True)
class ManyServers:
    """What became of it. `errors` are requests that failed of no kill, `snapshots_fetched` the homes that got one."""

    seconds: float
    lookups: int
    generations: int
    edits: int
    forgets: int
    jobs: int
    activations: int
    servers_killed: int
    workers_killed: int
    errors: int
    errors_of_kills: int
    seconds_of_errors: list[float]
    seconds_until_ready: list[float]
    wrong: int
    returned: int
    causes: list[str]
    exit_codes: list[int | None]
    snapshots_fetched: int
    homes: int
    index_ok: bool
    chain_ok: bool

    @property
    def is_good(self) -> bool:
        clean = not (self.errors or self.wrong or self.returned or any(self.exit_codes))
        return clean and self.snapshots_fetched == self.homes and self.index_ok and self.chain_ok


@dataclass(slots=True)
class Kill:
    """A kill of a server, until `over`: when the next one in its place was ready."""

    at: float
    over: float = float("inf")
    errors_at: list[float] = field(default_factory=list)


class BalancedLoad(Load):
    """The mixed load, sent to the servers in turn of those that were ready when they were looked at last."""

    def __init__(self, kb: KnowledgeBase, addresses: list[str], token: str) -> None:
        super().__init__(kb, addresses, token)
        self.ready = [True] * len(addresses)
        self.kills: list[list[Kill]] = [[] for _ in addresses]
        self.in_doubt: set[int] = set()
        self.steps = [self.balanced(step) for step in self.steps]

    def balanced(self, step: Step) -> Step:
        @wraps(step)
        def stepping(client: Client, number: int) -> None:
            ready = [n for n, is_ready in enumerate(self.ready) if is_ready]
            client.preferred = ready[number % len(ready)] if ready else number % len(self.addresses)
            client.connections[client.preferred].close()  # it may be to a process that was killed since
            step(client, number)

        return stepping

    def probe(self) -> None:
        """Looks at every server, until the load is over."""
        while not self.is_over.wait(PROBE_SECONDS):
            self.ready = [is_ready(address) for address in self.addresses]

    def failed(self, client: Client, cause: str) -> None:
        for kill in self.kills[client.preferred]:
            if kill.at <= time.monotonic() <= kill.over + PROBE_SECONDS:
                kill.errors_at.append(time.monotonic() - kill.at)
                return
        super().failed(client, cause)

    def edit(self, client: Client, number: int) -> None:
        """Edits as ever. What became of an edit whose answer was lost is not known, so its fact is restored first."""
        _, fact_id = self.edited[number % len(self.edited)]
        if fact_id in self.in_doubt:
            with suppress(Refused):  # it is not deleted
                self._sent(client, "POST", "/v1/facts/restore", {"fact_ids": [fact_id], "reason": "in doubt"})
        self.in_doubt.add(fact_id)
        super().edit(client, number)
        self.in_doubt.discard(fact_id)


def is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Cluster:
    """The servers and workers, each with a home of its own, and what takes their places when they are killed."""

    def __init__(self, kb: KnowledgeBase, token: str, stack: ExitStack) -> None:
        self.kb, self.settings, self.token, self.stack = kb, kb.settings, token, stack
        self.num_homes, self.num_fetched = 0, 0
        self.seconds_until_ready: list[float] = []
        self.servers = [self.start_server() for _ in range(SERVERS)]
        self.workers = [self.start_worker() for _ in range(WORKERS)]

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def start_server(self, port: int = 0) -> ServerProcess:
        """Starts a server in an empty home, and waits until it is ready."""
        there, shared_before = self.new_home("server"), self.shared_files()
        began = time.monotonic()
        words = ("--keeper", "--port", str(port))
        server = self.stack.enter_context(server_process(there, *words, COLMLM_LOG_LEVEL="warning"))
        wait_until_up([server.address], self.token)
        self.seconds_until_ready.append(round(time.monotonic() - began, 2))
        self.num_homes += 1
        self.num_fetched += bool(
            shared_before & {file.name for file in there.index_directory.rglob("*.faiss")}
        )
        return server

    def shared_files(self) -> set[str]:
        with self.kb.sessions() as session:
            return {one.file for one in shared.noted(session).values()}

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.stack.enter_context(worker_process(self.new_home("worker")))

    def new_home(self, name: str) -> Settings:
        return replace(self.settings, home=Path(tempfile.mkdtemp(prefix=name, dir=self.settings.home)))

    def kill_server(self, number: int, load: BalancedLoad) -> None:
        port = int(self.servers[number].address.rpartition(":")[2])
        kill = Kill(time.monotonic())
        load.kills[number].append(kill)
        self.servers[number].process.kill()
        self.servers[number].process.wait()
        self.servers[number] = self.start_server(port)
        kill.over = time.monotonic()

    def kill_worker(self, number: int) -> None:
        self.workers[number].kill()
        self.workers[number] = self.start_worker()


def run(settings: Settings, seconds: float) -> ManyServers:
    """Loads the empty, migrated database of `settings` for that many seconds, and kills each process once."""
    pause = seconds / (SERVERS + 2)
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        new = prepare(kb)
        with kb.sessions.begin() as session:
            token = create_token(session, "many servers", "operator")
        cluster = Cluster(kb, token, stack)
        load = BalancedLoad(kb, cluster.addresses, token)
        began = time.monotonic()
        with ThreadPoolExecutor(max_workers=len(load.steps) + 1) as threads:
            working = [threads.submit(load.repeat, step, number) for number, step in enumerate(load.steps)]
            threads.submit(load.probe)
            try:
                for number in range(SERVERS):
                    load.await_steps(pause)
                    cluster.kill_server(number, load)
                    if number < WORKERS:
                        cluster.kill_worker(number)
                load.await_steps(pause)
                kb.keysets.activate(new, max_edits=10**9)
                load.await_steps(pause)
            finally:
                load.is_over.set()
            counts = [one.result() for one in working]
        took = time.monotonic() - began
        codes = [stopped(server) for server in cluster.servers]
        kb.lookups.catch_up()
        report = kb.upkeep.fsck()
        kills = [kill for kills in load.kills for kill in kills]
        return ManyServers(
            seconds=round(took, 1),
            **{name: sum(getattr(c, name) for c in counts) for name in SUMMED},
            activations=1,
            servers_killed=SERVERS,
            workers_killed=WORKERS,
            errors_of_kills=sum(len(kill.errors_at) for kill in kills),
            seconds_of_errors=[round(max(kill.errors_at, default=0.0), 2) for kill in kills],
            seconds_until_ready=cluster.seconds_until_ready,
            causes=[cause for c in counts for cause in c.causes][:20],
            exit_codes=codes,
            snapshots_fetched=cluster.num_fetched,
            homes=cluster.num_homes,
            index_ok=report.ok,
            chain_ok=report.chain_ok,
        )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    options = parser.parse_args()
    with own_database("many servers") as settings:
        place = settings.home / "shared"
        place.mkdir(mode=0o755)
        outcome = run(replace(settings, shared_snapshots=str(place)), 60 * options.minutes)
    return report(outcome, is_good=outcome.is_good, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
