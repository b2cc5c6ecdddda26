"""Faults of a served base: its database is killed, or facts are erased while others splice and plan them.

`database` kills the embedded PostgreSQL again and again under a server and a worker in use, and lets them recover
alone. Clients look facts up and edit them throughout.

`erasure` erases facts while decoders elsewhere splice them, in other letter case too, and operators plan to forget them
by their own words. At the end every output, selector and plan is read, and one value is put back by hand, to check that
fsck finds it and a repair redacts it.
"""

from __future__ import annotations

import http.client
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.error import HTTPError

from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import our_server
from colmlm.lab.bench.synthetic import ENCODERS
from colmlm.lab.faults.harness import (
    Figures,
    LoadClient,
    ServerLoad,
    Step,
    fill_base,
    is_database_away,
    soundness,
    token_of,
    worker_process,
)
from colmlm.lab.faults.target import PATIENCE, WHO

FACTS, LOOKERS, EDITORS = 100, 2, 2
ENCODER = ENCODERS[0]


@dataclass(slots=True)
class EditedFact:
    """The edits of one fact: those acknowledged by their changes, and values that may have come after them."""

    last: str
    acknowledged: dict[int, str] = field(default_factory=dict)
    in_doubt: list[str] = field(default_factory=list)

    def is_kept(self, kb: KnowledgeBase, fact_id: int) -> bool:
        """Tell whether every acknowledged edit is there, and the last, or one in doubt after it, is the value."""
        trace = kb.outputs.trace_fact(fact_id)
        changes = {change.seq for change in trace.history if change.kind == "update"}
        values = {version.value for version in trace.versions}
        is_last = trace.fact.value in (self.last, *self.in_doubt)
        return is_last and self.acknowledged.keys() <= changes and {*self.acknowledged.values()} <= values


class EditLoad(ServerLoad):
    """Clients that look facts up and edit others, while the database may be away."""

    rest_seconds = 0.005

    def __init__(self, addresses: Sequence[str], token: str, ids: Mapping[int, int], *more: Step) -> None:
        super().__init__(addresses, token, [*[self.look_up] * LOOKERS, *[self.edit] * EDITORS, *more])
        self.was_alive = True
        self.num_asked = len(ids) // 2
        self.edited = {id: EditedFact(f"value {n}") for n, id in ids.items() if n >= self.num_asked}

    def look_up(self, client: LoadClient, number: int) -> None:
        n = number % self.num_asked
        client.counts["wrong_answers"] += [hit["value"] for hit in hits_of(client, n)][:1] != [f"value {n}"]

    def edit(self, client: LoadClient, number: int) -> None:
        # Each client has facts of its own: those whose id modulo EDITORS is its number's.
        mine = [id for id in self.edited if id % EDITORS == client.number % EDITORS]
        fact_id, value = mine[number // len(self.steps) % len(mine)], f"edited {number}"
        edited = self.edited[fact_id]
        edited.in_doubt.append(value)
        change = client.read("PATCH", f"/v1/facts/{fact_id}", {"value": value, "reason": "load"})
        edited.last, edited.in_doubt = value, []
        edited.acknowledged[change["seq"]] = value
        client.counts["edits_acknowledged"] += 1

    def count_failure(self, client: LoadClient, error: Exception, doing: str) -> None:
        """Count a request that was refused as it should be, since the database is away, or else as an error."""
        if is_database_away(error):
            client.counts["requests_refused"] += 1
        else:
            super().count_failure(client, error, doing)

    def probe(self) -> None:
        connection = http.client.HTTPConnection(self.addresses[0].removeprefix("http://"), timeout=30)
        connection.request("GET", "/healthz")
        self.was_alive &= connection.getresponse().status == 200
        connection.close()

    def report_outcome(self, kb: KnowledgeBase, seconds: Sequence[float], log: Path) -> Figures:
        """Report the edits and errors; `seconds` are those after each kill until every client was answered again."""
        said = log.read_text()
        sys.stderr.write(said)
        return {
            **self.figures("lookups", "edits_acknowledged", "requests_refused", "wrong_answers", "errors"),
            "edits_in_doubt": sum(len(edited.in_doubt) for edited in self.edited.values()),
            "edits_lost": sum(not edited.is_kept(kb, id) for id, edited in self.edited.items()),
            "seconds_until_answers": [round(one, 2) for one in seconds],
            "seconds_median": round(statistics.median(seconds), 2),
            "seconds_worst": round(max(seconds), 2),
            "alive_ok": self.was_alive,
            "tracebacks_logged": said.count("Traceback"),
            "lines_logged": len(said.splitlines()),
            **soundness(kb),
        }


def hits_of(client: LoadClient, number: int) -> list[dict[str, object]]:
    """Look up the question of a numbered fact by its key, and give the hits."""
    client.counts["lookups"] += 1
    queries = ENCODER.encode_questions([f"Question {number}?"]).tolist()
    body = {"queries": queries, "checkpoint_id": ENCODER.checkpoint.checkpoint_id}
    (answer,) = client.read("POST", "/v1/lookups", body)["answers"]
    hits: list[dict[str, object]] = answer["hits"]
    return hits


def database(settings: Settings, *, kills: int = 20, pause: float = 1.0) -> Figures:
    """Kill the embedded PostgreSQL again and again under a server and a worker, which nobody helps to recover.

    Before each kill there are `pause` seconds of work.
    """
    settings = replace(settings, database_url=None)  # so that whoever misses the server may start it
    log = settings.home / "server.log"
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        ids = fill_base(kb, FACTS, ENCODER)
        stack.enter_context(worker_process(settings))
        with our_server(settings, with_model=False, log=log) as port:
            load = EditLoad([f"http://127.0.0.1:{port}"], token_of(kb), ids)
            with load.running():
                load.await_steps()
                seconds = [_time_recovery(load, settings.home / "postgres", pause) for _ in range(kills)]
                is_done = _succeeds(kb)
        return {"kills": kills, **load.report_outcome(kb, seconds, log), "job_ok": is_done}


def _time_recovery(load: EditLoad, data: Path, pause: float) -> float:
    """Kill the server's parent process; give the seconds until each client had a later request answered."""
    load.await_steps(pause)
    pid, killed = _postmaster(data), time.monotonic()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while _postmaster(data) in (pid, None):  # earlier requests may still be answered for a moment
        assert time.monotonic() < killed + PATIENCE, "nobody started the database again"
        load.probe()
        time.sleep(0.02)
    load.await_steps()
    return time.monotonic() - killed


def _succeeds(kb: KnowledgeBase) -> bool:
    """Queue a job for the worker that was there throughout, and tell whether it succeeds."""
    jobs, until = Jobs(kb), time.monotonic() + PATIENCE
    job = jobs.submit(Check(), actor="tester")
    while not (job := jobs.get(job.job_id)).is_over and time.monotonic() < until:
        time.sleep(0.1)
    return job.state == "succeeded"


def _postmaster(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().split()[0])
    except (OSError, IndexError):
        return None


# Erasures of what others splice and plan.

PLANNERS = 2
STAYING = 20  # facts that are never erased, so that a plan always leaves some
EXPECTED = {404, 409}  # nothing left to select, a plan in progress: answers, not failures
_PLANS = text("SELECT concat_ws(' ', selector, plan, verification, reason) FROM forget_run")
_REQUESTS = text("SELECT reason FROM change WHERE kind = 'erase'")
_OUTPUTS = text("SELECT concat_ws(' ', prompt, output) FROM generation")
_PLANT = text("""
UPDATE generation g SET prompt = :said FROM attribution a
WHERE a.generation_id = g.id AND a.fact_id = :id
    AND g.id = (SELECT max(generation_id) FROM attribution WHERE fact_id = :id)
""")


class ErasureLoad(ServerLoad):
    """Decoders and operators at work on the fact that is erased next."""

    def __init__(self, address: str, token: str, facts: Mapping[int, str], decoders: int) -> None:
        super().__init__([address], token, [*[self.decode] * decoders, *[self.plan] * PLANNERS])
        self.facts = list(facts.items())
        self.place, self.num_records = 0, 0
        self.eraser = LoadClient([address], token)
        self.clients.append(self.eraser)  # it has no step, and counts like the others

    def erase_all(self) -> None:
        """Erase each fact once decoders have stored outputs with it."""
        for place, (fact_id, value) in enumerate(self.facts):
            self.place = place
            had, until = self.num_records, time.monotonic() + 5
            while self.num_records < had + 2 and time.monotonic() < until:
                time.sleep(0.001)
            body = {"fact_ids": [fact_id], "reason": f"request about {value}"}
            try:
                self.eraser.ask("POST", "/v1/erasures", body)
            except HTTPError as error:
                self.count_failure(self.eraser, error, "erase")

    def decode(self, client: LoadClient, number: int) -> None:
        """Look up, splice and store; the fact may be erased at any point in between."""
        queries = ENCODER.encode_questions([_question(self.place)]).tolist()
        checkpoint = ENCODER.checkpoint.checkpoint_id
        body = {"queries": queries, "checkpoint_id": checkpoint}
        (answer,) = client.read("POST", "/v1/lookups", body)["answers"]
        value = answer["hits"][0]["value"] if answer["hits"] else "nobody"
        splices = [
            {"output_start": 14, "output_end": 14 + len(value), "outcome": "hit"}
            | {name: hit[name] for name in ("fact_id", "version", "score")}
            for hit in answer["hits"][:1]
        ]
        record = {
            "prompt": f"Is it {value.lower()}?",
            "output": f"It is kept by {value}, that is {value.upper()}.",
            "checkpoint_id": checkpoint,
            "mode": "auto",
            "seq": answer["seq"],
            "splices": splices,
        }
        client.ask("POST", "/v1/generations/records", record)
        client.counts["records"] += 1
        client.counts["spliced"] += len(splices)
        self.num_records += 1

    def plan(self, client: LoadClient, number: int) -> None:
        """Plan to forget the fact, selected by its value."""
        _, value = self.facts[self.place]
        time.sleep(0.01)
        body = {"selector": {"text": value.upper()}, "reason": f"of {value}", "model": False, "sample": 5}
        client.ask("POST", "/v1/forget-runs", body)
        client.counts["plans"] += 1

    def count_failure(self, client: LoadClient, error: Exception, doing: str) -> None:
        if isinstance(error, HTTPError) and error.code in EXPECTED:
            client.counts["told"] += 1
        else:
            super().count_failure(client, error, doing)


def erasure(settings: Settings, *, erasures: int = 500, decoders: int = 4) -> Figures:
    """Erase facts while decoders splice them and operators plan to forget them, and check that no value is kept."""
    started = time.monotonic()
    with KnowledgeBase.open(settings) as kb:
        kb.corpora.ingest((Parsed(_entry(n)) for n in range(erasures + STAYING)), "entries", **WHO)
        kb.keysets.set_threshold(kb.keysets.rekey(ENCODER).keyset_id, 0.9)
        facts = {fact.fact_id: fact.value for fact in kb.facts.find(limit=erasures)}
        with our_server(settings, with_model=False, variables={"COLMLM_LOG_LEVEL": "error"}) as port:
            load = ErasureLoad(f"http://127.0.0.1:{port}", token_of(kb, "admin"), facts, decoders)
            with load.running():
                load.erase_all()
        fsck_ok = kb.upkeep.fsck().ok
        with kb.engine.connect() as connection:
            outputs = [*connection.scalars(_OUTPUTS)]
            plans = [*connection.scalars(_PLANS), *connection.scalars(_REQUESTS)]
        return {
            "seconds": round(time.monotonic() - started, 1),
            "erasures": len(facts),
            **load.figures("records", "spliced", "plans", "told", "errors"),
            "outputs": len(outputs),
            "outputs_redacted": sum(MARK in said for said in outputs),
            "outputs_with_value": _keeping(outputs, facts.values()),
            "plans_with_value": _keeping(plans, facts.values()),
            "fsck_ok": fsck_ok,
            **_repair_planted_value(kb, facts),
        }


def _question(n: int) -> str:
    return f"Who keeps entry {n}?"


def _entry(n: int) -> AnnotatedDocument:
    """Make a document of one fact, whose value no other has."""
    before, value = f"Entry {n} is kept by ", f"Keeper Nr{n:05d}"
    span = FactSpan(len(before), len(before) + len(value), value, _question(n), value)
    return AnnotatedDocument(f"d{n}", f"{before}{value}.", (span,))


def _keeping(texts: Sequence[str], values: Iterable[str]) -> int:
    """Count the texts that hold one of the values, ignoring case."""
    folded = [value.casefold() for value in values]
    return sum(any(value in said.casefold() for value in folded) for said in texts)


def _repair_planted_value(kb: KnowledgeBase, facts: Mapping[int, str]) -> Figures:
    """Put a value back into an output; tell whether fsck finds it, and whether a repair redacts it."""
    fact_id, value = next(iter(facts.items()))
    with kb.engine.begin() as connection:
        num = connection.execute(_PLANT, {"said": f"So it is {value.upper()}?", "id": fact_id}).rowcount
    is_found = num == 1 and len(kb.upkeep.fsck().quoting) == 1
    after = kb.upkeep.repair().after
    with kb.engine.connect() as connection:
        outputs = [*connection.scalars(_OUTPUTS)]
    return {"planted_found_ok": is_found, "planted_repaired_ok": after.ok and not _keeping(outputs, [value])}
