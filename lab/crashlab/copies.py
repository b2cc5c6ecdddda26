"""Backs a base up and restores it into a second database, as a child does, and judges the copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlalchemy import exists, select
from sqlalchemy.exc import DBAPIError

from colmlm.kb.backup.restore import restore_backup
from colmlm.kb.backup.write import Heard, tables, verify_backup, write_backup
from colmlm.kb.errors import KBError
from colmlm.kb.log.signing import names_of, signing_key
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import SecretRow
from colmlm.lab.crashlab.journal import StepJournal
from colmlm.lab.crashlab.judge import Violation, judge_as
from colmlm.lab.crashlab.server import is_quiet
from colmlm.lab.crashlab.target import CrashTarget
from colmlm.lab.crashlab.world import World


def back_up(opened: KnowledgeBase, target: CrashTarget, on_bytes: Heard = lambda _: None) -> None:
    key = signing_key(opened.settings.home)
    write_backup(opened, target.backup, key, replace=True, on_bytes=on_bytes)


def restore(opened: KnowledgeBase, target: CrashTarget, on_bytes: Heard = lambda _: None) -> None:
    """Restores the backup with the present log of the base, which holds what was erased since."""
    with target.log.open("w", encoding="utf-8") as file:
        file.writelines(opened.log.export())
    with KnowledgeBase.open(target.settings) as copy:
        restore_backup(
            copy,
            target.backup,
            actor=target.settings.actor,
            log_file=target.log,
            keys=(names_of(signing_key(opened.settings.home).public_key()).fingerprint,),
            on_bytes=on_bytes,
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of a base that a child had to make in `target`."""

    target: CrashTarget

    def judge(
        self, opened: KnowledgeBase, before: World, now: World, journal: StepJournal
    ) -> Iterator[Violation]:
        """Finds fault unless the backup is complete, and the copy is complete, or empty and can be restored again."""
        done = [step.do for step in journal.acknowledged]
        try:
            if "back_up" not in done:
                yield from self._judge_backup(opened)
                return
            for step in journal.acknowledged[: done.index("back_up")]:
                before = before.after(step)
            yield from self._judge_copy(opened, _as_restored(before, now), "restore_backup" in done)
        except (KBError, DBAPIError) as error:
            yield Violation("errors", f"a backup and its restore: {type(error).__name__}: {error}")

    def _judge_backup(self, opened: KnowledgeBase) -> Iterator[Violation]:
        """Finds fault if a file of the backup's name is incomplete, or the next backup leaves partial files behind."""
        if self.target.backup.exists():
            verify_backup(self.target.backup)
        back_up(opened, self.target)
        for left in sorted(set(self.target.path.iterdir()) - {self.target.backup}):
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
    """Gives the world at the backup, without what was erased since."""
    facts = {q: now.facts[q] if now.facts[q].erased else fact for q, fact in backed_up.facts.items()}
    return replace(backed_up, facts=facts)


def _is_empty(copy: KnowledgeBase) -> bool:
    """Tells whether no table but that of the secret, which every database has, holds a row."""
    with copy.engine.connect() as connection:
        return not any(
            connection.scalar(select(exists().select_from(table)))
            for table in tables()
            if table.name != SecretRow.__tablename__
        )
