"""Syncs a corpus with a folder: adds new and changed files, and removes the documents of files that are gone.

The state of the last sync is stored with the corpus: the documents of a file before they are ingested, and its digest
last. After an interruption the next sync finds by the digests which files are left. An unchanged file is read for its
digest only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.adding import facts_ingested
from colmlm.cli.output import plain
from colmlm.kb.corpus.raw.files import FoundFiles, RawFile, opened_file
from colmlm.kb.errors import refusals
from colmlm.kb.facts.corpora import DocumentStanding, SyncedFile

if TYPE_CHECKING:
    from colmlm.cli.composition.adding import Adding, Load
    from colmlm.kb.corpus.format import Parsed, Refusal
    from colmlm.kb.facts.records import Edit, IngestReport
    from colmlm.kb.keys.records import KeysetRecord
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.progress import Telling
    from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Syncing:
    """One sync of a corpus with the files that were found in a folder. `places` are the paths of that folder.

    `adding` adds new and changed documents. With `move`, a corpus that follows another folder follows this one instead.
    """

    kb: KnowledgeBase
    corpus: str
    places: tuple[str, ...]
    found: FoundFiles
    adding: Adding
    telling: Telling
    allow_empty: bool = False
    move: bool = False

    def plan(self) -> SyncPlan:
        """Compare the digests of the files with those of the last sync, and give the plan.

        Raises `FolderOther` if the corpus follows another folder, and `FolderEmpty` if all known files are gone.
        """
        followed = self.kb.corpora.followed_paths(self.corpus)
        if followed and not set(followed) & set(self.places) and not self.move:
            raise refusals.folder_other(self.corpus, followed[0])
        known = self.kb.corpora.synced_files(self.corpus)
        present = {file.external_id for file in self.found.files}
        hidden = tuple(refusal.document for refusal in self.found.refusals)
        gone = [path for path in known if path not in present and not _is_below(path, hidden)]
        if known and len(gone) == len(known) and not self.allow_empty:
            raise refusals.folder_empty(self.corpus, len(known))
        digests = self.kb.corpora.key_digests(self._digests())
        again = self.adding.again
        unchanged = {
            path for path in present & known.keys() if known[path].digest == digests[path] and not again
        }
        return SyncPlan(
            known,
            tuple(sorted(present - known.keys())),
            tuple(sorted((present & known.keys()) - unchanged)),
            tuple(sorted(unchanged)),
            tuple(sorted(gone)),
            {path: digest for path, digest in digests.items() if path not in unchanged},
        )

    def preview_sync(self, plan: SyncPlan) -> SyncResult:
        """Read new and changed files, and count what a sync would do. Changes nothing."""
        adding, read = self._prepare_adding(plan)
        adding.count_work()
        files = list(_read(plan, read))
        return SyncResult(plan, adding, len(_gone_documents(plan, files)))

    def run(self, plan: SyncPlan, load: Load, **who: Unpack[OnRecord]) -> SyncResult:
        """Add new documents, remove those gone, then store the files' digests; `load` loads the annotator if needed."""
        self.kb.corpora.follow(self.corpus, self.places)
        adding, read = self._prepare_adding(plan)
        report = adding.ingest(load, **who)
        files = list(_read(plan, read))
        gone = _gone_documents(plan, files)
        removed = self.kb.corpora.remove(self.corpus, gone, **who) if gone else None
        keyset = adding.key(changed=report is not None, kb=self.kb)
        self.kb.corpora.keep_synced(self.corpus, files, plan.gone)
        kept = {name for path in plan.unchanged for name in plan.known[path].documents}
        self.kb.corpora.note_seen(self.corpus, kept)
        calibrated = adding.recalibrate_answers(self.kb, changed=report is not None, **who)
        return SyncResult(plan, adding, len(gone), report, removed, keyset, calibrated)

    def _digests(self) -> dict[str, str]:
        total = sum(file.size for file in self.found.files) // 1000
        digests, done = {}, 0
        with self.telling.progress("Comparing files (KB)") as advance:
            for file in self.found.files:
                how = f"{file.kind} {self.adding.encoding} {self.adding.fields}"
                digests[file.external_id] = f"{how} {_sha256(file)}"
                done += file.size
                advance(done // 1000, total)
        return digests

    def _prepare_adding(self, plan: SyncPlan) -> tuple[Adding, FilesRead]:
        read = FilesRead({path: [] for path in plan.to_read})
        files = [file for file in self.found.files if file.external_id in plan.to_read]
        kept = frozenset(name for path in plan.unchanged for name in plan.known[path].documents)
        found = FoundFiles(files, self.found.refusals, self.found.passed_over)

        def note() -> None:
            self.kb.corpora.begin_synced(self.corpus, read.to_note())

        adding = replace(self.adding, found=found, taken=kept, on_parsed=read.take, before_piece=note)
        return adding, read


def places_of(folder: Path) -> tuple[str, ...]:
    """Give the absolute and the resolved path of a folder as texts to be stored, once if they are equal.

    So a folder is recognised after a link to it was moved, and if a job and a command name it differently.
    """
    paths = (folder.absolute(), folder.resolve())
    return tuple(os.fsencode(path).decode("utf-8", "backslashreplace") for path in dict.fromkeys(paths))


def _read(plan: SyncPlan, read: FilesRead) -> Iterator[SyncedFile]:
    """Yield the state to store for each file that was read.

    A file with refusals keeps the documents that it had, and gets no digest, so that the next sync reads it again.
    """
    for path, names in read.documents.items():
        had = plan.known.get(path)
        if path not in read.refused:
            yield SyncedFile(path, plan.digests[path], tuple(names))
        elif had is not None or names:
            before = had.documents if had is not None else ()
            yield SyncedFile(path, None, tuple(dict.fromkeys((*before, *names))))


def _gone_documents(plan: SyncPlan, files: Collection[SyncedFile]) -> set[str]:
    """Give the ids of documents that a file had at the last sync and that no file has now."""
    had = {name for file in plan.known.values() for name in file.documents}
    now = {**plan.known, **{file.path: file for file in files}}
    return had - {name for path, file in now.items() if path not in plan.gone for name in file.documents}


def _is_below(path: str, places: Collection[str]) -> bool:
    """Tell whether a path is one of these places or below one. Such files exist, but cannot be read."""
    return any(place in (path, ".") or path.startswith(f"{place}/") for place in places)


def _sha256(file: RawFile) -> str:
    """Give the SHA-256 of a file's bytes; "unreadable" for a file that will be refused when it is read."""
    try:
        with opened_file(file.path, file.origin) as place, place.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return "unreadable"


# What a sync has to do, what it reads, and what it did.


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The work of a sync, as paths. `known` has the files of the last sync, `digests` the digests of those to read."""

    known: Mapping[str, SyncedFile]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    gone: tuple[str, ...]
    digests: Mapping[str, str]

    @property
    def to_read(self) -> frozenset[str]:
        return frozenset((*self.new, *self.changed))

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("new", "changed", "unchanged", "gone")}


@dataclass(slots=True)
class FilesRead:
    """The ids of the documents of each file that was read, and the files of which something was refused.

    `in_order` has pairs (path, document id) in the order of reading. `to_note` has given the first `noted` of them.
    """

    documents: dict[str, list[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    in_order: list[tuple[str, str]] = field(default_factory=list)
    noted: int = 0

    def take(self, path: str, parsed: Parsed) -> None:
        if parsed.document is not None:
            self.documents[path].append(parsed.document.external_id)
            self.in_order.append((path, parsed.document.external_id))
        if parsed.refusals:
            self.refused.add(path)

    def to_note(self) -> dict[str, list[str]]:
        """Give the ids of documents that were read since the last call, by the paths of their files."""
        further: dict[str, list[str]] = {}
        for path, name in self.in_order[self.noted :]:
            further.setdefault(path, []).append(name)
            self.noted += 1
        return further


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync or of its preview: its plan, what it added, and the removal of `num_gone` documents."""

    plan: SyncPlan
    adding: Adding
    num_gone: int
    report: IngestReport | None = None
    removed: Edit | None = None
    keyset: KeysetRecord | None = None
    threshold: str | None = None

    @property
    def refusals(self) -> list[Refusal]:
        return [*self.adding.tally.refusals, *(self.report.refusals if self.report else ())]

    def summary(self) -> dict[str, Any]:
        """Give the result's counts for JSON, without names of files and documents and without reasons of refusals."""
        removed, standings = self.removed, self.adding.tally.standings
        told = {
            "corpus": self.adding.corpus, "files": self.plan.counts,
            "documents": {
                "new": standings[DocumentStanding.new],
                "changed": standings[DocumentStanding.changed],
                "gone": self.num_gone,
            },
            **facts_ingested(self.report),
            "deleted_facts": len(removed.fact_ids) if removed else 0,
            "removed_seq": removed.seq if removed else None,
            "rejected": dict(self.adding.tally.rejected),
            "refused": len(self.refusals), "passed_over": dict(self.adding.found.passed_over),
            "keyset": self.keyset, "citable": self.keyset is not None and self.keyset.state == "active",
            "threshold": self.threshold,
        }  # fmt: skip
        said: dict[str, Any] = plain(told)
        return said
