"""The child, a process that does steps and is killed, and the nursery, the process that children are forked from.

The nursery has imported everything and holds neither threads nor connections, so that a child starts in milliseconds
and a fork is safe. It reads one JSON order per line and writes one answer per line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import DatabaseUnavailable, Invalid, KeysetMismatch, NoActiveKeyset, NotFound
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.jobs.kinds import Gate
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.synthetic import ENCODERS
from colmlm.lab.faults import sources
from colmlm.lab.faults.killpoints import CLEARING, END, REWRITING, Trap
from colmlm.lab.faults.migration import migrate
from colmlm.lab.faults.sources import back_up, restore
from colmlm.lab.faults.target import CORPUS, WHO, CrashTarget
from colmlm.lab.faults.world import WorkloadStep

INDEX_SPECS = (None, "IVF4,Flat")  # the second keyset's index has to be trained
SAMPLE = 50  # facts that are keyed truly where keys are predicted: more than keys have dimensions
STOPPED, FAILED = 3, 4  # exit codes: the database went away; something else went wrong

Line = Callable[..., object]


def run_nursery() -> None:
    """Carry out orders from stdin: start a child and answer its pid, or await one and answer its exit code."""
    database.head_revision()  # imported and read once, for all children
    importlib.import_module("alembic.command")
    for line in sys.stdin:
        order = json.loads(line)
        answer = _start(order["start"]) if "start" in order else _wait(order["wait"], order["seconds"])
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _start(order: dict[str, Any]) -> int:
    if (pid := os.fork()) != 0:
        return pid
    os.close(sys.stdin.fileno())
    journal = os.open(order["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    code = FAILED
    try:
        code = _live(order, lambda **fields: os.write(journal, f"{json.dumps(fields)}\n".encode()))
    finally:  # a child must not run any of the nursery's own code
        os._exit(code)


def _wait(pid: int, seconds: float) -> int:
    """Give the child's exit code, or minus the signal that ended it. After `seconds` the child is aborted."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGABRT)
            deadline += seconds
        time.sleep(0.002)


def _live(order: dict[str, Any], line: Line) -> int:
    try:
        if order["prelude"]:
            module, _, name = order["prelude"].partition(":")
            getattr(importlib.import_module(module), name)()
        settings = Settings(home=Path(order["home"]), database_url=order["url"], actor=WHO["actor"])
        with KnowledgeBase.open(settings) as opened:
            _work(opened, order, line)
    except (DBAPIError, psycopg.OperationalError, DatabaseUnavailable) as error:
        line(stopped=str(error))
        return STOPPED
    except Exception as error:  # noqa: BLE001 # whatever it is, it goes into the journal for the judge
        line(failed=f"{type(error).__name__}: {error}")
        return FAILED
    return 0


def _work(opened: KnowledgeBase, order: dict[str, Any], line: Line) -> None:
    """Do the steps and write to the journal before and after each one.

    The trap kills the process on the way or at the end.
    """
    trap = Trap(order["point"], order["nth"], lambda point: line(killed=point))
    trap.install()
    target = CrashTarget(**order["target"]) if order["target"] else None
    worker = StepWorker(opened, order["fact_ids"], line, trap, target)
    for number, fields in enumerate(order["steps"]):
        step = WorkloadStep.from_json(fields)
        trap.armed = trap.armed or number == order["at"]
        line(begin=number)
        line(done=number, fact_ids=worker.do(step))
    if order["point"]:
        trap.kill(END)


class StepWorker:
    """Does steps by the verbs of a knowledge base."""

    def __init__(
        self,
        opened: KnowledgeBase,
        fact_ids: dict[str, int],
        line: Line,
        trap: Trap,
        target: CrashTarget | None = None,
    ) -> None:
        """Take `target` as the second database, for the steps that need one."""
        self.kb, self.fact_ids, self.line, self.trap, self.second = opened, fact_ids, line, trap, target

    def do(self, step: WorkloadStep) -> list[int]:
        """Do a step and give the ids of the facts that it named or made."""
        getattr(self, f"_{step.do}")(step)
        return [self.fact_ids[q] for q in step.questions]

    def _insert(self, step: WorkloadStep) -> None:
        (question,) = step.questions
        (self.fact_ids[question],) = self.kb.facts.add(question, step.value, anyway=True, **WHO).fact_ids

    def _update(self, step: WorkloadStep) -> None:
        self.kb.facts.edit(self._ids(step)[0], step.value, anyway=True, **WHO)

    def _delete(self, step: WorkloadStep) -> None:
        self.kb.facts.delete(self._ids(step), abstain=step.abstain, **WHO)

    def _restore(self, step: WorkloadStep) -> None:
        self.kb.facts.restore(self._ids(step), **WHO)

    def _forget(self, step: WorkloadStep) -> None:
        forgetting = Forgetting(self.kb)
        selector = Selector(fact_ids=tuple(self._ids(step)))
        plan = forgetting.plan(selector, policy="abstain" if step.abstain else "successor", **WHO)
        forgetting.apply(plan.run_id, **WHO)

    def _erase(self, step: WorkloadStep) -> None:
        Erasure(self.kb).erase(self._ids(step), **WHO)

    def _purge(self, step: WorkloadStep) -> None:
        """Erase facts and purge the files, and write the level that was reached to the journal."""
        report = Erasure(self.kb).erase(self._ids(step), now=True, on_step=self._hear_purge, **WHO)
        self.trap.during = ""
        self.line(purged={"level": report.level, "left": [level.left for level in report.levels]})

    def _hear_purge(self, told: str) -> None:
        parts = {"Rewriting": REWRITING, "Clearing": CLEARING}
        self.trap.during = parts.get(told.split()[0], self.trap.during)

    def _say(self, step: WorkloadStep) -> None:
        """Store an output that splices a fact, in any state, and say its value once more in upper case."""
        (fact_id,) = self._ids(step)
        fact = self.kb.facts.show(fact_id)
        output = f"It is {fact.value}, {fact.value.upper()}."
        version = self.kb.outputs.trace_fact(fact_id).versions[-1].version
        splice = Splice(6, 6 + len(fact.value), "hit", fact_id, version, 0.9, b"\0" * 8)
        checkpoint = ENCODERS[step.encoder].checkpoint.checkpoint_id
        # If the other child corrects the fact at that moment, the splice is refused, which is right.
        with suppress(Invalid):
            made = NewOutput(f"{fact.value}?", output, checkpoint, "auto", self.kb.log.head_seq(), (splice,))
            self.kb.outputs.record(made)

    def _propose(self, step: WorkloadStep) -> None:
        """Plan to forget a fact by its value and leave the plan. The other child may erase the fact meanwhile."""
        value = self.kb.facts.show(self._ids(step)[0]).value
        with suppress(NotFound, NoActiveKeyset):
            Forgetting(self.kb).plan(Selector(text=value), actor=WHO["actor"], reason=f"of {value}")

    def _ask_for_work(self, step: WorkloadStep) -> None:
        """Queue a job whose reason quotes a fact."""
        value = self.kb.facts.show(self._ids(step)[0]).value
        Jobs(self.kb).submit(Gate(keyset_id=1, reason=f"for {value}"), actor=WHO["actor"])

    def _ids(self, step: WorkloadStep) -> list[int]:
        return [self.fact_ids[q] for q in step.questions]

    def _ingest(self, step: WorkloadStep) -> None:
        parsed = [Parsed(text.document(external_id)) for external_id, text in step.documents]
        self.kb.corpora.ingest(
            parsed, CORPUS, on_document=lambda _: self.trap.pass_point("while documents are read"), **WHO
        )
        for fact in self.kb.facts.find(
            corpus=CORPUS, after=max(self.fact_ids.values(), default=0), limit=100
        ):
            self.fact_ids[str(fact.question)] = fact.fact_id

    def _rekey(self, step: WorkloadStep) -> None:
        encoder = ENCODERS[step.encoder]
        self.kb.keysets.create(encoder.checkpoint, INDEX_SPECS[step.encoder])
        self.kb.keysets.rekey(encoder, batch=8)

    def _adapt(self, step: WorkloadStep) -> None:
        """Key a sample by the encoder, and predict its other keys from those of the active keyset."""
        encoder = ENCODERS[step.encoder]
        self.kb.keysets.create(encoder.checkpoint, INDEX_SPECS[step.encoder])
        self.kb.keysets.adapt(
            encoder,
            batch=8,
            on_facts=lambda *_: self.trap.pass_point("while keys are predicted"),
            sample=SAMPLE,
            method="procrustes",
        )

    def _make_true(self, step: WorkloadStep) -> None:
        self.kb.keysets.rekey(ENCODERS[step.encoder], batch=8, replace=True)

    def _activate(self, step: WorkloadStep) -> None:
        self.kb.keysets.activate(self._keyset(step), force=True)  # no gate was measured here

    def _retire(self, step: WorkloadStep) -> None:
        self.kb.keysets.retire(self._keyset(step))

    def _keyset(self, step: WorkloadStep) -> int:
        wanted = ENCODERS[step.encoder].checkpoint.checkpoint_id
        (found,) = [k.keyset_id for k in self.kb.keysets.in_use() if k.checkpoint_id == wanted]
        return found

    def _snapshot(self, step: WorkloadStep) -> None:
        self.kb.lookups.snapshot()

    def _catch_up(self, step: WorkloadStep) -> None:
        self.kb.lookups.catch_up()

    def _back_up(self, step: WorkloadStep) -> None:
        back_up(self.kb, self._target, lambda _: self.trap.pass_point("while a backup is written"))

    def _restore_backup(self, step: WorkloadStep) -> None:
        restore(self.kb, self._target, lambda _: self.trap.pass_point("while rows are copied in"))

    def _migrate(self, step: WorkloadStep) -> None:
        migrate(self._target)

    def _sync(self, step: WorkloadStep) -> None:
        sources.sync(self._target, lambda: self.trap.pass_point("while documents are read"))

    def _import_release(self, step: WorkloadStep) -> None:
        sources.store_small_pieces()
        sources.import_release(self._target, lambda *_: self.trap.pass_point("while a release is stored"))

    @property
    def _target(self) -> CrashTarget:
        assert self.second is not None, "whoever plans such a step gives a target"
        return self.second

    def _lookup(self, step: WorkloadStep) -> None:
        """Look questions up, and write every unexpected result to the journal."""
        try:
            answers = ask(self.kb, step.encoder, step.questions)
        except KeysetMismatch:  # the other child has activated its keyset meanwhile
            self.line(mismatched_keyset=step.encoder)
            return
        for question, answer, expected in zip(step.questions, answers, step.expected, strict=True):
            if answer != expected:
                self.line(wrong=question, answer=answer, expected=expected)


def ask(opened: KnowledgeBase, encoder: int, questions: tuple[str, ...]) -> list[str | None]:
    """Look questions up and give the value for each, or None for no match."""
    who = ENCODERS[encoder]
    found = opened.lookups.find(
        who.encode_questions(questions), checkpoint_id=who.checkpoint.checkpoint_id, threshold=0.95
    )
    return [lookup.hits[0].value if lookup.hits else None for lookup in found]


if __name__ == "__main__":
    run_nursery()
