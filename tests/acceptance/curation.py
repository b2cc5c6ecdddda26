"""Lets several people curate proposed facts at once over HTTP, and compares what each was told with log and facts.

Each is a process with a token of its own. They read the same facts, which move on from the first to the last in the
given time, and accept, reject, edit and undo what they read, on purpose the same as others; who was slower is told of
the conflict. What they reject they look up and ask for at once.

    python -m tests.acceptance.curation --facts 10000 --minutes 1 --clients 4 --json
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from colmlm.kb.access.tokens import create_token
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario, soundness, spawn_work
from tests.acceptance.curated import Replay, Standing
from tests.acceptance.curators import Curator, Tally, Work, work
from tests.acceptance.server import server_process
from tests.acceptance.towns import town
from tests.fakes import FakeEncoder

PAGE = 1000
LOOKED_UP = 50  # questions of one lookup at the end
SUPERVISOR = "supervisor"
SHOWN = 5


def run(
    settings: Settings,
    make: Callable[[Work], Curator] = Curator,
    *,
    facts: int = 10_000,
    minutes: float = 1.0,
    clients: int = 4,
) -> Figures:
    """Let people curate so many facts at once. An operation is one acknowledged act on one fact.

    `lost` ones are not in the log as they were told, or their fact is not as they and what was told of it since make
    it; `double` ones counted though their fact was no longer as it was seen. `untold` changes nobody was told of.
    `served_rejected` counts facts that were said after their rejection was acknowledged, in the lookups and answers
    that `asked_again` counts. `conflicts` were told to who was slower, of verdicts one for each fact.
    """
    with KnowledgeBase.open(settings) as kb:
        documents = [Parsed(town(number)) for number in range(facts // 2)]
        kb.corpora.ingest(documents, "towns", generated=True, actor="annotator", reason="acceptance")
        kb.keysets.rekey(FakeEncoder())
        names = [f"curator {number}" for number in range(clients)]
        with kb.sessions.begin() as session:
            tokens = {who: create_token(session, who, "operator") for who in (*names, SUPERVISOR)}
        before, head = _standings(kb), kb.log.head_seq()
        with server_process(settings, "--reads", COLMLM_LOG_LEVEL="error") as server:
            given = Work(server.address, "", "", 0, tuple(sorted(before)), 60 * minutes)
            works = [replace(given, number=n, who=who, token=tokens[who]) for n, who in enumerate(names)]
            tallies, seconds = _curated(make, works)
            now, log = _standings(kb), {one.seq: one for one in _changes(kb, head)}
            last = replace(given, who=SUPERVISOR, token=tokens[SUPERVISOR])
            tallies.append(_looked_up_again(kb, last))
        sound = soundness(kb)
    told = [one for tally in tallies for one in tally.told]
    heard = [one for tally in tallies for one in tally.heard]
    replay = Replay(before, told)
    lost, double = replay.lost(log, now), replay.double()
    for one in (*lost[:SHOWN], *double[:SHOWN]):
        print(f"{'lost' if one in lost else 'double'}: {one}", file=sys.stderr)
    acts: Counter[str] = Counter(one.act for one in told)
    return {
        "facts": len(before),
        "settled": len({one.fact for one in told}),
        "seconds": round(seconds, 1),
        "operations": dict(acts),
        "per_second": {act: round(number / seconds, 1) for act, number in acts.items()},
        "conflicts": dict(sum((tally.conflicts for tally in tallies), Counter[str]())),
        "asked_again": len(heard),
        "lost": len(lost),
        "double": len(double),
        "untold": replay.untold(log, now),
        "served_rejected": replay.served_rejected(heard),
        "failed": dict(sum((tally.failed for tally in tallies), Counter[str]())),
        **sound,
    }


def _curated(make: Callable[[Work], Curator], works: Sequence[Work]) -> tuple[list[Tally], float]:
    """Runs the clients, which begin at one time; gives the seconds from then on too."""
    with ExitStack() as stack:
        pipes = [stack.enter_context(spawn_work(work, make, one)) for one in works]
        for pipe in pipes:
            pipe.recv()
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(began)
        return [pipe.recv() for pipe in pipes], time.monotonic() - began


def _looked_up_again(kb: KnowledgeBase, given: Work) -> Tally:
    """Looks up what every rejected fact answered, and asks for an answer to some, when all is over."""
    rejected = [fact for fact in _facts(kb) if fact.review == "rejected"]
    supervisor = Curator(given)
    supervisor.known = kb.log.head_seq()
    with supervisor.client:
        for at in range(0, len(rejected), LOOKED_UP):
            supervisor.look_up(rejected[at : at + LOOKED_UP])
        for fact in rejected[::LOOKED_UP]:
            supervisor.ask(fact)
    return supervisor.tally


def _facts(kb: KnowledgeBase) -> list[FactRecord]:
    return kb.facts.find(deleted=None, limit=10**6)


def _standings(kb: KnowledgeBase) -> dict[int, Standing]:
    return {fact.fact_id: Standing.of(fact) for fact in _facts(kb)}


def _changes(kb: KnowledgeBase, after: int) -> Iterator[ChangeRecord]:
    while found := kb.log.changes(after, PAGE):
        yield from found
        after = found[-1].seq


if __name__ == "__main__":
    run_scenario(run)
