"""Judges purges: an erasure that claims a level is searched for in the files, and settings are as they were before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sqlalchemy import Engine, text

from colmlm.kb.erasure.residue import LEAST, Matcher
from colmlm.kb.erasure.verbs import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.crashlab.journal import StepJournal
from colmlm.lab.crashlab.judge import Violation
from colmlm.lab.crashlab.world import World

HEAP, LOG = 3, 4  # the levels at which nothing is left in the files of tables, and in the write-ahead log

_SETTINGS = text("""
SELECT name, setting FROM pg_file_settings
WHERE sourcefile LIKE '%auto.conf' AND starts_with(name, 'wal') ORDER BY name
""")
# No file is of a transaction that still runs: the judge has waited until nobody is connected.
_ORPHANS = text("""
SELECT folder || '/' || name
FROM (SELECT 'base/' || oid FROM pg_database WHERE datname = current_database()) AS d (folder),
     pg_ls_dir(folder) AS name
WHERE name ~ '^[0-9]+([._]|$)' AND pg_filenode_relation(0, CAST(substring(name FROM '^[0-9]+') AS oid)) IS NULL
""")
_DATABASE = text("SELECT CAST(oid AS text) FROM pg_database WHERE datname = current_database()")


def judge_purges(
    opened: KnowledgeBase, before: World, now: World, journals: Sequence[StepJournal], *, is_alone: bool
) -> Iterator[Violation]:
    """Find fault unless each purge reached what it claims, and the next one completes those that did not end.

    A purge that `is_alone`, and comes to its end, must reach the last level, unless a crash of the server before had
    left files that no table has. These are removed, as an operator does.
    """
    began = [journal for journal in journals if _has_purged(journal)]
    levels = [journal.purged["level"] if journal.purged else 0 for journal in began]
    for journal, level in zip(began, levels, strict=True):
        if level >= HEAP:
            yield from _search(opened, now, _erased_by(before, journal), level)
    if levels and min(levels) < LOG:
        orphans = _remove_orphans(opened.engine)
        for purged in (journal.purged for journal in began if journal.purged and is_alone and not orphans):
            yield Violation("mismatched", f"a purge alone reached level {purged['level']}: {purged['left']}")
        yield from _complete(opened, now)
    if began:
        yield from _settings(opened.engine)


def _has_purged(journal: StepJournal) -> bool:
    """Tell whether a child began a purge, by its journal."""
    return any(step.do == "purge" for step in (*journal.acknowledged, journal.in_doubt) if step)


def _erased_by(world: World, journal: StepJournal) -> frozenset[str]:
    """Give the facts that were erased when the child's purge began, or by it."""
    for step in (*journal.acknowledged, journal.in_doubt):
        if step:
            world = world.after(step)
            if step.do == "purge":
                break
    return world.erased


def _complete(opened: KnowledgeBase, world: World) -> Iterator[Violation]:
    """Purge once more, as the next one does after a kill, and search for all that was ever erased."""
    report = Erasure(opened).finish(now=True)
    if report.level < LOG:
        left = [level.left for level in report.levels]
        yield Violation("mismatched", f"the purge after one that did not end reached {report.level}: {left}")
    yield from _search(opened, world, world.erased, report.level)


def _search(opened: KnowledgeBase, world: World, erased: Iterable[str], level: int) -> Iterator[Violation]:
    """Find files that hold a value of an erased fact, of those that a purge of this level has cleared."""
    facts = [world.facts[question] for question in sorted(erased)]
    values = [value for fact in facts for value in (fact.value, *fact.past) if len(value.encode()) >= LEAST]
    matcher = Matcher([value.encode() for value in values])
    for file in _files(opened.engine, level):
        try:
            found, _ = matcher.find_in_file(file)
        except FileNotFoundError:  # a segment or a temporary file that was removed meanwhile
            continue
        for number in sorted(found):
            place = f"{file.parent.name}/{file.name}"
            yield Violation("residue", f"level {level} was claimed, and {place} says {values[number]!r}")


def _files(engine: Engine, level: int) -> list[Path]:
    """List the server's files for this database, once all is written, and from level 4 on those of the log."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
        data = Path(str(connection.scalar(text("SHOW data_directory"))))
        folders = [data / "global", data / "base" / str(connection.scalar(_DATABASE))]
    folders += [data / "pg_wal"] if level >= LOG else []
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def _remove_orphans(engine: Engine) -> list[str]:
    """Remove the files of this database that no table has, and give their names."""
    with engine.connect() as connection:
        data = Path(str(connection.scalar(text("SHOW data_directory"))))
        orphans = list(connection.scalars(_ORPHANS))
    for name in orphans:
        (data / name).unlink()
    return orphans


def _settings(engine: Engine) -> Iterator[Violation]:
    """Find settings of the log that a purge has left behind, and reset them, so that they count once."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for name, value in connection.execute(_SETTINGS).all():
            yield Violation("mismatched", f"{name} = {value} is left from a purge")
            connection.execute(text(f"ALTER SYSTEM RESET {name}"))
        connection.execute(text("SELECT pg_reload_conf()"))
