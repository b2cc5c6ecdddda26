"""Indexes: the level of an erasure at which no index, no snapshot and no collection elsewhere holds an erased key.

It counts only where everything that the database names was looked at. A place that is not the servers', a file that is
not there and a server that does not answer leave it open, and are named.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, KBError, LockHeld, NoActiveKeyset
from colmlm.kb.log import audit
from colmlm.kb.lookup import elsewhere, shared, sharing, writing
from colmlm.kb.lookup.elsewhere import Elsewhere
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.snapshots import remove_orphans

COMPACT_SECONDS = 120.0
AGAIN = "Run it again; the index can be rebuilt from the database, and so can a collection elsewhere."
_TRIES = 5
_PLACE = (
    "Set COLMLM_SHARED_SNAPSHOTS as the servers have it, and mount it where it is a directory; then run it again. "
    "What is gone for good is forgotten by: colmlm fsck --repair"
)
_SERVER = (
    "Set COLMLM_MILVUS_URI as the servers have it and run it again. A collection that went with its server, or whose "
    "server has another address now, is forgotten by: colmlm fsck --repair"
)
_PARTS = (
    "Parts of uploads to S3 are seen and dropped with s3:ListBucketMultipartUploads and s3:AbortMultipartUpload; "
    "without these the bucket needs a rule that ends them."
)

Heard = Callable[[str], None]


class LevelNotReached(Exception):
    """Raised where a level cannot be reached, with the state to report, what is left and what to do."""

    def __init__(self, state: str, left: str, remedy: str) -> None:
        self.state, self.left, self.remedy = state, left, remedy


def out_of_indexes(kb: SearchableStore, on_step: Heard) -> str:
    """Catches the index up with the log and writes every snapshot anew; deletes those that cannot be written."""
    on_step("Removing keys from the index and its snapshots")
    with suppress(NoActiveKeyset, CandidatesRefused, CandidatesUnavailable):  # told of below
        kb.lookups.catch_up()
    with kb.sessions() as session:
        directory = kb.settings.index_directory / audit.database_id(session)
    for manifest in sorted(directory.glob("keyset-*.json")):
        keyset_id = int(manifest.stem.removeprefix("keyset-"))
        try:
            kb.searcher.prepare(keyset_id)
        except LockHeld:
            raise
        except KBError:  # a keyset that is retired or gone: nobody opens its snapshot again
            manifest.unlink(missing_ok=True)
    with kb.sessions() as session:
        remove_orphans(session, kb.settings.index_directory)
    return (
        _out_of_the_shared_place(kb, on_step)
        + _out_of_collections(kb, on_step)
        + (
            "Other running processes answer without it already, and drop its keys from memory at their next lookup. "
            "Snapshots of other machines are rewritten when they are next saved."
        )
    )


def _out_of_the_shared_place(kb: SearchableStore, on_step: Heard) -> str:
    """Replaces the snapshots that servers share from before an erasure, and removes what belongs to none."""
    with kb.sessions.begin() as session:
        if (folder := shared.folder_of(session, kb.settings)) is None:
            if said := shared.unset(session, kb.settings):
                raise LevelNotReached("left", said, _PLACE)
            return ""
        sharing.await_turns(session)
        if doubts := shared.doubts(session, folder):
            raise LevelNotReached("left", "; ".join(doubts.values()), _PLACE)
    for _ in range(_TRIES):
        for keyset_id in (outlived := _outlived(kb)):
            on_step(f"Replacing the shared snapshot of keyset {keyset_id}")
            kb.searcher.prepare(keyset_id, share=True)
        if not outlived:
            break
    else:
        raise LevelNotReached("left", f"{folder.where}: facts are being erased again and again", AGAIN)
    with kb.sessions.begin() as session:
        sharing.prune(session, folder)
        uploads = folder.unfinished()
        left = shared.remains(session, folder, uploads)
    if left:
        said = f"{folder.where}: another process is writing {', '.join(left)}, or it may not be removed"
        raise LevelNotReached("left", said, f"{AGAIN} {_PARTS}")
    return (f"{uploads.unlisted}. {_PARTS} " if uploads.unlisted else "") + (
        "A bucket that keeps versions of its objects, or (other than S3) parts of unfinished uploads, keeps those "
        "until its rules end them. "
    )


def _outlived(kb: SearchableStore) -> list[int]:
    with kb.sessions() as session:
        return [n for n, one in shared.noted(session).items() if shared.is_outlived(session, one)]


def _out_of_collections(kb: SearchableStore, on_step: Heard) -> str:
    """Has servers elsewhere rewrite what they hold of deleted keys, and says what they keep after that.

    Collections of keysets that answer nothing, retired or not yet filled, are dropped.
    """
    with kb.sessions() as session:
        found = elsewhere.named(session, kb.settings)
    for one in found:
        with kb.sessions.begin() as session:
            _out_of(session, one, on_step)
    if not found:
        return ""
    return (
        "Milvus has compacted or dropped what it searches; it deletes the files from before after "
        "dataCoord.gc.dropTolerance, and its message log ends after its retention. "
    )


def _out_of(session: Session, one: Elsewhere, on_step: Heard) -> None:
    on_step(f"Taking deleted keys out of {one.there.where}")
    if (doubt := one.doubt()) is not None:
        raise LevelNotReached("left", f"{one.there.where}: {doubt}", _SERVER)
    kept = one.drop(session)
    if kept is not None and not writing.compact(session, kept.keyset_id, kept.there, COMPACT_SECONDS):
        raise LevelNotReached("left", f"{kept.there.where} did not confirm that it was compacted", AGAIN)
