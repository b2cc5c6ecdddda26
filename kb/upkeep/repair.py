"""Repair: rebuilds what is derived from the database, and only reports damage to the data itself.

Indexes and snapshots are caches of keys, and sentences follow from texts, so they can be thrown away. Texts, facts and
the log are evidence: a program that "repaired" them would forge it. But what still says an erased fact is redacted,
which completes the erasure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.kb.erasure.purge import restore_recycling
from colmlm.kb.erasure.verbs import Erasure
from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, LockHeld
from colmlm.kb.facts import quotations, sentences
from colmlm.kb.facts.gone import Gone
from colmlm.kb.facts.sentences import Astray
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keysets import active_keyset_id
from colmlm.kb.log import audit
from colmlm.kb.lookup import elsewhere, shared, sharing
from colmlm.kb.lookup.elsewhere import ElsewhereStanding
from colmlm.kb.lookup.replica import rebuild, save
from colmlm.kb.lookup.snapshots import SharedFaults, inspect, remove_orphans
from colmlm.kb.upkeep.fsck import fsck
from colmlm.kb.upkeep.records import FsckReport

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore

_TOLD_AGAIN = CandidatesRefused, CandidatesUnavailable, LockHeld  # by the check afterwards
_ERASE = "Run this once more; something stores what was erased."
_AGAIN = "No answer depends on it. Run this once more where the server or place that it names answers."
_RESTORE = "Restore a backup from before the damage: colmlm backup restore --change-log"


@dataclass(frozen=True, slots=True)
class Left:
    """A problem that a repair cannot mend, and what the operator can do about it."""

    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was mended (with `dry_run`: would be), the problems that are left, and the check afterwards."""

    dry_run: bool
    mended: tuple[str, ...]
    left: tuple[Left, ...]
    after: FsckReport


@dataclass(frozen=True, slots=True)
class Repair:
    """Mends a knowledge base's indexes and snapshots, while edits go on."""

    kb: SearchableStore

    def run(self, *, dry_run: bool = False) -> RepairReport:
        """Checks everything, mends what is derived, and checks again."""
        with self.kb.sessions() as session:
            found = inspect(session, self.kb.settings)
            quoting = quotations.find(session, Gone.read(session)).told()
            astray = sentences.find_astray(session)
        to_mend = (*found.differences(), *found.mendable(), *quoting, *astray.told())
        if not dry_run:
            restore_recycling(self.kb.engine)
            if quoting:
                Erasure(self.kb).complete(
                    actor=self.kb.settings.actor, reason="repair: said after it was erased"
                )
            if astray:
                self._write_sentences(astray)
            with self.kb.sessions() as session:
                remove_orphans(session, self.kb.settings.index_directory)
            self._finish(found.unfinished)
            self._rewrite([s.keyset_id for s in found.snapshots if not s.is_good])
            self._share(found.shared)
            self._clear(found.collections)
        with self.kb.sessions() as session:
            after = fsck(session, self.kb.settings)
        still = found.unreached() if dry_run else (*after.mendable, *after.problems, *after.quoting)
        mended = tuple(said for said in to_mend if said not in still)
        return RepairReport(dry_run, mended, _left(after, mended), after)

    def _write_sentences(self, astray: Astray) -> None:
        with self.kb.sessions.begin() as session:
            audit.begin(session, self.kb.settings.actor, "repair")  # no text changes meanwhile
            sentences.mend(session, astray)

    def _finish(self, keyset_ids: Sequence[int]) -> None:
        """Does what the end of a rekey does. What is elsewhere is filled first: a lookup would not do it."""
        for keyset_id in keyset_ids:
            with suppress(*_TOLD_AGAIN):
                self.kb.searcher.prepare(keyset_id)
                with self.kb.sessions.begin() as session:
                    activation.finish_building(session, keyset_id, self.kb.settings.actor)

    def _rewrite(self, keyset_ids: Sequence[int]) -> None:
        """Writes new snapshots from the database alone; saving one removes the damaged file that it replaces."""
        for keyset_id in keyset_ids:
            with self.kb.sessions.begin() as session:
                is_active = active_keyset_id(session) == keyset_id
                if not is_active:
                    replica = rebuild(session, keysets.keyset_head(session, keyset_id), self.kb.settings)
                    save(session, replica, self.kb.settings)
            if is_active:
                self.kb.lookups.rebuild()  # this process's index too

    def _share(self, faults: SharedFaults) -> None:
        """Puts good snapshots in the place of shared ones that are not, and removes what belongs to none.

        One that the database knows elsewhere, or that is gone, is forgotten: who repairs was told of it.
        """
        with self.kb.sessions.begin() as session:
            folder = shared.folder_of(session, self.kb.settings)
            if folder is None or not faults.told() or faults.unreached:
                return
            sharing.await_turns(session)
            sharing.forget(session, shared.doubts(session, folder))
            in_use = {k.keyset_id for k in keysets.heads_in_use(session)}
        for keyset_id in sorted(in_use & faults.by_keyset.keys()):
            self.kb.searcher.prepare(keyset_id, share=True)
        with self.kb.sessions.begin() as session:
            sharing.prune(session, folder)

    def _clear(self, found: ElsewhereStanding) -> None:
        """Drops collections that answer nothing by then, and forgets those that were filled on a server of before.

        One with which that cannot be done is told of again afterwards.
        """
        with self.kb.sessions() as session:
            named = elsewhere.named(session, self.kb.settings)
        for one in named:
            with suppress(*_TOLD_AGAIN), self.kb.sessions.begin() as session:
                if one.keyset_id in found.astray:
                    one.forget(session)
                elif one.keyset_id in found.useless:
                    one.drop(session)


def _left(after: FsckReport, mended: Collection[str]) -> tuple[Left, ...]:
    """Lists the problems that a repair cannot mend. In a dry run, `mended` is what it would mend."""
    left = []
    if after.non_verbatim_facts:
        ids = ", ".join(map(str, after.non_verbatim_facts[:10]))
        remedy = "Compare with `colmlm trace fact`; correct the value or ingest the document again."
        left.append(
            Left(f"{len(after.non_verbatim_facts)} facts that their document does not say: {ids}", remedy)
        )
    if after.chain_first_break is not None:
        remedy = "Find out who had access, compare with a witnessed head (colmlm audit verify --against). "
        remedy += "What is known to be no edit of the base's can be acknowledged (colmlm audit seal). "
        left.append(
            Left(f"the chain of the log breaks at change {after.chain_first_break}", remedy + _RESTORE)
        )
    left += [Left(problem, _ERASE) for problem in after.quoting if problem not in mended]
    left += [Left(problem, _RESTORE) for problem in after.problems if problem not in mended]
    left += [Left(problem, _AGAIN) for problem in after.mendable if problem not in mended]
    return tuple(left)
