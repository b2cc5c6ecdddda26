"""Everything the knowledge base can refuse, as one tree.

KBError
├── SettingsError
├── DatabaseUnavailable
├── MigrationNeeded
├── NotFound
│   ├── FactNotFound
│   ├── DocumentNotFound
│   ├── ExternalIdNotFound
│   ├── GenerationNotFound
│   ├── CorpusNotFound
│   ├── KeysetNotFound
│   ├── NoSuchChange
│   ├── ForgetRunNotFound
│   ├── ApiKeyNotFound
│   ├── ErasureRequestNotFound
│   ├── JobNotFound
│   ├── UploadNotFound
│   └── NothingSelected
├── Conflict
│   ├── FactDeleted
│   ├── FactNotDeleted
│   ├── FactErased
│   ├── FactSuppressed
│   ├── CorpusInUse
│   ├── NoActiveKeyset
│   ├── KeysetNotReady
│   ├── GateRefused
│   ├── NoFormerKeyset
│   ├── KeysetActive
│   ├── KeysetMismatch
│   ├── DatabaseNotEmpty
│   ├── ForgetRunState
│   ├── JobFinished
│   ├── PlanStale
│   ├── ApiKeyEnded
│   ├── RequestUnderWay
│   ├── AnswerGone
│   ├── SecondPersonNeeded
│   ├── SamePerson
│   └── ErasureRequestState
├── Invalid
│   ├── InvalidValue
│   ├── InvalidSelector
│   ├── InvalidQuery
│   ├── InvalidSplice
│   ├── InvalidKeys
│   ├── RequestDiffers
│   ├── AdminKeyNeeded
│   ├── InvalidWork
│   └── UploadTooLarge
├── JobGivenUp
├── SignatureRefused
├── LogRefused
├── BackupRefused
├── IndexBehind
├── IndexInvariant
└── SnapshotRefused

Each says the cause and the remedy in one line, and carries the ids it is about as attributes. The
edges read `title`, `status` (HTTP) and `exit_code` from the class, so a new error needs no new table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class KBError(Exception):
    """Root of the tree; catch this at an edge, and the leaf you mean everywhere else."""

    title: ClassVar[str] = "Knowledge base error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class SettingsError(KBError):
    title = "Bad setting"
    exit_code = 2

    def __init__(self, variable: str, cause: str) -> None:
        self.variable = variable
        super().__init__(f"{variable}: {cause}. Set {variable} right, or unset it for the default.")


class DatabaseUnavailable(KBError):
    title = "Database unavailable"
    status = 503
    exit_code = 5

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"No database at {where}: {cause}. Check that the server runs and COLMLM_DATABASE_URL."
        )


class MigrationNeeded(KBError):
    title = "Migration needed"
    status = 503
    exit_code = 5

    def __init__(self, found: str | None, wanted: str) -> None:
        self.found, self.wanted = found, wanted
        super().__init__(
            f"The database is at migration {found or 'none'}, this program needs {wanted}. Run: colmlm db migrate"
        )


class NotFound(KBError):
    status = 404
    exit_code = 3


class FactNotFound(NotFound):
    title = "No such fact"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"No fact {_listed(fact_ids)}. Nothing was done; look ids up with `colmlm facts list`."
        )


class DocumentNotFound(NotFound):
    title = "No such document"

    def __init__(self, document_id: int) -> None:
        self.document_id = document_id
        super().__init__(f"No document {document_id}. A fact's source names its document.")


class ExternalIdNotFound(NotFound):
    title = "No such document"

    def __init__(self, corpus: str, external_ids: Sequence[str]) -> None:
        self.corpus, self.external_ids = corpus, tuple(external_ids)
        shown = ", ".join(map(repr, external_ids[:10]))
        more = f" and {len(external_ids) - 10} more" if len(external_ids) > 10 else ""
        super().__init__(
            f"No document {shown}{more} in corpus {corpus!r}. Nothing was done; check the names."
        )


class GenerationNotFound(NotFound):
    title = "No such generation"

    def __init__(self, generation_id: int) -> None:
        self.generation_id = generation_id
        super().__init__(f"No stored output {generation_id}. Only outputs that were recorded can be traced.")


class CorpusNotFound(NotFound):
    title = "No such corpus"

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus
        super().__init__(
            f"No corpus {corpus!r}. Ingest a file into it first, or list the corpora for the name."
        )


class KeysetNotFound(NotFound):
    title = "No such keyset"

    def __init__(self, keyset_id: int) -> None:
        self.keyset_id = keyset_id
        super().__init__(f"No keyset {keyset_id}. List the keysets for its id, or rekey to make one.")


class NoSuchChange(NotFound):
    title = "No such change"

    def __init__(self, seq: int, head: int) -> None:
        self.seq, self.head = seq, head
        super().__init__(
            f"No change {seq}: the log goes from 0 (before the first change) to {head}. See `colmlm changes`."
        )


class ForgetRunNotFound(NotFound):
    title = "No such forget run"

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        super().__init__(f"No forget run {run_id}. List them with `colmlm forget list`.")


class ApiKeyNotFound(NotFound):
    title = "No such key"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"No key is named {name!r}. List the keys with `colmlm keys list`.")


class ErasureRequestNotFound(NotFound):
    title = "No such request to erase"

    def __init__(self, request_id: int) -> None:
        self.erasure_request_id = request_id
        super().__init__(f"No request to erase {request_id}. List them with `colmlm erasures list`.")


class JobNotFound(NotFound):
    title = "No such job"

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"No job {job_id}. List them with `colmlm jobs list`.")


class UploadNotFound(NotFound):
    title = "No such upload"

    def __init__(self, upload_id: str) -> None:
        self.upload_id = upload_id
        super().__init__(
            f"No upload {upload_id!r}: its job is done and took it along, or nobody asked for it in a day. "
            "Upload the file again."
        )


class NothingSelected(NotFound):
    title = "Nothing selected"

    def __init__(self) -> None:
        super().__init__(
            "The selector matches no live fact, so nothing was planned. Widen it, or allow an empty selection."
        )


class Conflict(KBError):
    status = 409
    exit_code = 4


class FactDeleted(Conflict):
    title = "Fact is deleted"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Already deleted: {_listed(fact_ids)}. Nothing was done; restore first, or leave them out."
        )


class FactNotDeleted(Conflict):
    title = "Fact is not deleted"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(f"Not deleted: {_listed(fact_ids)}. Nothing was restored; leave them out.")


class FactErased(Conflict):
    title = "Fact is erased"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Erased for good: {_listed(fact_ids)}. Nothing was done; their text is gone, so leave them out."
        )


class FactSuppressed(Conflict):
    title = "Fact was erased before"

    def __init__(self) -> None:
        super().__init__(
            "A fact with this question and value was erased. Nothing was added; "
            "pass --allow-erased (allow_erased) to bring it back on purpose."
        )


class CorpusInUse(Conflict):
    title = "Corpus is in use"

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus
        super().__init__(f"Corpus {corpus!r} still has live facts. Delete them first.")


class NoActiveKeyset(Conflict):
    title = "No active keyset"

    def __init__(self) -> None:
        super().__init__(
            "No keyset is active, so nothing can be looked up. Rekey with a checkpoint, then activate."
        )


class KeysetNotReady(Conflict):
    title = "Keyset is not ready"

    def __init__(self, keyset_id: int, state: str) -> None:
        self.keyset_id, self.state = keyset_id, state
        super().__init__(f"Keyset {keyset_id} is {state}, not ready. Rekey its checkpoint to the end first.")


class GateRefused(Conflict):
    title = "Keyset has not passed its gate"

    def __init__(self, keyset_id: int, cause: str) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"Keyset {keyset_id} was not activated: {cause}. "
            "Run `colmlm keysets check` on it, or activate it with --force, which is recorded."
        )


class NoFormerKeyset(Conflict):
    title = "No former keyset"

    def __init__(self, keyset_id: int) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"No keyset was active before keyset {keyset_id}, so there is nothing to go back to."
        )


class KeysetActive(Conflict):
    title = "Keyset is active"

    def __init__(self, keyset_id: int) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"Keyset {keyset_id} is active and serves lookups. Activate another one before retiring it."
        )


class KeysetMismatch(Conflict):
    title = "Keyset of another checkpoint"

    def __init__(self, wanted: str, active: str) -> None:
        self.wanted, self.active = wanted, active
        super().__init__(
            f"The query comes from checkpoint {wanted!r}, the active keyset from {active!r}; their vectors do not "
            "compare. Load the keyset's checkpoint, or rekey and activate."
        )


class ForgetRunState(Conflict):
    title = "Forget run in another state"

    def __init__(self, run_id: int, found: str, wanted: str) -> None:
        self.run_id, self.found = run_id, found
        super().__init__(
            f"Forget run {run_id} is {found}; this needs one that is {wanted}. Nothing was done."
        )


class JobFinished(Conflict):
    title = "Job has ended"

    def __init__(self, job_id: int, state: str) -> None:
        self.job_id, self.state = job_id, state
        super().__init__(f"Job {job_id} is over: {state}. There is nothing to cancel.")


class PlanStale(Conflict):
    title = "Plan is stale"

    def __init__(self, run_id: int, fact_ids: Sequence[int]) -> None:
        self.run_id, self.fact_ids = run_id, tuple(fact_ids)
        super().__init__(
            f"Edited or deleted since forget run {run_id} was planned: {_listed(fact_ids)}. Nothing was done; "
            "plan again and look at the new plan."
        )


class ApiKeyEnded(Conflict):
    title = "Key has ended"

    def __init__(self, name: str, state: str) -> None:
        self.name, self.state = name, state
        remedy = "Rotate it with a new end" if state == "expired" else "Make a key of another name"
        super().__init__(f"The key {name!r} is {state}. {remedy}.")


class RequestUnderWay(Conflict):
    title = "Request is under way"

    def __init__(self) -> None:
        super().__init__("A request with this Idempotency-Key is under way. Ask again for its answer.")


class AnswerGone(Conflict):
    title = "Answer is not kept"

    def __init__(self, seq: int | None) -> None:
        self.change_seq = seq
        done = "was carried out" if seq is None else f"was carried out, up to change {seq}"
        super().__init__(
            f"The request with this Idempotency-Key {done}, and its answer is not kept. Nothing was done now; "
            "read back what it asked for, and use a new key for a new request."
        )


class SecondPersonNeeded(Conflict):
    title = "A second person is needed"

    def __init__(self) -> None:
        super().__init__(
            "Here an erasure waits until the holder of another admin key approves it (COLMLM_ERASE_NEEDS_TWO). "
            "Nothing was erased; ask for it with an admin key."
        )


class SamePerson(Conflict):
    title = "Asked by the same key"

    def __init__(self, request_id: int, name: str) -> None:
        self.erasure_request_id = request_id
        super().__init__(
            f"Request to erase {request_id} was made with the key {name!r}, and another one must approve it. "
            "Nothing was erased."
        )


class ErasureRequestState(Conflict):
    title = "Request to erase was decided"

    def __init__(self, request_id: int, state: str) -> None:
        self.erasure_request_id, self.state = request_id, state
        super().__init__(f"Request to erase {request_id} is {state} already. Nothing was done.")


class Invalid(KBError):
    status = 422
    exit_code = 2


class InvalidValue(Invalid):
    title = "Invalid value"

    def __init__(self, field: str, cause: str) -> None:
        self.field = field
        super().__init__(f"The {field} cannot be stored: {cause}.")


class InvalidSelector(Invalid):
    title = "Invalid selector"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The selector cannot be used: {cause}.")


class InvalidQuery(Invalid):
    title = "Invalid query"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The query cannot be searched: {cause}.")


class InvalidSplice(Invalid):
    title = "Invalid splice"

    def __init__(self, ordinal: int, cause: str) -> None:
        self.ordinal = ordinal
        super().__init__(f"Splice {ordinal} is not evidence: {cause}. The generation was not stored.")


class InvalidKeys(Invalid):
    title = "Invalid keys"

    def __init__(self, checkpoint_id: str, cause: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(f"Checkpoint {checkpoint_id!r} made keys that cannot be used: {cause}.")


class RequestDiffers(Invalid):
    title = "Another request had this key"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key came with another request before. Nothing was done; use a new key for each request."
        )


class AdminKeyNeeded(Invalid):
    title = "An admin's key is needed"

    def __init__(self) -> None:
        super().__init__(
            "An erasure by two is asked for and decided with keys of admins. Nothing was done; "
            "put the token of one into COLMLM_TOKEN."
        )


class InvalidWork(Invalid):
    title = "Invalid job"

    def __init__(self, kind: str, cause: str) -> None:
        self.kind = kind
        super().__init__(f"A job {kind!r} cannot be made of this: {cause}. Nothing was started.")


class UploadTooLarge(Invalid):
    title = "Upload too large"
    status = 413

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}. Nothing was kept; split the file, or raise COLMLM_UPLOAD_MAX_MB.")


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
    status = 422
    exit_code = 1

    def __init__(self, what: str, cause: str) -> None:
        self.what = what
        super().__init__(f"{what}: {cause}. It is no evidence; get it again from whoever signed it.")


class LogRefused(KBError):
    title = "Change log refused"
    status = 422
    exit_code = 1

    def __init__(self, what: str, seq: int, cause: str) -> None:
        self.what, self.seq = what, seq
        super().__init__(f"{what}, change {seq}: {cause}. It is no evidence; export the log again.")


class BackupRefused(KBError):
    title = "Backup refused"
    status = 422
    exit_code = 1

    def __init__(self, file: str, cause: str) -> None:
        self.file = file
        super().__init__(f"{file}: {cause}. Nothing was restored; take another copy of it.")


class DatabaseNotEmpty(Conflict):
    title = "Database is not empty"

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"A backup goes into an empty database only, and this one has rows in {table!r}. "
            "Name a new one with COLMLM_HOME or COLMLM_DATABASE_URL, then run: colmlm db migrate"
        )


class IndexBehind(KBError):
    title = "Index is behind"
    status = 503
    exit_code = 6

    def __init__(self, min_seq: int, applied_seq: int, waited_seconds: float) -> None:
        self.min_seq, self.applied_seq = min_seq, applied_seq
        super().__init__(
            f"Change {min_seq} is not in the index after {waited_seconds:g} s (it has {applied_seq}). "
            "Try again, or raise COLMLM_INDEX_WAIT_SECONDS."
        )


class IndexInvariant(KBError):
    title = "Index invariant broken"
    exit_code = 6

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The index refused: {cause}. Run `colmlm fsck`; the index can be rebuilt from the database."
        )


class SnapshotRefused(KBError):
    title = "Snapshot refused"
    exit_code = 6

    def __init__(self, *, keyset_id: int, cause: str) -> None:
        self.keyset_id, self.cause = keyset_id, cause
        super().__init__(f"Snapshot of keyset {keyset_id}: {cause}. The index is rebuilt from the database.")


def _listed(fact_ids: Sequence[int]) -> str:
    shown = ", ".join(str(fact_id) for fact_id in fact_ids[:10])
    return shown if len(fact_ids) <= 10 else f"{shown} and {len(fact_ids) - 10} more"
