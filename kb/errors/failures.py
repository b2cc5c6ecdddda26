"""Errors of an installation, or of a file that was given, where no request is at fault."""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.kb.errors.root import KBError


class SettingsError(KBError):
    title = "Bad setting"

    def __init__(self, variable: str, cause: str) -> None:
        self.variable = variable
        super().__init__(f"{variable}: {cause}. Set {variable} right, or unset it for the default.")


class DatabaseUnavailable(KBError):
    title = "Database unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"No database at {where}: {cause}. Check that the server runs and COLMLM_DATABASE_URL."
        )


class StandbyAsked(KBError):
    title = "A standby was asked"

    def __init__(self) -> None:
        super().__init__(
            "The database is a standby, where facts that were deleted may still be there, so nothing is answered from "
            "it. Set COLMLM_DATABASE_URL to the primary, or promote this server (pg_ctl promote) if that is gone."
        )


class LogHeld(KBError):
    title = "The change log is held"

    def __init__(self, holder: str | None, waited_seconds: float) -> None:
        self.holder = holder
        by = f"It is held by {holder}" if holder else "It was let go of just now"
        super().__init__(
            f"An edit waited {waited_seconds:g} s for the change log's lock. {by}. Nothing was done; try again, "
            "or raise COLMLM_LOCK_TIMEOUT_SECONDS."
        )


class LockHeld(KBError):
    title = "Something is locked"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The database was waited for in vain, {what}: other work holds a lock there. Nothing was done; "
            "try again, or raise COLMLM_LOCK_TIMEOUT_SECONDS."
        )


class Collided(KBError):
    title = "Met other work"

    def __init__(self) -> None:
        super().__init__(
            "Other work at the same time waited for this and this for it, again and again, so the database ended it. "
            "Nothing was done; try again."
        )


class StatementTooLong(KBError):
    title = "Took too long"

    def __init__(self) -> None:
        super().__init__(
            "The database was at it for longer than it may be for one request or report, and was stopped. Nothing was "
            "done; ask for less at once, or raise COLMLM_STATEMENT_TIMEOUT_SECONDS (of a command on this machine: "
            "COLMLM_REPORT_TIMEOUT_SECONDS)."
        )


class StorageFull(KBError):
    title = "Disk full"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"No space is left for {what}. Nothing was kept; free some: a database that can't write stops. "
            "`colmlm doctor` says how much there is, `colmlm db sizing` what is needed."
        )


class StorageReadOnly(KBError):
    title = "Cannot be written"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} cannot be written by this program. Nothing was kept; mount it for writing, give this user the "
            "directory, or name another one. `colmlm doctor` says which it is."
        )


class MigrationNeeded(KBError):
    title = "Migration needed"

    def __init__(self, found: str | None, known: Sequence[str]) -> None:
        """Take the migration that the database is at, and those of this program, the newest first."""
        self.found, self.wanted, first = found, known[0], known[-1]
        backup = f"restore a backup of migration {self.wanted} into a new database"
        if found is not None and found < first:
            self.remedy = (
                f"Migrations before {first} are gone: run `colmlm db migrate` of a build of colmlm 0.1 that still has "
                f"{found}, and then this program, or {backup}"
            )
        elif found is not None and found > self.wanted:
            self.remedy = f"A later release has migrated it: run that one, or {backup}"
        else:
            self.remedy = "Run: colmlm db migrate"
        super().__init__(
            f"The database is at migration {found or 'none'}, this program needs {self.wanted}. {self.remedy}"
        )


class ReaderUnavailable(KBError):
    title = "Reader unavailable"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The process that reads files does not start: {cause}. Memory is the usual cause: free some, "
            "or raise COLMLM_DOCUMENT_MEMORY_MB where it was lowered."
        )


class JobGivenUp(KBError):
    title = "Job given up"

    def __init__(self, job_id: int, attempts: int) -> None:
        self.job_id = job_id
        super().__init__(
            f"{attempts} workers died over job {job_id}; their logs and the kernel's say why, and memory is the usual "
            "cause. What it committed stays; once the cause is gone, ask for the same again."
        )


class SignatureRefused(KBError):
    title = "Signature refused"

    def __init__(self, what: str, cause: str, remedy: str = "") -> None:
        self.what = what
        super().__init__(
            f"{what}: {cause}. {remedy or 'It is no evidence; get it again from whoever signed it.'}"
        )


class LogRefused(KBError):
    title = "Change log refused"

    def __init__(self, what: str, seq: int, cause: str) -> None:
        self.what, self.seq = what, seq
        super().__init__(f"{what}, change {seq}: {cause}. It is no evidence; export the log again.")


class BackupRefused(KBError):
    title = "Backup refused"

    def __init__(self, file: str, cause: str) -> None:
        self.file = file
        super().__init__(f"{file}: {cause}. Nothing was restored; take another copy of it.")


class CalibrationRefused(KBError):
    title = "Calibration refused"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The answers were not calibrated: {cause}. Nothing was changed; give other or more questions that people "
            "ask, or allow a higher rate."
        )


class DecoderBusy(KBError):
    title = "Decoder busy"

    def __init__(self, waiting: int, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(
            f"{waiting} prompts wait to be decoded, and this one waits no longer. Nothing was stored; "
            f"try again in {retry_after} s."
        )


class IndexBehind(KBError):
    title = "Index is behind"

    def __init__(self, min_seq: int, applied_seq: int, waited_seconds: float) -> None:
        self.min_seq, self.applied_seq = min_seq, applied_seq
        super().__init__(
            f"Change {min_seq} is not in the index after {waited_seconds:g} s (it has {applied_seq}). "
            "Try again, or raise COLMLM_INDEX_WAIT_SECONDS."
        )


class CandidatesUnavailable(KBError):
    title = "Candidates unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"{where} proposes no keys: {cause}. So nothing can be said of what is known; try again, and check that "
            "server and COLMLM_MILVUS_URI."
        )


class ClusterUnavailable(KBError):
    title = "Cluster unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"No cluster of Ray at {where}: {cause}. Check the address, and `ray status` there; both sides need the "
            "same release of Ray."
        )


class SharedSnapshotsUnavailable(KBError):
    title = "Shared snapshots unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"The shared snapshots at {where} cannot be used: {cause}. See COLMLM_SHARED_SNAPSHOTS and what the "
            "environment says of credentials."
        )


class KeysLeftElsewhere(KBError):
    title = "Keys left elsewhere"

    def __init__(self, keyset_id: int, cause: str) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"Keyset {keyset_id} is retired, but its keys are still on the Milvus server: {cause} They go when it is "
            "retired again, with the next erasure, or with `colmlm doctor --data --repair`."
        )


class CandidatesRefused(KBError):
    title = "Candidates refused"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"{where} is not what this base wrote there: {cause}. It is not searched; compare and mend it with "
            "`colmlm doctor --data --repair`."
        )


class IndexInvariant(KBError):
    title = "Index invariant broken"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The index refused: {cause}. Run `colmlm doctor --data`; the index can be rebuilt from the database."
        )


class SnapshotRefused(KBError):
    title = "Snapshot refused"

    def __init__(self, *, keyset_id: int, cause: str) -> None:
        self.keyset_id, self.cause = keyset_id, cause
        super().__init__(f"Snapshot of keyset {keyset_id}: {cause}. The index is rebuilt from the database.")
