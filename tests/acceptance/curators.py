"""A person who curates, as a process of its own: it reads facts, judges what it read, and keeps what it was told."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import httpx
import msgspec

from colmlm.kb.facts.records import FactRecord
from tests.acceptance.curated import Heard, Standing, Told

NEAR = 100  # facts that all clients act on at about the same time, from a place that moves on with the time
READ = 60
ACTS = 3  # on what was read, which others settle meanwhile
LEAST = 12  # steps of each client, however slow the machine is
REJECTED = 6  # facts of one verdict at most
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a client has to do: `fact_ids` from end to end in so many seconds, at an address, as a token."""

    address: str
    token: str
    who: str
    number: int
    fact_ids: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class Tally:
    """What one client was told and heard, how often it was refused as another had been faster, and what failed."""

    told: list[Told] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


class Failed(Exception):
    """An answer with a status that no conflict explains."""


class Curator:
    """A client over HTTP. It reads facts, acts on them a few times, drawn at random, and reads others."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.tally = Tally()
        self.choose = random.Random(work.number)
        self.client = httpx.Client(
            base_url=work.address,
            headers={"Authorization": f"Bearer {work.token}"},
            timeout=TIMEOUT_SECONDS,
        )
        self.last: deque[int] = deque(maxlen=3)  # changes of its own, which it may undo
        self.page: list[FactRecord] = []
        self.known = 0

    def curate(self, began: float) -> Tally:
        steps: Sequence[Callable[[list[FactRecord]], None]] = (self.accept, self.reject, self.edit, self.undo)
        with self.client:
            for number in itertools.count():
                share = (time.monotonic() - began) / self.work.seconds
                if share >= 1 and number >= LEAST:
                    break
                (step,) = self.choose.choices(steps, (45, 25, 20, 10))
                try:
                    if number % ACTS == 0:
                        self.page = self.read(self.near(min(share, 1.0)))
                    step(self.page)
                except (httpx.HTTPError, Failed) as error:
                    self.tally.failed[f"{step.__name__}: {type(error).__name__}: {error}"] += 1
        return self.tally

    def near(self, share: float) -> list[int]:
        ids = self.work.fact_ids
        first = int(share * max(len(ids) - NEAR, 1))
        hot = ids[first : first + NEAR]
        return self.choose.sample(hot, min(READ, len(hot)))

    def read(self, fact_ids: list[int]) -> list[FactRecord]:
        found = self.said("read", "POST", "/v1/facts/read", fact_ids=fact_ids)
        return msgspec.convert(found, list[FactRecord])

    def accept(self, facts: list[FactRecord]) -> None:
        proposed = [fact for fact in facts if fact.review == "proposed"]
        self.settle("accept", proposed[: self.choose.randint(1, READ)])

    def reject(self, facts: list[FactRecord]) -> None:
        """Rejects facts, and asks at once what they answered."""
        live = [fact for fact in facts if fact.deleted_seq is None]
        rejected = self.settle("reject", live[: self.choose.randint(1, REJECTED)])
        if rejected:
            self.look_up(rejected)
            self.ask(self.choose.choice(rejected))

    def settle(self, act: Literal["accept", "reject"], facts: list[FactRecord]) -> list[FactRecord]:
        if not facts:
            return []
        verdicts = [{"verdict": act, **saw} for saw in self.shown(facts)]
        done = self.said(act, "POST", "/v1/review/verdicts", verdicts=verdicts, reason="curated")
        self.tally.conflicts[act] += len(done["before"])
        settled = [fact for fact in facts if fact.fact_id in done["fact_ids"]]
        for fact in settled:
            (seq,) = done["seqs"]
            self.note(Told(self.work.who, act, act, fact.fact_id, seq, Standing.of(fact)))
        return settled

    def shown(self, facts: list[FactRecord]) -> list[dict[str, Any]]:
        """Names the facts of verdicts as they were read, so that no verdict counts for what nobody saw."""
        return [{"fact_id": fact.fact_id, "version": fact.version, "review": fact.review} for fact in facts]

    def edit(self, facts: list[FactRecord]) -> None:
        live = [fact for fact in facts if fact.deleted_seq is None]
        if not live:
            return
        fact = self.choose.choice(live)
        value = f"{self.tally.asked['edit']} by {self.work.who}"
        body = {"value": value, "version": fact.version, "reason": "curated"}
        if done := self.said("edit", "PATCH", f"/v1/facts/{fact.fact_id}", **body):
            seq, kind = done["seq"], done["kind"]
            seen = Standing.of(fact)
            self.note(Told(self.work.who, "edit", kind, fact.fact_id, seq, seen, value=value))

    def undo(self, _: list[FactRecord]) -> None:
        if not self.last:
            return
        undoes = self.choose.choice(self.last)
        self.last.remove(undoes)
        done = self.said("undo", "POST", f"/v1/changes/{undoes}/undo", reason="curated")
        for fact_id in done["fact_ids"] if done else ():
            self.note(Told(self.work.who, "undo", done["kind"], fact_id, done["seq"], undoes=undoes))

    def note(self, told: Told) -> None:
        self.tally.told.append(told)
        self.page = [fact for fact in self.page if fact.fact_id != told.fact]
        self.known = told.seq
        if told.act != "undo" and told.seq not in self.last:
            self.last.append(told.seq)

    def look_up(self, facts: list[FactRecord]) -> None:
        asked = [fact.question for fact in facts]
        found = self.said("look up", "POST", "/v1/lookups", questions=asked, min_seq=self.known)
        for answer in found["answers"]:
            self.hear({hit["fact_id"] for hit in answer["hits"]})

    def ask(self, fact: FactRecord) -> None:
        """Asks for an answer, which says a fact by its id, or by its value where no fact is named."""
        answer = self.said("ask", "POST", "/v1/answers", question=fact.question)
        said = {one["fact_id"] for one in answer["facts"]}
        if answer["answer"] == fact.value:
            said.add(fact.fact_id)
        self.hear(said)

    def hear(self, fact_ids: Set[int]) -> None:
        self.tally.heard.append(Heard(self.work.who, self.known, tuple(fact_ids)))

    def said(self, act: str, method: str, path: str, **body: Any) -> Any:
        """Gives the answer, None where another client was faster. Raises `Failed`."""
        self.tally.asked[act] += 1
        answer = self.client.request(method, path, json=body)
        if answer.status_code == 409:
            self.tally.conflicts[act] += 1
            return None
        if answer.status_code >= 300:
            raise Failed(f"{answer.status_code} {answer.text[:200]}")
        return answer.json()


def work(make: Callable[[Work], Curator], given: Work, pipe: Connection) -> None:
    """Runs a process that curates from the time that it is told on, and tells what it was told."""
    curator = make(given)
    pipe.send("ready")
    pipe.send(curator.curate(pipe.recv()))
