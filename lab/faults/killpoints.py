"""The points at which a child kills itself: hooks on functions that it calls, for which the product has no code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from colmlm.kb.lookup import index as key_index
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.replica import Replica
from colmlm.lab.bench.synthetic import HashEncoder

# The points, each with how often one step may pass it, from which the pass that kills is drawn.
_STATEMENTS = [
    ("before a statement", 8),
    ("after a statement", 8),
    ("before a commit", 1),
    ("after a commit", 1),
]
_FILES = [
    ("index half written", 1),
    ("before an fsync", 6),
    ("after an fsync", 6),
    ("before a rename", 2),
    ("after a rename", 2),
    ("text half written", 2),
    ("before an unlink", 3),
    ("after an unlink", 3),
]
_WRITING = [
    ("before an fsync", 2),
    ("after an fsync", 2),
    ("before a rename", 1),
    ("after a rename", 1),
    ("before an unlink", 1),
    ("after an unlink", 1),
]
_FOLLOWING = [
    ("before keys are added", 1),
    ("after keys are added", 1),
    ("before keys are removed", 2),
    ("after keys are removed", 2),
    ("before facts are renewed", 1),
]
_ENCODING = [("before keys are made", 3), ("after keys are made", 3), ("after a commit", 4)]
_REPLACING = [("before keys are made", 30), ("after keys are made", 30), ("after a commit", 30)]
_COMMITS = _STATEMENTS[2:]
# An erasure of some 50 statements, the removal of keys, the rewriting of tables, and the clearing of the log.
REWRITING, CLEARING = " while tables are rewritten", " while the log is cleared"
_PURGING = [
    ("before a statement", 75),
    ("after a statement", 75),
    *_COMMITS,
    *[(f"{when} a statement{REWRITING}", 150) for when in ("before", "after")],
    *[(f"{when} a statement{CLEARING}", 25) for when in ("before", "after")],
]
_MANY_STATEMENTS = [("before a statement", 40), ("after a statement", 40)]
# A new schema takes 16, and then passes its end and is done; the migrations of a later release take 23.
_OF_A_MIGRATION = [("before a statement", 25), ("after a statement", 25), *_STATEMENTS]
# What a child was doing when the database was killed, by its step.
PHASES = {
    "insert": "insert",
    "update": "update",
    "delete": "delete",
    "restore": "restore of facts",
    "ingest": "ingest",
    "rekey": "rekey",
    "adapt": "the prediction of keys",
    "make_true": "the replacement of predicted keys",
    "activate": "a keyset switch",
    "retire": "retirement of a keyset",
    "forget": "forget",
    "erase": "erase",
    "snapshot": "a snapshot",
    "catch_up": "catch-up",
    "lookup": "lookup",
    "say": "storage of an output",
    "propose": "planning",
    "ask_for_work": "queueing of a job",
    "back_up": "a backup",
    "restore_backup": "a restore of a backup",
    "migrate": "a migration",
    "purge": "a purge",
    "sync": "a sync of a folder",
    "import_release": "an import of a release",
}
OF_A_SECOND_DATABASE = ("back_up", "restore_backup", "migrate", "sync", "import_release")
STRUCK = (*OF_A_SECOND_DATABASE, "purge")  # a plan with such a step is struck in it
_COUNTED_APART = (*STRUCK, "rekey", "activate")
OUTSIDE, END = "from outside", "the end"


def points_of(kind: str) -> list[tuple[str, int]]:
    """Give the points that a step of this kind passes."""
    match kind:
        case "snapshot":
            return _FILES
        case "catch_up" | "lookup":
            return [*_FOLLOWING, *_STATEMENTS[:2]]
        case "rekey":
            return [*_STATEMENTS, *_ENCODING, *_FILES]
        case "adapt":
            return [*_MANY_STATEMENTS, *_COMMITS, *_ENCODING, ("while keys are predicted", 10), *_FILES]
        case "make_true":
            return [*_MANY_STATEMENTS, *_COMMITS, *_REPLACING, *_FILES]
        case "ingest":
            return [*_STATEMENTS, ("before a statement", 20), ("while documents are read", 2)]
        case "forget":
            return [*_STATEMENTS, ("before a statement", 30), ("after a commit", 2)]
        case "erase":
            return [*_STATEMENTS, ("before a statement", 25), ("after a commit", 3), *_FILES]
        case "back_up":
            return [("before a statement", 10), ("while a backup is written", 25), *_WRITING]
        case "restore_backup":
            return [*_MANY_STATEMENTS, *_COMMITS, ("while rows are copied in", 25)]
        case "migrate":
            return _OF_A_MIGRATION
        case "purge":
            return _PURGING
        case "sync":
            return [*_MANY_STATEMENTS, ("after a commit", 8), ("while documents are read", 40)]
        case "import_release":
            return [*_MANY_STATEMENTS, ("after a commit", 8), ("while a release is stored", 10)]
        case _:
            return _STATEMENTS


def name_of(point: str, do: str | None) -> str:
    """Give the name under which a kill of a child in this kind of step, or after its last step, is counted."""
    return f"during {PHASES[do]}: {point}" if do in _COUNTED_APART else point


def name_of_database(do: str | None) -> str:
    """Give the name under which a kill of the database during this kind of step, or none, is counted."""
    return f"database killed {f'during {PHASES[do]}' if do else 'between steps'}"


@dataclass(slots=True)
class Trap:
    """Kills this process at the `nth` pass of `point` once it is armed, and calls `tell` just before.

    `during` names the part of a step in which this process is: its points count apart.
    """

    point: str
    nth: int
    tell: Callable[[str], object]
    armed: bool = False
    during: str = ""

    def pass_point(self, point: str) -> None:
        if self.is_due(point):
            self.kill(point)

    def is_due(self, point: str) -> bool:
        if not self.armed or point != self.point:
            return False
        self.nth -= 1
        return self.nth == 0

    def kill(self, point: str) -> None:
        self.tell(point)
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Hook the database, files and index of this process, so that it can be killed at their points."""
        for owner, name, what in (
            (psycopg.Cursor, "execute", "a statement"),  # below SQLAlchemy, which some statements bypass
            (psycopg.Connection, "commit", "a commit"),
            (os, "fsync", "an fsync"),
            (Path, "replace", "a rename"),
            (Path, "unlink", "an unlink"),
            (KeyIndex, "add", "keys are added"),
            (KeyIndex, "remove", "keys are removed"),
            (Replica, "_renew", "facts are renewed"),
            (HashEncoder, "encode_documents", "keys are made"),
            (HashEncoder, "encode_questions", "keys are made"),
        ):
            self._around(owner, name, what)
        self._tear_texts()
        self._tear_indexes()

    def _around(self, owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def call_trapped(*arguments: Any, **options: Any) -> Any:
            self.pass_point(f"before {what}{self.during}")
            result = original(*arguments, **options)
            self.pass_point(f"after {what}{self.during}")
            return result

        setattr(owner, name, call_trapped)

    def _tear_texts(self) -> None:
        original = Path.write_text

        def call_trapped(file: Path, text: str, *arguments: Any, **options: Any) -> int:
            due = self.is_due("text half written")
            written = original(file, text[: len(text) // 2] if due else text, *arguments, **options)
            if due:
                self.kill("text half written")
            return written

        Path.write_text = call_trapped  # type: ignore[method-assign,assignment]

    def _tear_indexes(self) -> None:
        faiss: Any = key_index.faiss
        original = faiss.write_index

        def call_trapped(index: Any, file: str) -> None:
            original(index, file)
            if self.is_due("index half written"):
                os.truncate(file, Path(file).stat().st_size // 2)
                self.kill("index half written")

        faiss.write_index = call_trapped
