"""Switches the active keyset back and forth while another process looks up and a third edits: no request fails.

The reader process asks from several threads, with both encoders available, and follows the log as a server does. For
each answer it checks that the key belongs to the keyset of the asking checkpoint, that only a key of that keyset can
have this score, and that the value is right. It does not ask for facts that the editor changes.

    python -m tests.acceptance.switch_under_load --seconds 20
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.switching.keysets import Keysets
from colmlm.kb.tables import FactKeyRow
from tests.acceptance.programs import options_of, own_database, report
from tests.acceptance.spawned import spawned
from tests.fakes import FakeEncoder, measured
from tests.kb.corpora import ingest, numbered

WHO = {"actor": "editor", "reason": "acceptance"}
FACTS, ASKED, THREADS = 400, 300, 3
OLD, NEW = FakeEncoder(), FakeEncoder(salt="2")


@dataclass(slots=True)
class Answers:
    """Counts of one thread of the reader. `mixed`: the key or its score is not of the asking checkpoint's keyset."""

    requests: int = 0
    failed: int = 0
    mixed: int = 0
    wrong: int = 0
    of_new: int = 0
    slowest_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    requests: int
    failed: int
    mixed: int
    wrong: int
    answered_by_new: int
    activations: int
    rollbacks: int
    edits: int
    index_ok: bool
    chain_ok: bool
    seconds: float
    slowest_ms: float


def run(settings: Settings, seconds: float) -> Outcome:
    """Loads the empty, migrated database of `settings` for that many seconds."""
    with KnowledgeBase.open(settings) as kb, KnowledgeBase.open(settings) as editing:
        ingest(kb, *numbered(FACTS))
        old, new = (
            kb.keysets.calibrate(kb.keysets.rekey(e).keyset_id, measured(0.9)).keyset_id for e in (OLD, NEW)
        )
        assert kb.keysets.check(new, NEW, active_encoder=OLD).passed
        stop = threading.Event()
        with spawned(
            read, settings, {OLD.checkpoint.checkpoint_id: old, NEW.checkpoint.checkpoint_id: new}
        ) as pipe:
            assert pipe.recv() == "asking"
            with ThreadPoolExecutor(max_workers=1) as editor:
                edits, started = editor.submit(_edit, editing, stop), time.monotonic()
                activations, rollbacks = _switch(kb.keysets, new, started + seconds)
                stop.set()
                num_edits = edits.result()
            took = time.monotonic() - started
            pipe.send("stop")
            answers: list[Answers] = pipe.recv()
        kb.lookups.catch_up()
        report = kb.upkeep.fsck()
    return Outcome(
        requests=sum(a.requests for a in answers),
        failed=sum(a.failed for a in answers),
        mixed=sum(a.mixed for a in answers),
        wrong=sum(a.wrong for a in answers),
        answered_by_new=sum(a.of_new for a in answers),
        activations=activations,
        rollbacks=rollbacks,
        edits=num_edits,
        index_ok=report.ok,
        chain_ok=report.chain_ok,
        seconds=round(took, 1),
        slowest_ms=round(max(a.slowest_ms for a in answers), 1),
    )


def _switch(retraining: Keysets, new: int, until: float) -> tuple[int, int]:
    """Activates and rolls back until the time is over, at least twice each; gives the numbers of both."""
    activations = rollbacks = 0
    while time.monotonic() < until or activations < 2:
        retraining.activate(new, max_edits=10**6)
        activations += 1
        time.sleep(0.2)
        retraining.rollback()
        rollbacks += 1
        time.sleep(0.2)
    return activations, rollbacks


def _edit(kb: KnowledgeBase, stop: threading.Event) -> int:
    """Deletes, restores and corrects the facts that nobody asks for; gives the number of edits."""
    facts = [f.fact_id for f in kb.facts.find(limit=FACTS) if int(f.value.split()[1]) >= ASKED]
    edits = 0
    while not stop.is_set():
        fact_id = facts[edits % len(facts)]
        kb.facts.delete([fact_id], **WHO)
        kb.facts.restore([fact_id], **WHO)
        kb.facts.edit(fact_id, f"edited {edits}", **WHO)
        edits += 3
    return edits


def read(settings: Settings, keysets: dict[str, int], pipe: Connection) -> None:
    """Runs the reader process."""
    stop = threading.Event()
    with KnowledgeBase.open(settings) as kb, Follower(kb):
        of_keyset = _keyset_of_keys(kb, keysets)
        questions = Questions(kb, [OLD, NEW])
        questions.ask(["Question 0?"])
        pipe.send("asking")
        with ThreadPoolExecutor(max_workers=THREADS) as threads:
            asking = [threads.submit(_ask, questions, of_keyset, stop, n) for n in range(THREADS)]
            pipe.recv()
            stop.set()
            pipe.send([one.result() for one in asking])


def _keyset_of_keys(kb: KnowledgeBase, keysets: dict[str, int]) -> dict[str, set[int]]:
    """Gives, by checkpoint, the ids of its keys."""
    with kb.sessions() as session:
        return {
            checkpoint_id: {
                k for (k,) in session.query(FactKeyRow.id).where(FactKeyRow.keyset_id == keyset_id)
            }
            for checkpoint_id, keyset_id in keysets.items()
        }


def _ask(questions: Questions, key_ids: dict[str, set[int]], stop: threading.Event, number: int) -> Answers:
    answers = Answers()
    while not stop.is_set():
        number = (number + 7) % ASKED
        started = time.perf_counter()
        answers.requests += 1
        try:
            checkpoint_id, (lookup,) = questions.ask([f"Question {number}?"])
        except Exception as error:
            answers.failed += 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            continue
        answers.slowest_ms = max(answers.slowest_ms, 1000 * (time.perf_counter() - started))
        answers.of_new += checkpoint_id == NEW.checkpoint.checkpoint_id
        best = lookup.hits[0] if lookup.hits else None
        answers.wrong += best is None or best.value != f"value {number}"
        answers.mixed += best is None or best.key_id not in key_ids[checkpoint_id] or best.score < 0.99
    return answers


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    with own_database("switch") as settings:
        outcome = run(settings, options.seconds)
    broken = outcome.failed or outcome.mixed or outcome.wrong
    is_good = not broken and outcome.index_ok and outcome.chain_ok
    return report(outcome, is_good=is_good, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
