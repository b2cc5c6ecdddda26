"""Syncs a folder and imports a release into a second database, as a child does, and judges the outcome.

Work of both kinds is many transactions. A kill may leave any number of them done; the same work once more must then
give what a run that nobody struck gives, and a third run must change nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import exists, select, text
from sqlalchemy.exc import DBAPIError

from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.composition.syncing import Syncing, places_of
from colmlm.kb.backup.restore import restore_backup
from colmlm.kb.backup.write import Heard, archive_tables, verify_backup, write_backup
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.errors import KBError
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.log.signing import key_names, signing_key
from colmlm.kb.progress import Telling
from colmlm.kb.releases import releases
from colmlm.kb.releases.releases import ReleaseProgress
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import SecretRow
from colmlm.lab.bench.synthetic import (
    DIM,
    ENCODERS,
    FACTS_PER_DOCUMENT,
    fact_text,
    make_release,
    synthetic_keys,
)
from colmlm.lab.faults.judge import Violation, fsck_faults, judge_as
from colmlm.lab.faults.plan import Planner
from colmlm.lab.faults.target import CORPUS, WHO, CrashTarget, is_quiet
from colmlm.lab.faults.world import StepJournal, Text, WorkloadStep, World

ENTRIES, PIECE = 200, 40  # of a release, and of what a struck import stores in one transaction

_FILED = re.compile(r"<([^>]+)> the register replies: (value \S+)\.(?= |$)")
_STORED = text("""
SELECT d.external_id, f.ordinal, v.value, count(k.id) AS keys
FROM fact f JOIN document d ON d.id = f.document_id JOIN fact_version v ON v.fact_id = f.id
LEFT JOIN fact_key k ON k.fact_id = f.id
GROUP BY f.id, d.external_id, f.ordinal, v.value
""")


class RegisterMarks(NamedTuple):
    """A document with its facts, in the form in which annotators give it."""

    document: AnnotatedDocument
    rejected: tuple[()] = ()


class RegisterAnnotator:
    """An annotator without a model, which marks what each "register replies" line of a document says."""

    def __init__(self, on_document: Callable[[], object]) -> None:
        self.on_document = on_document

    def annotate(self, documents: Iterable[AnnotatedDocument]) -> Iterator[RegisterMarks]:
        for document in documents:
            self.on_document()
            spans = (
                FactSpan(*found.span(2), found[2], found[1], found[2])
                for found in _FILED.finditer(document.text)
            )
            yield RegisterMarks(replace(document, facts=tuple(spans)))


class RegisterAdding(Adding):
    """Adds documents whose facts the first encoder keys, by their questions."""

    def key(self, *, changed: bool, **how: Any) -> KeysetRecord | None:
        """Create the missing keys, also those of a sync that was killed."""
        keysets = self.runtime.kb.keysets
        keysets.create(ENCODERS[0].checkpoint, None)
        return keysets.rekey(ENCODERS[0], batch=8)

    def recalibrate_answers(self, kb: KnowledgeBase, *, changed: bool, **who: Any) -> str | None:
        """Calibrate nothing, since nothing here asks."""
        return None


def sync(target: CrashTarget, on_document: Callable[[], object] = lambda: None) -> None:
    with Runtime(target.settings, telling=Telling()) as runtime:
        found = find_files([target.synced_folder.resolve()])
        adding = RegisterAdding(runtime, CORPUS, found, telling=runtime.telling)
        syncing = Syncing(runtime.kb, CORPUS, places_of(target.synced_folder), found, adding, runtime.telling)
        syncing.run(syncing.plan(), lambda _: RegisterAnnotator(on_document), **WHO)


def import_release(target: CrashTarget, on_piece: Callable[[int, int], object] = lambda *_: None) -> None:
    def hear(done: int, total: int) -> None:
        on_piece(done, total)

    with KnowledgeBase.open(target.settings) as importing:
        progress = ReleaseProgress(facts=hear, keys=hear)
        report = importing.releases.take(target.release, CORPUS, progress=progress, **WHO)
        if report.keyset_id is not None:
            importing.keysets.finish(report.keyset_id)


def store_small_pieces() -> None:
    """Have this process store a release in several transactions, small as it is."""
    for size in ("PIECE", "BLOCK"):
        setattr(releases, size, PIECE)


class CrashSource:
    """A source that a child takes into a second database in many transactions."""

    target: CrashTarget

    def take(self) -> None:
        """Take the source into the second database, or what is still missing there."""
        raise NotImplementedError

    def differences(self, taken: KnowledgeBase) -> Iterator[Violation]:
        """List how the database differs from one that took the whole source in."""
        raise NotImplementedError

    def judge(
        self, opened: KnowledgeBase, before: World, now: World, journal: StepJournal
    ) -> Iterator[Violation]:
        """Find fault unless the work is done, or can be done to its end, and changes nothing when it is repeated."""
        try:
            with KnowledgeBase.open(self.target.settings) as taken:
                if not is_quiet(taken.engine):
                    yield Violation("errors", "the database still works for a killed child")
                yield from fsck_faults(taken)
                if not journal.acknowledged:
                    self.take()
                yield from self.differences(taken)
                head = taken.log.head_seq()
                self.take()
                if taken.log.head_seq() != head:
                    yield Violation("mismatched", "a repetition of what was done changed something")
        except (KBError, DBAPIError) as error:
            yield Violation("errors", f"{type(self).__name__}: {type(error).__name__}: {error}")


class FollowedFolder(CrashSource):
    """A folder that a child had to sync. `name` draws its files, and whether it was synced before they changed."""

    def __init__(self, target: CrashTarget, name: str) -> None:
        self.target = target
        random = Random(name)
        before, after = Planner(random, f"folder{name}").folder()
        self.target.synced_folder.mkdir()
        self.world = World()
        if random.random() < 0.6:
            self._write(before)
            sync(target)
            self.world = _world_after_ingest(self.world, before)
            for gone in before.keys() - after.keys():
                (self.target.synced_folder / f"{gone}.txt").unlink()
        self._write(after)
        self.world = _world_after_sync(self.world, after)

    def _write(self, texts: dict[str, Text]) -> None:
        for name, said in texts.items():
            (self.target.synced_folder / f"{name}.txt").write_text(said.document(f"{name}.txt").text)

    def take(self) -> None:
        sync(self.target)

    def differences(self, taken: KnowledgeBase) -> Iterator[Violation]:
        yield from judge_as(taken, self.world)


def _world_after_ingest(world: World, texts: dict[str, Text]) -> World:
    return world.apply(WorkloadStep("ingest", documents=tuple((f"{n}.txt", t) for n, t in texts.items())))


def _world_after_sync(world: World, texts: dict[str, Text]) -> World:
    """Give the world once the folder with these texts is synced, and keyed."""
    gone = {name: said for name, said in world.documents.items() if name.removesuffix(".txt") not in texts}
    dead = tuple(question for said in gone.values() for question, _ in said.spans)
    world = _world_after_ingest(world, texts).apply(WorkloadStep("delete", dead))
    kept = {name: said for name, said in world.documents.items() if name not in gone}
    return replace(world, documents=kept).apply(WorkloadStep("rekey")).apply(WorkloadStep("activate"))


class ImportedRelease(CrashSource):
    """A release that a child had to import. `name` draws its keys."""

    def __init__(self, target: CrashTarget, name: str) -> None:
        self.target = target
        make_release(target.release, synthetic_keys(ENTRIES, DIM, seed=int(name)), spec="Flat")

    def take(self) -> None:
        import_release(self.target)

    def differences(self, taken: KnowledgeBase) -> Iterator[Violation]:
        """Find entries that are not there once, each with one key."""
        expected = Counter(
            (f"s{number // FACTS_PER_DOCUMENT:07d}", number % FACTS_PER_DOCUMENT, fact_text(number).value, 1)
            for number in range(ENTRIES)
        )
        with taken.engine.connect() as connection:
            stored = Counter(tuple(row) for row in connection.execute(_STORED))
        for entry in expected - stored:
            yield Violation("lost", f"entry {entry} of a release is not there, or not as it should be")
        for entry in stored - expected:
            yield Violation("mismatched", f"entry {entry} of a release is there, and should not be so")
        yield from fsck_faults(taken)


# Backs a base up and restores it into a second database, as a child does, and judges the copy.


def back_up(opened: KnowledgeBase, target: CrashTarget, on_bytes: Heard = lambda _: None) -> None:
    key = signing_key(opened.settings.home)
    write_backup(opened, target.backup, key, replace=True, key_file=target.sealing_keys, on_bytes=on_bytes)


def restore(opened: KnowledgeBase, target: CrashTarget, on_bytes: Heard = lambda _: None) -> None:
    """Restore the backup with the present log of the base, which holds what was erased since."""
    with target.log.open("w", encoding="utf-8") as file:
        file.writelines(opened.log.export())
    with KnowledgeBase.open(target.settings) as copy:
        restore_backup(
            copy,
            target.backup,
            actor=target.settings.actor,
            log_file=target.log,
            keys=(key_names(signing_key(opened.settings.home).public_key()).fingerprint,),
            key_file=target.sealing_keys,
            on_bytes=on_bytes,
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of a base that a child had to make in `target`."""

    target: CrashTarget

    def judge(
        self, opened: KnowledgeBase, before: World, now: World, journal: StepJournal
    ) -> Iterator[Violation]:
        """Find fault unless the backup is complete, and the copy is complete, or empty and can be restored again."""
        done = [step.do for step in journal.acknowledged]
        try:
            if "back_up" not in done:
                yield from self._judge_backup(opened)
                return
            for step in journal.acknowledged[: done.index("back_up")]:
                before = before.apply(step)
            yield from self._judge_copy(opened, _as_restored(before, now), "restore_backup" in done)
        except (KBError, DBAPIError) as error:
            yield Violation("errors", f"a backup and its restore: {type(error).__name__}: {error}")

    def _judge_backup(self, opened: KnowledgeBase) -> Iterator[Violation]:
        """Find fault if a file of the backup's name is incomplete, or the next backup leaves partial files behind."""
        if self.target.backup.exists():
            verify_backup(self.target.backup)
        back_up(opened, self.target)
        for left in sorted(set(self.target.path.iterdir()) - {self.target.backup, self.target.sealing_keys}):
            yield Violation("residue", f"a killed writer of a backup left {left.name}")

    def _judge_copy(self, opened: KnowledgeBase, world: World, is_acknowledged: bool) -> Iterator[Violation]:
        with KnowledgeBase.open(self.target.settings) as copy:
            if not is_quiet(copy.engine):
                yield Violation("errors", "the database still works for a killed restore")
            if _is_empty(copy):
                if is_acknowledged:
                    yield Violation("lost", "a restore of a backup was acknowledged, and its base is empty")
                restore(opened, self.target)
            for finding in judge_as(copy, world):
                yield replace(finding, what=f"restored from a backup: {finding.what}")


def _as_restored(backed_up: World, now: World) -> World:
    """Give the world at the backup, without what was erased since."""
    facts = {q: now.facts[q] if now.facts[q].erased else fact for q, fact in backed_up.facts.items()}
    return replace(backed_up, facts=facts)


def _is_empty(copy: KnowledgeBase) -> bool:
    """Tell whether no table but that of the secret, which every database has, holds a row."""
    with copy.engine.connect() as connection:
        return not any(
            connection.scalar(select(exists().select_from(table)))
            for table in archive_tables()
            if table.name != SecretRow.__tablename__
        )
