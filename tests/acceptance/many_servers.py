"""Three servers and two workers on one base, under everything at once, each killed once and started again.

It is the mixed load, sent to whichever servers are ready, as a load balancer does that probes them. Every server has a
home of its own, and what takes the place of a killed one begins with an empty home: it fetches the snapshot that
servers share. A request that fails counts as an error unless its server was just killed. The outcome has these errors,
for each kill of a server the seconds until the last request failed of it, and for each server until it was ready.

    python -m tests.acceptance.many_servers --minutes 20
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from urllib.error import HTTPError

from colmlm.kb.lookup import shared
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import (
    Figures,
    LoadClient,
    Step,
    run_scenario,
    soundness,
    token_of,
    worker_process,
)
from tests.acceptance.mixed_load import COUNTED, MixedLoad, await_models, failed_exits, is_ready, prepare
from tests.acceptance.server import ServerProcess, server_process

SERVERS, WORKERS = 3, 2
PROBE_SECONDS = 0.5  # between two looks at each server, as a load balancer has them


@dataclass(slots=True)
class Kill:
    """A kill of a server, until `over`: when the next one in its place was ready."""

    at: float
    over: float = float("inf")
    errors_at: list[float] = field(default_factory=list)


class BalancedLoad(MixedLoad):
    """The mixed load, sent to the servers in turn of those that were ready when they were looked at last."""

    def __init__(self, kb: KnowledgeBase, addresses: Sequence[str], token: str) -> None:
        super().__init__(kb, addresses, token)
        self.ready = [True] * len(addresses)
        self.kills: list[list[Kill]] = [[] for _ in addresses]
        self.in_doubt: set[int] = set()
        self.steps = [self.balanced(step) for step in self.steps]

    def balanced(self, step: Step) -> Step:
        @wraps(step)
        def stepping(client: LoadClient, number: int) -> None:
            ready = [n for n, is_ready in enumerate(self.ready) if is_ready]
            client.preferred = ready[number % len(ready)] if ready else number % len(self.addresses)
            client.connections[client.preferred].close()  # it may be to a process that was killed since
            step(client, number)

        return stepping

    def look_at_servers(self) -> None:
        """Look at every server, until the load is over."""
        while not self.is_over.wait(PROBE_SECONDS):
            self.ready = [is_ready(address) for address in self.addresses]

    def count_failure(self, client: LoadClient, error: Exception, doing: str) -> None:
        for kill in self.kills[client.preferred]:
            if kill.at <= time.monotonic() <= kill.over + PROBE_SECONDS:
                kill.errors_at.append(time.monotonic() - kill.at)
                return
        super().count_failure(client, error, doing)

    def edit(self, client: LoadClient, number: int) -> None:
        """Edit as ever. What became of an edit whose answer was lost is not known, so its fact is restored first."""
        _, fact_id = self.edited[number % len(self.edited)]
        if fact_id in self.in_doubt:
            with suppress(HTTPError):  # it is not deleted
                self.restore(client, fact_id)
        self.in_doubt.add(fact_id)
        super().edit(client, number)
        self.in_doubt.discard(fact_id)


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
        words = ("--load-models", "--port", str(port))
        server = self.stack.enter_context(server_process(there, *words, COLMLM_LOG_LEVEL="warning"))
        await_models([server.address], self.token)
        self.seconds_until_ready.append(round(time.monotonic() - began, 2))
        self.num_homes += 1
        self.num_fetched += bool(
            shared_before & {file.name for file in there.index_directory.rglob("*.faiss")}
        )
        return server

    def shared_files(self) -> set[str]:
        with self.kb.sessions() as session:
            return {one.file for one in shared.noted_snapshots(session).values()}

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


def run(settings: Settings, *, minutes: float = 20.0) -> Figures:
    """Do everything at once for so long on three servers, and kill each of them and each worker once."""
    pause = 60 * minutes / (SERVERS + 2)
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(_sharing(settings)))
        new, token = prepare(kb), token_of(kb)
        cluster = Cluster(kb, token, stack)
        load = BalancedLoad(kb, cluster.addresses, token)
        began = time.monotonic()
        with load.running(load.look_at_servers):
            for number in range(SERVERS):
                load.await_steps(pause)
                cluster.kill_server(number, load)
                if number < WORKERS:
                    cluster.kill_worker(number)
            load.await_steps(pause)
            kb.keysets.activate(new, max_edits=10**9)
            load.await_steps(pause)
        took = time.monotonic() - began
        kills = [kill for kills in load.kills for kill in kills]
        return {
            "seconds": round(took, 1),
            **load.figures(*COUNTED),
            "activations": 1,
            "servers_killed": SERVERS,
            "workers_killed": WORKERS,
            "errors_of_kills": sum(len(kill.errors_at) for kill in kills),
            "seconds_of_errors": [round(max(kill.errors_at, default=0.0), 2) for kill in kills],
            "seconds_until_ready": cluster.seconds_until_ready,
            "exit_codes": failed_exits(cluster.servers),
            "homes": cluster.num_homes,
            "snapshots_ok": cluster.num_fetched == cluster.num_homes,
            **soundness(kb),
        }


def _sharing(settings: Settings) -> Settings:
    """Have the servers share snapshots in a folder of the home."""
    place = settings.home / "shared"
    place.mkdir(mode=0o755, parents=True)
    return replace(settings, shared_snapshots=str(place))


if __name__ == "__main__":
    run_scenario(run)
