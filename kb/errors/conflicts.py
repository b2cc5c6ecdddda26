"""Errors where the state of the knowledge base does not allow a request."""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.kb.errors.root import Conflict, format_list


class FactDeleted(Conflict):
    title = "Fact is deleted"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Already deleted: {format_list(fact_ids)}. Nothing was done; restore first, or leave them out."
        )


class FactNotDeleted(Conflict):
    title = "Fact is not deleted"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(f"Not deleted: {format_list(fact_ids)}. Nothing was restored; leave them out.")


class FactErased(Conflict):
    title = "Fact is erased"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Erased for good: {format_list(fact_ids)}. Nothing was done; their text is gone, so leave them out."
        )


class FactSuppressed(Conflict):
    title = "Fact was erased before"

    def __init__(self) -> None:
        super().__init__(
            "A fact that says this was erased. Nothing was done; "
            "pass --allow-erased (allow_erased) to bring it back on purpose."
        )


class TextsMissing(Conflict):
    title = "Texts are missing"

    def __init__(self, corpus: str, documents: int) -> None:
        super().__init__(
            f"In corpus {corpus!r} {documents} documents are samples of a release and have no text, so that an export "
            "would leave their facts out. Nothing was written; ingest the documents, or use colmlm backup create."
        )


class FolderEmpty(Conflict):
    title = "Folder has none of the files"

    def __init__(self, corpus: str, files: int) -> None:
        super().__init__(
            f"None of the {files} files that corpus {corpus!r} was synced from is in the folder. Nothing was done; is "
            "it mounted, and the right one? Pass --allow-empty (allow_empty) where all of them are meant to go."
        )


class FolderOther(Conflict):
    title = "Corpus follows another folder"

    def __init__(self, corpus: str, place: str) -> None:
        super().__init__(
            f"Corpus {corpus!r} follows {place}, and its documents would be taken out. Nothing was done; name another "
            "corpus, or pass --move (move) where it is meant to follow this folder instead."
        )


class AnsweredAlready(Conflict):
    title = "Answered already"

    def __init__(self, fact_ids: Sequence[int], value: str) -> None:
        """Name the facts that answer the question otherwise, and the value of the first; none: those asked for do."""
        self.fact_ids = tuple(fact_ids)
        said = value if len(value) <= 60 else f"{value[:59]}…"
        who = (
            f"Fact {format_list(fact_ids)} answers"
            if len(fact_ids) == 1
            else f"Facts {format_list(fact_ids)} answer"
        )
        super().__init__(
            f'{who} this already ("{said}"). Nothing was done; edit it, or pass --anyway (anyway) to have both.'
            if fact_ids
            else "Two of these facts answer one question with two values. Nothing was done; leave one out, or pass "
            "--anyway (anyway) to have both."
        )


class SpanTaken(Conflict):
    title = "Span is taken"

    def __init__(self, document_id: int, fact_ids: Sequence[int]) -> None:
        self.document_id, self.fact_ids = document_id, tuple(fact_ids)
        super().__init__(
            f"In document {document_id} it would overlap {format_list(fact_ids)}. Nothing was done; a deleted fact "
            "keeps its place too, so restore and move that one, or leave its words out."
        )


class DocumentReplaced(Conflict):
    title = "Document was replaced"

    def __init__(self, document_id: int) -> None:
        self.document_id = document_id
        super().__init__(
            f"A newer text has replaced document {document_id}. Nothing was done; its facts are in the newer one."
        )


class FactChanged(Conflict):
    title = "Fact was changed meanwhile"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Changed since its version was read: {format_list(fact_ids)}. Nothing was done; read it again."
        )


class NotUndoable(Conflict):
    title = "Change cannot be undone"

    def __init__(self, seq: int, cause: str, fact_ids: Sequence[int] = ()) -> None:
        self.seq, self.fact_ids = seq, tuple(fact_ids)
        of = f" {format_list(fact_ids)}" if fact_ids else ""
        super().__init__(f"Change {seq} cannot be undone: {cause}{of}. Nothing was done.")


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


class NotAnsweredThen(Conflict):
    title = "Not answered then"

    def __init__(self, seq: int, cause: str) -> None:
        self.seq = seq
        super().__init__(f"As of change {seq} {cause}.")


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
            f"Edited or deleted since forget run {run_id} was planned: {format_list(fact_ids)}. Nothing was done; "
            "plan again and look at the new plan."
        )


class PlanUnderWay(Conflict):
    title = "Another plan is under way"

    def __init__(self) -> None:
        super().__init__(
            "Another plan to forget is being worked out in this process, and each holds all keys in memory. "
            "Nothing was done; ask again when it is done."
        )


class PlanTooLarge(Conflict):
    title = "Too many facts for a server's plan"

    def __init__(self, live: int, largest: int) -> None:
        self.live, self.largest = live, largest
        super().__init__(
            f"A plan to forget holds the keys of all {live} live facts in memory, and this server works plans out up "
            f"to {largest} (COLMLM_PLAN_MAX_FACTS). Nothing was done; use `colmlm forget plan` beside the database."
        )


class ApiKeyEnded(Conflict):
    title = "Token has ended"

    def __init__(self, name: str, state: str) -> None:
        self.name, self.state = name, state
        remedy = "Rotate it with a new end" if state == "expired" else "Make a token of another name"
        super().__init__(f"The token {name!r} is {state}. {remedy}.")


class RequestUnderWay(Conflict):
    title = "Request is under way"

    def __init__(self) -> None:
        super().__init__("A request with this Idempotency-Key is under way. Ask again for its answer.")


class AnswerGone(Conflict):
    title = "Answer is not kept"

    def __init__(self, seq: int | None) -> None:
        done = "was carried out" if seq is None else f"was carried out, up to change {seq}"
        super().__init__(
            f"The request with this Idempotency-Key {done}, and its answer is not kept. Nothing was done now; "
            "read back what it asked for, and use a new key for a new request."
        )


class SecondPersonNeeded(Conflict):
    title = "A second person is needed"

    def __init__(self) -> None:
        super().__init__(
            "Here an erasure waits until the holder of another admin's token approves it (COLMLM_ERASE_NEEDS_TWO). "
            "Nothing was erased; ask for it with an admin's token."
        )


class SamePerson(Conflict):
    title = "Asked by the same token"

    def __init__(self, request_id: int, name: str) -> None:
        self.erasure_request_id = request_id
        super().__init__(
            f"Request to erase {request_id} was made with the token {name!r}, and another one must approve it. "
            "Nothing was erased."
        )


class ErasureRequestState(Conflict):
    title = "Request to erase was decided"

    def __init__(self, request_id: int, state: str) -> None:
        self.erasure_request_id, self.state = request_id, state
        super().__init__(f"Request to erase {request_id} is {state} already. Nothing was done.")


class DatabaseNotEmpty(Conflict):
    title = "Database is not empty"

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"A backup goes into an empty database only, and this one has rows in {table!r}. "
            "Name a new one with COLMLM_HOME or COLMLM_DATABASE_URL, then run: colmlm db migrate"
        )


class NewerLogNeeded(Conflict):
    title = "The newer log is needed"

    def __init__(self, seq: int, at: str) -> None:
        self.seq = seq
        super().__init__(
            f"The backup ends with change {seq}, made {at}: what was erased after that would come back. Give the log "
            "of the newer life (`colmlm log export --changes`) with --change-log, or where there is none let it come "
            "back with --without-later-erasures. Nothing was restored."
        )


class MissGroupState(Conflict):
    title = "Decided already"

    def __init__(self, group_ids: Sequence[int], state: str) -> None:
        self.group_ids = tuple(group_ids)
        super().__init__(f"Already {state}: {format_list(group_ids)}. Nothing was done; leave them out.")


class WebhookState(Conflict):
    title = "Webhook is in another state"

    def __init__(self, webhook_id: int, state: str) -> None:
        self.webhook_id = webhook_id
        super().__init__(f"Webhook {webhook_id} is {state} already. Nothing was done.")
