"""Kills the embedded PostgreSQL again and again under a server and a worker in use, and lets them recover alone.

Clients look facts up and edit them throughout. The outcome has the seconds until edits and lookups were answered again,
how requests were refused meanwhile, and how many acknowledged edits are missing from the facts and the log.

    python -m tests.acceptance.database_killed --kills 20 --json
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from colmlm.kb.access.tokens import create_token
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from tests.acceptance.mixed_load import worker_process
from tests.acceptance.programs import options_of, own_folder, report
from tests.acceptance.server import ServerProcess, server_process
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered

FACTS, LOOKERS, EDITORS = 100, 2, 2
PATIENCE = 120.0  # seconds after which an outage counts as endless


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An edit that the server has acknowledged."""

    seq: int
    fact_id: int
    value: str


@dataclass(slots=True)
class Edited:
    """The edits of one fact: the last acknowledged value, and the values of later edits whose outcome is unknown."""

    last: str
    in_doubt: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """Counts of one client.

    `refused` counts answers 503 with Retry-After, `in_doubt` the edits among these, and `wrong` the answers with
    another value than the fact's.
    """

    lookups: int = 0
    edits: list[Acknowledged] = field(default_factory=list)
    in_doubt: int = 0
    refused: int = 0
    wrong: int = 0
    unexpected: Counter[str] = field(default_factory=Counter)
    answered_at: float = 0.0  # when the last answered request was sent


@dataclass(frozen=True, slots=True)
class Outcome:
    kills: int
    lookups: int
    edits_acknowledged: int
    edits_in_doubt: int
    edits_lost: int
    requests_refused: int
    wrong_answers: int
    unexpected_answers: dict[str, int]
    seconds_until_answers: list[float]
    seconds_median: float
    seconds_worst: float
    job_after_last_kill: str
    alive_throughout: bool
    tracebacks_logged: int
    lines_logged: int
    index_ok: bool
    chain_ok: bool

    @property
    def is_good(self) -> bool:
        wrong = self.edits_lost or self.wrong_answers or self.unexpected_answers or self.tracebacks_logged
        return (
            not wrong
            and self.alive_throughout
            and self.index_ok
            and self.chain_ok
            and self.job_after_last_kill == "succeeded"
        )


def run(home: Path, kills: int, pause: float = 1.0) -> Outcome:
    """Kills the embedded server of an empty home `kills` times, each after `pause` seconds of work."""
    settings = Settings(home=home, actor="tester")
    engine = database.connect_database(settings)
    database.migrate_database(engine)
    engine.dispose()
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        ingest(kb, *numbered(FACTS))
        kb.keysets.set_threshold(kb.keysets.rekey(FakeEncoder()).keyset_id, 0.9)
        with kb.sessions.begin() as session:
            token = create_token(session, "the clients", "operator")
        server = stack.enter_context(server_process(settings, COLMLM_LOG_LEVEL="warning"))
        stack.enter_context(worker_process(settings))
        load = Load(kb, server, token)
        with load.running():
            seconds = [load.survive_a_kill(home / "postgres", pause) for _ in range(kills)]
            state = _job_state(kb)
        log = server.stop()
        return _outcome(kb, load, seconds, state, log)


def _outcome(kb: KnowledgeBase, load: Load, seconds: list[float], job_state: str, log: str) -> Outcome:
    kb.lookups.catch_up()
    report = kb.upkeep.fsck()
    unexpected = sum((counts.unexpected for counts in load.counts), Counter[str]())
    sys.stderr.write(log)
    return Outcome(
        kills=len(seconds),
        lookups=sum(counts.lookups for counts in load.counts),
        edits_acknowledged=sum(len(counts.edits) for counts in load.counts),
        edits_in_doubt=sum(counts.in_doubt for counts in load.counts),
        edits_lost=len(lost_edits(kb, load)),
        requests_refused=sum(counts.refused for counts in load.counts),
        wrong_answers=sum(counts.wrong for counts in load.counts),
        unexpected_answers=dict(unexpected),
        seconds_until_answers=[round(one, 2) for one in seconds],
        seconds_median=round(statistics.median(seconds), 2),
        seconds_worst=round(max(seconds), 2),
        job_after_last_kill=job_state,
        alive_throughout=load.was_alive,
        tracebacks_logged=log.count("Traceback"),
        lines_logged=len(log.splitlines()),
        index_ok=report.ok,
        chain_ok=report.chain_ok,
    )


def lost_edits(kb: KnowledgeBase, load: Load) -> list[Acknowledged]:
    """Lists the acknowledged edits that were lost.

    An edit is lost if its change or version is missing, or if its fact has neither the last acknowledged value nor one
    that was in doubt after it.
    """
    lost = []
    for counts in load.counts:
        for edit in counts.edits:
            trace = kb.outputs.trace_fact(edit.fact_id)
            edited = load.edited[edit.fact_id]
            is_there = (
                any(change.seq == edit.seq and change.kind == "update" for change in trace.history)
                and any(version.value == edit.value for version in trace.versions)
                and trace.fact.value in (edited.last, *edited.in_doubt)
            )
            if not is_there:
                lost.append(edit)
    return lost


def _job_state(kb: KnowledgeBase) -> str:
    """Queues a job for the worker that was there throughout, and gives the job's state at its end."""
    jobs, until = Jobs(kb), time.monotonic() + PATIENCE
    job = jobs.submit(Check(), actor="tester")
    while not (job := jobs.get(job.job_id)).is_over and time.monotonic() < until:
        time.sleep(0.1)
    return job.state


class Refused(Exception):
    pass


class Load:
    """Clients of a server, each in a thread of its own, while its database is killed."""

    def __init__(self, kb: KnowledgeBase, server: ServerProcess, token: str) -> None:
        self.address = server.address.removeprefix("http://")
        self.token = token
        self.is_over = threading.Event()
        self.was_alive = True
        self.steps = [self._look_up] * LOOKERS + [self._edit] * EDITORS
        self.counts = [Counts() for _ in self.steps]
        facts = {int(fact.value.split()[1]): fact.fact_id for fact in kb.facts.find(limit=FACTS)}
        half = FACTS // 2
        self.asked = list(range(half))
        self.edited = {facts[n]: Edited(f"value {n}") for n in range(half, FACTS)}

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._repeat, args=(step, number))
            for number, step in enumerate(self.steps)
        ]
        for thread in threads:
            thread.start()
        try:
            self.await_answers(time.monotonic())
            yield
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    def survive_a_kill(self, data: Path, pause: float) -> float:
        """Kills the server's parent process; gives the seconds until each client had a later request answered."""
        time.sleep(pause)
        self.await_answers(time.monotonic())
        pid = _postmaster(data)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        while _postmaster(data) in (pid, None):  # earlier requests may still be answered for a moment
            self.require_patience(killed)
        return self.await_answers(time.monotonic()) - killed

    def await_answers(self, since: float) -> float:
        """Waits until each client had a request answered that was sent after `since`; gives the time of that."""
        while min(counts.answered_at for counts in self.counts) < since:
            self.require_patience(since)
        return time.monotonic()

    def require_patience(self, since: float) -> None:
        assert time.monotonic() < since + PATIENCE, "no answers any more"
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("GET", "/healthz")
        self.was_alive &= connection.getresponse().status == 200
        connection.close()
        time.sleep(0.02)

    def _repeat(self, step: Callable[[Client, Counts, int], None], client_number: int) -> None:
        counts, number = self.counts[client_number], client_number
        client = Client(self.address, self.token, counts)
        while not self.is_over.is_set():
            number += len(self.counts)
            asked_at = time.monotonic()
            try:
                step(client, counts, number)
            except Refused:
                time.sleep(0.05)  # less than Retry-After asks, to measure the outage more exactly
                continue
            counts.answered_at = asked_at
            time.sleep(0.005)

    def _look_up(self, client: Client, counts: Counts, number: int) -> None:
        n = self.asked[number % len(self.asked)]
        (answer,) = client.ask("POST", "/v1/lookups", {"questions": [f"Question {n}?"]})["answers"]
        counts.lookups += 1
        counts.wrong += [hit["value"] for hit in answer["hits"]][:1] != [f"value {n}"]

    def _edit(self, client: Client, counts: Counts, number: int) -> None:
        # Each client has facts of its own: those whose id modulo EDITORS is its number's.
        mine = [fact_id for fact_id in self.edited if fact_id % EDITORS == number % EDITORS]
        fact_id, value = mine[number // len(self.counts) % len(mine)], f"edited {number}"
        edited = self.edited[fact_id]
        edited.in_doubt.append(value)
        counts.in_doubt += 1
        said = client.ask("PATCH", f"/v1/facts/{fact_id}", {"value": value, "reason": "load"})
        edited.last, edited.in_doubt = value, []
        counts.in_doubt -= 1
        counts.edits.append(Acknowledged(said["seq"], fact_id, value))


class Client:
    def __init__(self, address: str, token: str, counts: Counts) -> None:
        self.address, self.counts = address, counts
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object) -> dict[str, object]:
        """Gives the answer, and counts unexpected ones. Raises `Refused`."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), self.headers)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status < 300:
            found: dict[str, object] = json.loads(said)
            return found
        if answer.status == 503 and answer.headers["Retry-After"] and b"DatabaseUnavailable" in said:
            self.counts.refused += 1
        else:
            self.counts.unexpected[
                f"{method} {path.rstrip('0123456789')}: {answer.status} {said[:200]!r}"
            ] += 1
        raise Refused


def _postmaster(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().split()[0])
    except (OSError, IndexError):
        return None


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=1.0, help="Seconds of work before each kill.")
    options = parser.parse_args()
    with own_folder() as folder:
        outcome = run(folder, options.kills, options.pause)
    return report(outcome, is_good=outcome.is_good, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
