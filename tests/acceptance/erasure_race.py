"""Erases facts while decoders splice them and operators plan to forget them, and checks that no value is kept.

One server answers. Decoders elsewhere look up the fact that is erased next and store outputs that splice it, also in
other letter case; operators plan to forget it by its own words. Each fact is erased by a request. At the end every
output, selector and plan is read, and one value is put back by hand, to check that fsck finds it and a repair redacts
it.

    python -m tests.acceptance.erasure_race --erasures 500 --decoders 4 --json
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sqlalchemy import Connection, text

from colmlm.kb.access.tokens import create_token
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from tests.acceptance.programs import options_of, own_folder, report
from tests.acceptance.server import server_process
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest

PLANNERS = 2
STAYING = 20  # facts that are never erased, so that a plan always leaves some
ENCODER = FakeEncoder()
EXPECTED = {404, 409}  # nothing left to select, a plan in progress: answers, not failures


@dataclass(slots=True)
class Counts:
    """Counts of one client. `told` requests were refused as expected, `errors` requests failed otherwise."""

    records: int = 0
    spliced: int = 0
    plans: int = 0
    told: int = 0
    errors: int = 0
    causes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run.

    `outputs_with_value` and `plans_with_value` count those that keep an erased value in some form; `planted_*` say
    whether a value that was put back was found, and redacted.
    """

    seconds: float
    erasures: int
    records: int
    spliced: int
    plans: int
    told: int
    errors: int
    outputs: int
    outputs_redacted: int
    outputs_with_value: int
    plans_with_value: int
    fsck_ok: bool
    planted_found: bool
    planted_repaired: bool
    causes: list[str]

    @property
    def is_good(self) -> bool:
        kept = self.outputs_with_value + self.plans_with_value
        return not (kept or self.errors) and self.fsck_ok and self.planted_found and self.planted_repaired


class Client:
    """A connection to the server, with a token."""

    def __init__(self, address: str, token: str) -> None:
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, path: str, body: object) -> tuple[int, Any]:
        try:
            self.connection.request("POST", f"/v1{path}", json.dumps(body), self.headers)
            answer = self.connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (http.client.HTTPException, ConnectionError) as error:
            self.connection.close()
            return 0, repr(error)


def run(settings: Settings, erasures: int, decoders: int) -> Outcome:
    """Erases that many facts of the empty, migrated database of `settings` while that many decoders use them."""
    started = time.monotonic()
    with KnowledgeBase.open(settings) as kb:
        ingest(kb, *(_said(n) for n in range(erasures + STAYING)))
        kb.keysets.set_threshold(kb.keysets.rekey(ENCODER).keyset_id, 0.9)
        facts = {f.fact_id: f.value for f in kb.facts.find(limit=erasures)}
        with kb.sessions.begin() as session:
            token = create_token(session, "race", "admin")
        with server_process(settings, COLMLM_LOG_LEVEL="error") as server:
            counts = _race(lambda: Client(server.address, token), facts, decoders)
        fsck = kb.upkeep.fsck()
        with kb.engine.connect() as connection:
            outputs, plans = _outputs(connection), _plans(connection)
        found, repaired = _plant(kb, facts)
    return Outcome(
        seconds=round(time.monotonic() - started, 1),
        erasures=len(facts),
        **{name: sum(getattr(one, name) for one in counts) for name in _SUMMED},
        outputs=len(outputs),
        outputs_redacted=sum(MARK in said for said in outputs),
        outputs_with_value=_keeping(outputs, facts.values()),
        plans_with_value=_keeping(plans, facts.values()),
        fsck_ok=fsck.ok,
        planted_found=found,
        planted_repaired=repaired,
        causes=[cause for one in counts for cause in one.causes][:20],
    )


_SUMMED = ("records", "spliced", "plans", "told", "errors")


def _said(n: int) -> AnnotatedDocument:
    """Makes a document of one fact, whose value no other has."""
    return document(f"d{n}", f"Entry {n} is kept by ", (f"Keeper Nr{n:05d}", f"Who keeps entry {n}?"), ".")


def _race(connect: Callable[[], Client], facts: dict[int, str], decoders: int) -> list[Counts]:
    turn = _Turn(list(facts.items()))
    workers = [*(_decode for _ in range(decoders)), *(_plan for _ in range(PLANNERS))]
    with ThreadPoolExecutor(len(workers)) as threads:
        working = [threads.submit(_repeat, worker, connect, turn) for worker in workers]
        erased = Counts()
        eraser = connect()
        try:
            for place, fact_id in enumerate(facts):
                turn.await_records(place)
                body = {"fact_ids": [fact_id], "reason": f"request about {facts[fact_id]}"}
                _count(erased, *eraser.ask("/erasures", body))
        finally:
            turn.is_over.set()
            eraser.connection.close()
        return [erased, *(one.result() for one in working)]


@dataclass(slots=True)
class _Turn:
    """The fact that is erased next; decoders use it until it is erased, and for a while after."""

    facts: Sequence[tuple[int, str]]
    place: int = 0
    num_records: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    def await_records(self, place: int) -> None:
        """Makes this fact the next one, and waits until decoders have stored outputs with it."""
        self.place, had, until = place, self.num_records, time.monotonic() + 5
        while self.num_records < had + 2 and time.monotonic() < until:
            time.sleep(0.001)


def _repeat(step: Step, connect: Callable[[], Client], turn: _Turn) -> Counts:
    counts = Counts()
    with connect() as client:
        while not turn.is_over.is_set():
            step(client, turn, counts)
    return counts


Step = Callable[[Client, _Turn, Counts], None]


def _decode(client: Client, turn: _Turn, counts: Counts) -> None:
    """Looks up, splices, waits a moment and stores, so that the fact may be erased at any point in between."""
    number = turn.place
    status, found = client.ask("/lookups", {"questions": [f"Who keeps entry {number}?"]})
    if not _count(counts, status, found):
        return
    (answer,) = found["answers"]
    hits, checkpoint = answer["hits"], ENCODER.checkpoint.checkpoint_id
    value = hits[0]["value"] if hits else "nobody"
    output = f"It is kept by {value}, that is {value.upper()}."
    splices = []
    if hits:
        spliced = {"fact_id": hits[0]["fact_id"], "version": hits[0]["version"], "score": hits[0]["score"]}
        splices = [{"output_start": 14, "output_end": 14 + len(value), "outcome": "hit", **spliced}]
    body = {
        "prompt": f"Is it {value.lower()}?",
        "output": output,
        "checkpoint_id": checkpoint,
        "mode": "auto",
        "seq": answer["seq"],
        "splices": splices,
    }
    status, told = client.ask("/generations/records", body)
    if _count(counts, status, told):
        counts.records += 1
        counts.spliced += len(splices)
        turn.num_records += 1


def _plan(client: Client, turn: _Turn, counts: Counts) -> None:
    """Plans to forget the fact, selected by its value."""
    _, value = turn.facts[turn.place]
    body = {"selector": {"text": value.upper()}, "reason": f"of {value}", "model": False, "sample": 5}
    status, told = client.ask("/forget-runs", body)
    if _count(counts, status, told):
        counts.plans += 1
    time.sleep(0.01)


def _count(counts: Counts, status: int, told: Any) -> bool:
    if 200 <= status < 300:
        return True
    if status in EXPECTED:
        counts.told += 1
    else:
        counts.errors += 1
        counts.causes.append(f"{status} {str(told)[:300]}")
    return False


def _outputs(connection: Connection) -> list[str]:
    return [f"{row.prompt}\n{row.output}" for row in connection.execute(text("SELECT * FROM generation"))]


def _plans(connection: Connection) -> list[str]:
    statement = "SELECT concat_ws(' ', selector, plan, verification, reason) FROM forget_run"
    requests = "SELECT reason FROM change WHERE kind = 'erase'"
    return [*connection.scalars(text(statement)), *connection.scalars(text(requests))]


def _keeping(texts: Sequence[str], values: Any) -> int:
    """Counts the texts that hold one of the values, ignoring case."""
    folded = [value.casefold() for value in values]
    return sum(any(value in said.casefold() for value in folded) for said in texts)


def _plant(kb: KnowledgeBase, facts: dict[int, str]) -> tuple[bool, bool]:
    """Puts a value back into an output; tells whether fsck finds it, and whether a repair redacts it."""
    fact_id, value = next(iter(facts.items()))
    planting = text(
        "UPDATE generation g SET prompt = :said FROM attribution a"
        " WHERE a.generation_id = g.id AND a.fact_id = :id AND g.id ="
        " (SELECT max(generation_id) FROM attribution WHERE fact_id = :id)"
    )
    with kb.engine.begin() as connection:
        num = connection.execute(planting, {"said": f"So it is {value.upper()}?", "id": fact_id}).rowcount
    found = num == 1 and len(kb.upkeep.fsck().quoting) == 1
    after = kb.upkeep.repair().after
    with kb.engine.connect() as connection:
        return found, after.ok and _keeping(_outputs(connection), [value]) == 0


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--erasures", type=int, default=500)
    parser.add_argument("--decoders", type=int, default=4)
    options = parser.parse_args()
    with own_folder() as folder:
        settings = Settings(home=folder, database_url=os.environ.get("COLMLM_DATABASE_URL"))
        engine = database.connect_database(settings)
        database.migrate_database(engine)
        engine.dispose()
        outcome = run(settings, options.erasures, options.decoders)
    found = {**asdict(outcome), "is_good": outcome.is_good}
    return report(found, is_good=outcome.is_good, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
