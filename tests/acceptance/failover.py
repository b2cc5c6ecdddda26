"""Kills the primary of two PostgreSQL servers under a server in use, and promotes the standby.

Commits wait until the standby shows them (`remote_apply`). Clients look facts up, edit and delete them throughout. The
figures have the seconds from each kill until all of them were answered again, and how many acknowledged edits and
deletions are missing, of the facts and of the log. In each further round the servers change places.

    python -m tests.acceptance.failover --rounds 3 --json
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import our_server
from colmlm.lab.faults.harness import Figures, LoadClient, fill_base, run_scenario, token_of
from colmlm.lab.faults.served import ENCODER, FACTS, EditLoad, hits_of
from tests.debian_servers import ReplicatedPair, replicated_pair

TO_DELETE = 10_000  # facts that are there to be deleted, more than minutes of it get to


class LoadWithDeletions(EditLoad):
    """The clients of `faults database`, and one that deletes facts and asks for each that it has deleted."""

    def __init__(self, addresses: Sequence[str], token: str, ids: Mapping[int, int]) -> None:
        super().__init__(addresses, token, {n: ids[n] for n in range(FACTS)}, self.delete)
        self.ids = ids
        self.left, self.done = list(range(FACTS, len(ids))), list[int]()

    def delete(self, client: LoadClient, number: int) -> None:
        n = self.left.pop()  # one whose outcome is not known is left alone
        client.ask("DELETE", f"/v1/facts/{self.ids[n]}", {"reason": "load"})
        self.done.append(n)
        for gone in {n, self.done[number % len(self.done)]}:
            client.counts["wrong_answers"] += self.ids[gone] in [
                hit["fact_id"] for hit in hits_of(client, gone)
            ]


def run(settings: Settings, pair: ReplicatedPair, *, rounds: int = 3, pause: float = 3.0) -> Figures:
    """Kill the primary again and again, each time after `pause` seconds of work, and promote the standby."""
    settings = replace(settings, database_url=pair.url)
    engine = database.connect_database(settings)
    database.migrate_database(engine)
    engine.dispose()
    seconds, promoted = [], []
    log = settings.home / "server.log"
    with KnowledgeBase.open(settings) as kb:
        ids = fill_base(kb, FACTS + TO_DELETE, ENCODER)
        with our_server(settings, with_model=False, log=log) as port:
            load = LoadWithDeletions([f"http://127.0.0.1:{port}"], token_of(kb), ids)
            with load.running():
                for _ in range(rounds):
                    pair.replicate()
                    load.await_steps(pause)
                    killed = time.monotonic()
                    pair.fail_over()
                    promoted.append(round(time.monotonic() - killed, 2))
                    load.await_steps()
                    seconds.append(time.monotonic() - killed)
                load.await_steps(pause)
        kb.engine.dispose()
        undead = [n for n in load.done if kb.facts.show(ids[n]).deleted_seq is None]
        return {
            "rounds": rounds,
            "deletions_acknowledged": len(load.done),
            "deletions_lost": len(undead),
            "seconds_of_promotion": promoted,
            **load.report_outcome(kb, seconds, log),
        }


if __name__ == "__main__":
    run_scenario(run, replicated_pair)
