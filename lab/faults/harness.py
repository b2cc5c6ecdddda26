"""What the scenarios share: a base and processes of their own, clients that load a server, and how they are judged.

A scenario is a function `run(settings, ..., *, option=default)`. It works on an empty, migrated database and gives
figures by name. Its parameters by keyword alone are its options on the command line, others are for tests.
"""

from __future__ import annotations

import http.client
import inspect
import json
import multiprocessing
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any
from urllib.error import HTTPError

import typer

from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.start.command import Command
from colmlm.kb import interpreter
from colmlm.kb.access.tokens import create_token
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.machine import own_folder, print_report
from colmlm.lab.bench.servers import variables_of
from colmlm.lab.faults.target import PATIENCE, WHO

IDLE_SECONDS = 2.0  # uvicorn closes a connection that was idle for five
SHOWN = 20
# Figures that must be zero, or empty. Those whose names end in "_ok" must be true.
FAULTS = frozenset(
    {
        "chain_breaks", "deletions_lost", "double", "duplicates", "edits_lost", "errors", "exit_codes",
        "facts_differ", "failed", "instead", "leaked", "left_behind", "lost", "mismatched", "misplaced",
        "mixed", "outdated", "outputs_with_value", "overtaken", "plans_with_value", "residue",
        "resurrected", "returned", "served_rejected", "spliced_after_delete", "stale", "tracebacks_logged",
        "untold", "unverified", "wrong", "wrong_answers",
    }
)  # fmt: skip

Figures = dict[str, Any]


def faults_in(figures: Mapping[str, Any]) -> list[str]:
    """Name the figures that show a fault."""
    return [
        name
        for name, value in figures.items()
        if (name in FAULTS and value) or (name.endswith("_ok") and not value)
    ]


def soundness(kb: KnowledgeBase) -> Figures:
    """Tell whether index, keys and log agree."""
    kb.lookups.catch_up()
    report = kb.upkeep.fsck()
    return {"index_ok": report.ok, "chain_ok": report.chain_ok}


def show_figures(figures: Figures) -> None:
    """Print the figures of a scenario, and exit with 1 where one of them is a fault."""
    print_report(figures)
    if faults_in(figures):
        raise typer.Exit(CHECK_FAILED)


def scenario_command(
    run: Callable[..., Figures], *needed: Callable[[], AbstractContextManager[Any]]
) -> Callable[..., None]:
    """Make a command of a scenario, which runs on a database of its own and is given what else it needs."""

    @wraps(run)
    def command(**options: Any) -> None:
        with own_database() as settings, ExitStack() as stack:
            show_figures(run(settings, *[stack.enter_context(make()) for make in needed], **options))

    signature = inspect.signature(run, eval_str=True)
    options = [one for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=options, return_annotation=None
    )
    command.__annotations__ = {one.name: one.annotation for one in options}
    return command


def run_scenario(run: Callable[..., Figures], *needed: Callable[[], AbstractContextManager[Any]]) -> None:
    """Run a scenario as a program of its own."""
    app = typer.Typer(add_completion=False)
    app.command(cls=Command)(scenario_command(run, *needed))
    app()


@contextmanager
def own_database(actor: str = WHO["actor"]) -> Iterator[Settings]:
    """Start an embedded server with an empty, migrated database, and stop it at the end."""
    with own_folder() as folder:
        settings = Settings(home=folder, actor=actor)
        engine = database.connect_database(settings)
        database.migrate_database(engine)
        try:
            yield replace(settings, database_url=engine.url.render_as_string(hide_password=False))
        finally:
            engine.dispose()  # which also stops the server


@contextmanager
def spawn_work(work: Callable[..., None], *given: Any) -> Iterator[Connection]:
    """Run `work` with these arguments and a pipe in a process that shares nothing with this one but the database."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()
    assert process.exitcode == 0, "the other process ended with an error"


@contextmanager
def worker_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker process, which is killed on leaving if it still runs."""
    env = {**os.environ, **variables_of(settings)}
    with subprocess.Popen(interpreter.command("-m", "colmlm.cli", "worker"), env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def numbered_documents(count: int) -> Iterator[Parsed]:
    """Make documents of one fact each: question "Question 7?" has value "value 7"."""
    for n in range(count):
        text, value = f"Text {n} says value {n}.", f"value {n}"
        at = len(text) - len(value) - 1
        span = FactSpan(at, at + len(value), value, f"Question {n}?", value)
        yield Parsed(AnnotatedDocument(f"d{n}", text, (span,)))


def fill_base(kb: KnowledgeBase, count: int, encoder: Encoder | None = None) -> dict[int, int]:
    """Store numbered facts, with keys of the encoder that answer from a score of 0.9 on; give their ids."""
    kb.corpora.ingest(numbered_documents(count), "numbered", **WHO)
    if encoder is not None:
        kb.keysets.set_threshold(kb.keysets.rekey(encoder, batch=2_000).keyset_id, 0.9)
    return {int(fact.value.split()[1]): fact.fact_id for fact in kb.facts.find(limit=count)}


def token_of(kb: KnowledgeBase, role: str = "operator") -> str:
    """Create a token for the clients of a load."""
    with kb.sessions.begin() as session:
        return create_token(session, "the clients", role)


def is_database_away(error: Exception) -> bool:
    """Tell whether a request was refused since the database is away, and its client is told to come again."""
    is_refused = isinstance(error, HTTPError) and error.code == 503 and bool(error.headers["Retry-After"])
    return is_refused and "DatabaseUnavailable" in str(error)


class LoadClient:
    """A client with a connection to each server. It asks the `preferred` one, and counts what it saw."""

    def __init__(self, addresses: Sequence[str], token: str, number: int = 0) -> None:
        self.connections = [
            http.client.HTTPConnection(address.removeprefix("http://"), timeout=120) for address in addresses
        ]
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.number, self.preferred = number, number % len(addresses)
        self.counts: Counter[str] = Counter()
        self.causes: list[str] = []
        self.asked_at = 0.0
        self.ended_step_of = 0.0  # when the last step that ended was begun

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def read(self, method: str, path: str, body: object = None) -> Any:
        """Give the object of the answer. Raises `HTTPError` for an unexpected status."""
        return json.loads(self.ask(method, path, body))

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        connection = self.connections[self.preferred]
        if time.monotonic() - self.asked_at > IDLE_SECONDS:
            connection.close()  # the server may have closed it; the next request opens it again
        connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = connection.getresponse()
        said = answer.read()
        self.asked_at = time.monotonic()
        if answer.status >= 300:
            raise HTTPError(path, answer.status, said[:300].decode(), answer.headers, None)
        return said


Step = Callable[[LoadClient, int], None]


class ServerLoad:
    """Clients of servers, each of which repeats a step in a thread of its own until the load is over."""

    rest_seconds = 0.0  # between two steps

    def __init__(self, addresses: Sequence[str], token: str, steps: Sequence[Step]) -> None:
        self.addresses, self.token, self.steps = addresses, token, list(steps)
        self.clients = [LoadClient(addresses, token, number) for number in range(len(self.steps))]
        self.is_over = threading.Event()

    @contextmanager
    def running(self, *beside: Callable[[], None]) -> Iterator[None]:
        """Run the clients in the block, and what else runs until `is_over`."""
        with ThreadPoolExecutor(len(self.steps) + len(beside)) as threads:
            try:
                working = [threads.submit(work) for work in beside]
                for step, client in zip(self.steps, self.clients, strict=False):
                    working.append(threads.submit(self._repeat, step, client))
                yield
            finally:
                self.is_over.set()
        for client in self.clients:
            client.close()
        for one in working:
            one.result()

    def _repeat(self, step: Step, client: LoadClient) -> None:
        number = client.number
        while not self.is_over.is_set():
            number += len(self.steps)
            began = time.monotonic()
            try:
                step(client, number)
                client.ended_step_of = began
            except Exception as error:  # noqa: BLE001 # whatever it is, it is counted
                client.close()
                self.count_failure(client, error, step.__name__)
                time.sleep(0.02)
            time.sleep(self.rest_seconds)

    def count_failure(self, client: LoadClient, error: Exception, doing: str) -> None:
        """Count a step that failed."""
        client.counts["errors"] += 1
        client.causes.append(f"{doing}: {type(error).__name__}: {error}")

    def await_steps(self, seconds: float = 0.0) -> None:
        """Wait so long, and until each client has begun and ended a step meanwhile, however slow the machine is."""
        began = time.monotonic()
        while time.monotonic() < began + seconds or min(c.ended_step_of for c in self.clients) < began:
            causes = self.figures()["causes"]
            assert time.monotonic() < began + seconds + PATIENCE, f"not every client was answered: {causes}"
            self.probe()
            time.sleep(0.02)

    def probe(self) -> None:
        """Watch the servers while steps are awaited; a subclass says for what."""

    def figures(self, *names: str) -> Figures:
        """Give the sums of what the clients counted under these names, and causes of failures."""
        total = sum((client.counts for client in self.clients), Counter[str]())
        causes = [cause for client in self.clients for cause in client.causes]
        return {**{name: total[name] for name in names}, "causes": causes[:SHOWN]}
