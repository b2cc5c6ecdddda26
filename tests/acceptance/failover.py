"""Kills the primary of two PostgreSQL servers under a server in use, and promotes the standby.

Commits wait until the standby shows them (`remote_apply`). Clients look facts up, edit and delete them throughout. The
outcome has the seconds from each kill until all of them were answered again, and how many acknowledged edits and
deletions are missing, of the facts and of the log. In each further round the servers change places.

    python -m tests.acceptance.failover --rounds 3 --json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from tests.acceptance.database_killed import FACTS, Client, Counts, Load, lost_edits
from tests.acceptance.programs import options_of, own_folder, report
from tests.acceptance.server import ServerProcess, server_process
from tests.debian_servers import ReplicatedPair, replicated_pair
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered

TO_DELETE = 10_000  # facts that are there to be deleted, more than minutes of it get to


@dataclass(frozen=True, slots=True)
class FailedOver:
    """What became of it. A lookup is wrong where it finds a fact whose deletion was acknowledged, or another value."""

    rounds: int
    lookups: int
    edits_acknowledged: int
    deletions_acknowledged: int
    edits_lost: int
    deletions_lost: int
    requests_refused: int
    wrong_answers: int
    unexpected_answers: dict[str, int]
    seconds_out: list[float]
    seconds_median: float
    seconds_worst: float
    seconds_of_promotion: list[float]
    alive_throughout: bool
    tracebacks_logged: int
    index_ok: bool
    chain_ok: bool

    @property
    def is_good(self) -> bool:
        wrong = self.edits_lost or self.deletions_lost or self.wrong_answers or self.unexpected_answers
        sound = self.alive_throughout and self.index_ok and self.chain_ok and not self.tracebacks_logged
        return sound and not wrong and self.edits_acknowledged > 0 and self.deletions_acknowledged > 0


@dataclass(slots=True)
class Deletions:
    """Facts by number: those left to delete, and those whose deletion was acknowledged."""

    left: list[int]
    done: list[int] = field(default_factory=list)


class LoadWithDeletions(Load):
    """The clients of the other run, and one that deletes facts and asks for each that it has deleted."""

    def __init__(self, kb: KnowledgeBase, server: ServerProcess, token: str, ids: dict[int, int]) -> None:
        super().__init__(kb, server, token)
        self.ids = ids
        self.deletions = Deletions(sorted(ids, reverse=True))
        self.steps.append(self._delete)
        self.counts.append(Counts())

    def _delete(self, client: Client, counts: Counts, number: int) -> None:
        n = self.deletions.left.pop()  # one whose outcome is not known is left alone
        client.ask("DELETE", f"/v1/facts/{self.ids[n]}", {"reason": "load"})
        self.deletions.done.append(n)
        for gone in {n, self.deletions.done[number % len(self.deletions.done)]}:
            (answer,) = client.ask("POST", "/v1/lookups", {"questions": [f"Question {gone}?"]})["answers"]
            counts.lookups += 1
            counts.wrong += self.ids[gone] in [hit["fact_id"] for hit in answer["hits"]]


def run(home: Path, pair: ReplicatedPair, rounds: int, pause: float = 2.0) -> FailedOver:
    """Fails over `rounds` times, each after `pause` seconds of work."""
    settings = Settings(home=home, database_url=pair.url, actor="tester")
    engine = database.connect_database(settings)
    database.migrate_database(engine)
    engine.dispose()
    seconds, promoted = [], []
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        ingest(kb, *numbered(FACTS + TO_DELETE))
        kb.keysets.set_threshold(kb.keysets.rekey(FakeEncoder(), batch=2_000).keyset_id, 0.9)
        there = kb.facts.find(limit=FACTS + TO_DELETE)
        ids = {int(fact.value.split()[1]): fact.fact_id for fact in there}
        with kb.sessions.begin() as session:
            token = create_token(session, "the clients", "operator")
        server = stack.enter_context(server_process(settings, COLMLM_LOG_LEVEL="warning"))
        load = LoadWithDeletions(kb, server, token, {n: ids[n] for n in range(FACTS, FACTS + TO_DELETE)})
        with load.running():
            for _ in range(rounds):
                pair.replicate()
                time.sleep(pause)
                killed = time.monotonic()
                pair.fail_over()
                promoted.append(round(time.monotonic() - killed, 2))
                seconds.append(round(load.await_answers(time.monotonic()) - killed, 2))
            time.sleep(pause)
        log = server.stop()
        sys.stderr.write(log)
        kb.engine.dispose()
        kb.lookups.catch_up()
        report = kb.upkeep.fsck()
        undead = [n for n in load.deletions.done if kb.facts.show(ids[n]).deleted_seq is None]
        return FailedOver(
            rounds=rounds,
            lookups=sum(counts.lookups for counts in load.counts),
            edits_acknowledged=sum(len(counts.edits) for counts in load.counts),
            deletions_acknowledged=len(load.deletions.done),
            edits_lost=len(lost_edits(kb, load)),
            deletions_lost=len(undead),
            requests_refused=sum(counts.refused for counts in load.counts),
            wrong_answers=sum(counts.wrong for counts in load.counts),
            unexpected_answers=dict(sum((counts.unexpected for counts in load.counts), Counter[str]())),
            seconds_out=seconds,
            seconds_median=round(statistics.median(seconds), 2),
            seconds_worst=max(seconds),
            seconds_of_promotion=promoted,
            alive_throughout=load.was_alive,
            tracebacks_logged=log.count("Traceback"),
            index_ok=report.ok,
            chain_ok=report.chain_ok,
        )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=3.0, help="Seconds of work before each kill.")
    options = parser.parse_args()
    with own_folder() as home, replicated_pair() as pair:
        outcome = run(home, pair, options.rounds, options.pause)
    return report(outcome, is_good=outcome.is_good, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
