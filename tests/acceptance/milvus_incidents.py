"""Kills a Milvus server with the keys of a base, puts it back to an older state and wipes it, while facts are asked.

Each incident may give errors. A wrong answer, or no match where a fact is, must not be.

    python -m tests.acceptance.milvus_incidents --milvus milvus-data --beside 100000 --json
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable
from colmlm.kb.lookup.remote import CollectionCandidates
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.lab.bench.synthetic import HashEncoder
from colmlm.lab.faults.harness import Figures, fill_base, run_scenario
from colmlm.lab.faults.processes import EDITED_FACTS as FACTS
from colmlm.lab.faults.processes import WIDTH, answer_of, store_beside
from colmlm.lab.faults.target import WHO
from tests.milvus_server import MilvusServer, milvus_server

EDITED = 20
LONGEST = 300.0  # seconds of an incident, on a machine that does other things as well


@dataclass
class Incident:
    """What lookups gave from an incident to the end of the first round in which all were right."""

    name: str
    right: int = 0
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    fsck_ok: bool = False


@dataclass
class Incidents:
    """A base with its keys on a server, and the answers that its facts must give."""

    kb: KnowledgeBase
    milvus: MilvusServer
    encoder: HashEncoder
    answers: dict[str, str | None]

    def during(self, name: str, *steps: Callable[[], object]) -> Incident:
        """Takes these steps, one after another, and asks for every fact meanwhile and until all answers are right."""
        told, started = Incident(name), time.monotonic()
        acting = threading.Thread(target=lambda: [step() for step in steps])
        acting.start()
        while not self._round(told) or acting.is_alive():
            if time.monotonic() - started > LONGEST:
                raise TimeoutError(f"{name}: {told}")
        acting.join()
        told.seconds = round(time.monotonic() - started, 1)
        self.kb.lookups.snapshot()
        told.fsck_ok = self.kb.upkeep.fsck().ok
        print(told, file=sys.stderr, flush=True)
        return told

    def _round(self, told: Incident) -> bool:
        all_right = True
        for question, value in self.answers.items():
            try:
                is_right = answer_of(self.kb, self.encoder, question) == value
            except (CandidatesRefused, CandidatesUnavailable) as error:
                name = type(error).__name__
                told.errors[name] = told.errors.get(name, 0) + 1
                all_right = False
                time.sleep(0.1)
                break
            told.right, told.wrong = told.right + is_right, told.wrong + (not is_right)
            all_right &= is_right
        return all_right

    def edit(self) -> None:
        """Deletes facts, and adds others."""
        gone = [fact for fact in self.kb.facts.find(limit=FACTS) if fact.value.startswith("value")][:EDITED]
        self.kb.facts.delete([fact.fact_id for fact in gone], **WHO)
        self.answers |= {f"Question {fact.value.split()[1]}?": None for fact in gone}
        for n in range(EDITED):
            self.kb.facts.add(f"What is new thing {n}?", f"new {n}", **WHO)
            self.answers[f"What is new thing {n}?"] = f"new {n}"
        self.kb.keysets.rekey(self.encoder)

    def all(self) -> list[Incident]:
        older = self.milvus.directory.with_name("older")
        self.milvus.kill()
        shutil.copytree(self.milvus.directory, older)
        found = [self.during("killed", self.milvus.start)]
        self.edit()
        self.milvus.kill()
        shutil.rmtree(self.milvus.directory)
        older.rename(self.milvus.directory)
        found.append(self.during("put back to before 40 edits", self.milvus.start))
        candidates = self.kb.searcher.current().candidates
        assert isinstance(candidates, CollectionCandidates)
        candidates.collection.drop()
        found.append(self.during("wiped", lambda: time.sleep(3), self.kb.upkeep.repair))
        return found


def incidents(settings: Settings, milvus: MilvusServer, beside: int) -> list[Incident]:
    """Have all incidents on the empty, migrated database of `settings`."""
    encoder = HashEncoder(0, WIDTH)
    with KnowledgeBase.open(replace(settings, milvus=MilvusAddress(uri=milvus.uri))) as kb:
        fill_base(kb, FACTS)
        keyset = kb.keysets.create(encoder.checkpoint, "milvus:incidents")
        store_beside(kb, keyset.keyset_id, beside, seed=0)
        kb.keysets.rekey(encoder)
        answers: dict[str, str | None] = {f"Question {n}?": f"value {n}" for n in range(FACTS)}
        return Incidents(kb, milvus, encoder, answers).all()


def run(settings: Settings, *, milvus: Path, beside: int = 1000) -> Figures:
    """Kill a Milvus server with its data in a folder, put it back and wipe it, while facts are asked."""
    with milvus_server(milvus) as server:
        found = incidents(settings, server, beside)
    wrong, fsck_ok = sum(one.wrong for one in found), all(one.fsck_ok for one in found)
    return {"incidents": [asdict(one) for one in found], "wrong": wrong, "fsck_ok": fsck_ok}


if __name__ == "__main__":
    run_scenario(run)
