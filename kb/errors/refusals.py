"""Errors of the knowledge base that no code tells apart, by subject: each function makes one.

A function gives the words of the message. Its arguments are the error's attributes, and the ids among them cross HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.kb.errors import (
    KINDS,
    Conflict,
    EvidenceRefused,
    Invalid,
    KBError,
    NotFound,
    OutOfReach,
    StorageRefused,
    Waited,
    format_list,
)


def kind_of(code: str) -> type[KBError] | None:
    """Give the kind of an error of the knowledge base by its code; None where the code is none of these."""
    kind = KINDS.get(code)
    return kind if kind is not None and kind.__module__ == KBError.__module__ else None


# Facts, documents and corpora.


@NotFound.coded("PairNotFound", "No such pair")
def pair_not_found(fact_ids: Sequence[int]) -> str:
    return (
        f"Facts {format_list(fact_ids)} are no contradiction that is kept here, or are noted like that already. "
        "Nothing was done; see `colmlm facts compare contradictions`, and with --held those where both hold."
    )


@NotFound.coded("DocumentNotFound", "No such document")
def document_not_found(document_id: int) -> str:
    return f"No document {document_id}. A fact's source names its document."


@NotFound.coded("ExternalIdNotFound", "No such document")
def external_id_not_found(corpus: str, external_ids: Sequence[str]) -> str:
    shown = ", ".join(map(repr, external_ids[:10]))
    more = f" and {len(external_ids) - 10} more" if len(external_ids) > 10 else ""
    return f"No document {shown}{more} in corpus {corpus!r}. Nothing was done; check the names."


@NotFound.coded("CorpusNotFound", "No such corpus")
def corpus_not_found(corpus: str) -> str:
    return f"No corpus {corpus!r}. Ingest a file into it first, or list the corpora for the name."


@Conflict.coded("FactDeleted", "Fact is deleted")
def fact_deleted(fact_ids: Sequence[int]) -> str:
    return f"Already deleted: {format_list(fact_ids)}. Nothing was done; restore first, or leave them out."


@Conflict.coded("FactNotDeleted", "Fact is not deleted")
def fact_not_deleted(fact_ids: Sequence[int]) -> str:
    return f"Not deleted: {format_list(fact_ids)}. Nothing was restored; leave them out."


@Conflict.coded("FactErased", "Fact is erased")
def fact_erased(fact_ids: Sequence[int]) -> str:
    return (
        f"Erased for good: {format_list(fact_ids)}. Nothing was done; their text is gone, so leave them out."
    )


@Conflict.coded("FactSuppressed", "Fact was erased before")
def fact_suppressed() -> str:
    return (
        "A fact that says this was erased. Nothing was done; "
        "pass --allow-erased (allow_erased) to bring it back on purpose."
    )


@Conflict.coded("FactChanged", "Fact was changed meanwhile")
def fact_changed(fact_ids: Sequence[int]) -> str:
    return f"Changed since its version was read: {format_list(fact_ids)}. Nothing was done; read it again."


@Conflict.coded("AnsweredAlready", "Answered already")
def answered_already(fact_ids: Sequence[int], value: str) -> str:
    """Name the facts that answer the question otherwise, and the value of the first; none: those asked for do."""
    said = value if len(value) <= 60 else f"{value[:59]}…"
    who = (
        f"Fact {format_list(fact_ids)} answers"
        if len(fact_ids) == 1
        else f"Facts {format_list(fact_ids)} answer"
    )
    return (
        f'{who} this already ("{said}"). Nothing was done; edit it, or pass --anyway (anyway) to have both.'
        if fact_ids
        else "Two of these facts answer one question with two values. Nothing was done; leave one out, or pass "
        "--anyway (anyway) to have both."
    )


@Conflict.coded("SpanTaken", "Span is taken")
def span_taken(document_id: int, fact_ids: Sequence[int]) -> str:
    return (
        f"In document {document_id} it would overlap {format_list(fact_ids)}. Nothing was done; a deleted fact "
        "keeps its place too, so restore and move that one, or leave its words out."
    )


@Conflict.coded("DocumentReplaced", "Document was replaced")
def document_replaced(document_id: int) -> str:
    return (
        f"A newer text has replaced document {document_id}. Nothing was done; its facts are in the newer one."
    )


@Conflict.coded("TextsMissing", "Texts are missing")
def texts_missing(corpus: str, documents: int) -> str:
    return (
        f"In corpus {corpus!r} {documents} documents are samples of a release and have no text, so that an export "
        "would leave their facts out. Nothing was written; ingest the documents, or use colmlm backup create."
    )


@Conflict.coded("FolderEmpty", "Folder has none of the files")
def folder_empty(corpus: str, files: int) -> str:
    return (
        f"None of the {files} files that corpus {corpus!r} was synced from is in the folder. Nothing was done; is "
        "it mounted, and the right one? Pass --allow-empty (allow_empty) where all of them are meant to go."
    )


@Conflict.coded("FolderOther", "Corpus follows another folder")
def folder_other(corpus: str, place: str) -> str:
    return (
        f"Corpus {corpus!r} follows {place}, and its documents would be taken out. Nothing was done; name another "
        "corpus, or pass --move (move) where it is meant to follow this folder instead."
    )


@Invalid.coded("InvalidSpan", "Invalid span")
def invalid_span(document_id: int, cause: str) -> str:
    return f"No span of document {document_id}: {cause}. Nothing was done."


@Invalid.coded("InvalidRelease", "Invalid release")
def invalid_release(cause: str, remedy: str) -> str:
    return f"The release cannot be imported: {cause}. {remedy}"


# The change log, outputs, and the base as of a change.


@NotFound.coded("NoSuchChange", "No such change")
def no_such_change(seq: int, head: int) -> str:
    return f"No change {seq}: the log goes from 0 (before the first change) to {head}. See `colmlm log list`."


@NotFound.coded("NoOpenBreak", "No open break of the log")
def no_open_break(seqs: Sequence[int]) -> str:
    return (
        f"Nothing to seal at change {format_list(seqs)}: it fits, is sealed already, or is not there. Nothing was "
        "done; `colmlm log verify` names the breaks."
    )


@Conflict.coded("NotUndoable", "Change cannot be undone")
def not_undoable(seq: int, cause: str, fact_ids: Sequence[int] = ()) -> str:
    of = f" {format_list(fact_ids)}" if fact_ids else ""
    return f"Change {seq} cannot be undone: {cause}{of}. Nothing was done."


@NotFound.coded("GenerationNotFound", "No such generation")
def generation_not_found(generation_id: int) -> str:
    return f"No stored output {generation_id}. Only outputs that were recorded can be traced."


@Invalid.coded("InvalidSplice", "Invalid splice")
def invalid_splice(ordinal: int, cause: str) -> str:
    return f"Splice {ordinal} is not evidence: {cause}. The generation was not stored."


@Conflict.coded("NotAnsweredThen", "Not answered then")
def not_answered_then(seq: int, cause: str) -> str:
    return f"As of change {seq} {cause}."


@Invalid.coded("PastTooLarge", "Too much of the past at once")
def past_too_large(rows: int, keys: int, limit: int) -> str:
    remedy = f"Ask {limit // keys:,} queries at a time" if keys <= limit else "Ask a base with fewer keys"
    return (
        f"As of a change each query is compared with every key: {rows:,} queries with {keys:,} keys are "
        f"{rows * keys:,} scores, and {limit:,} are taken at once. Nothing was looked up. {remedy}, "
        "or raise COLMLM_AS_OF_MAX_SCORES."
    )


# Keysets.


@NotFound.coded("KeysetNotFound", "No such keyset")
def keyset_not_found(keyset_id: int) -> str:
    return f"No keyset {keyset_id}. List the keysets for its id, or rekey to make one."


@Conflict.coded("KeysetNotReady", "Keyset is not ready")
def keyset_not_ready(keyset_id: int, state: str) -> str:
    return f"Keyset {keyset_id} is {state}, not ready. Rekey its checkpoint to the end first."


@Conflict.coded("KeysetActive", "Keyset is active")
def keyset_active(keyset_id: int) -> str:
    return f"Keyset {keyset_id} is active and serves lookups. Activate another one before retiring it."


@Conflict.coded("GateRefused", "Keyset has not passed its gate")
def gate_refused(keyset_id: int, cause: str) -> str:
    return (
        f"Keyset {keyset_id} was not activated: {cause}. "
        "Run `colmlm keysets check` on it, or activate it with --force, which is recorded."
    )


@Invalid.coded("InvalidKeys", "Invalid keys")
def invalid_keys(checkpoint_id: str, cause: str) -> str:
    return f"Checkpoint {checkpoint_id!r} made keys that cannot be used: {cause}."


@OutOfReach.coded("KeysLeftElsewhere", "Keys left elsewhere")
def keys_left_elsewhere(keyset_id: int, cause: str) -> str:
    return (
        f"Keyset {keyset_id} is retired, but its keys are still on the Milvus server: {cause} They go when it is "
        "retired again, with the next erasure, or with `colmlm doctor --data --repair`."
    )


# Forgetting and erasing.


@NotFound.coded("ForgetRunNotFound", "No such forget run")
def forget_run_not_found(run_id: int) -> str:
    return f"No forget run {run_id}. List them with `colmlm forget list`."


@Conflict.coded("ForgetRunState", "Forget run in another state")
def forget_run_state(run_id: int, found: str, wanted: str) -> str:
    return f"Forget run {run_id} is {found}; this needs one that is {wanted}. Nothing was done."


@NotFound.coded("NothingSelected", "Nothing selected")
def nothing_selected() -> str:
    return "The selector matches no live fact, so nothing was planned. Widen it, or allow an empty selection."


@Invalid.coded("InvalidSelector", "Invalid selector")
def invalid_selector(cause: str) -> str:
    return f"The selector cannot be used: {cause}."


@Conflict.coded("PlanStale", "Plan is stale")
def plan_stale(run_id: int, fact_ids: Sequence[int]) -> str:
    return (
        f"Edited or deleted since forget run {run_id} was planned: {format_list(fact_ids)}. Nothing was done; "
        "plan again and look at the new plan."
    )


@Conflict.coded("PlanUnderWay", "Another plan is under way")
def plan_under_way() -> str:
    return (
        "Another plan to forget is being worked out in this process, and each holds all keys in memory. "
        "Nothing was done; ask again when it is done."
    )


@Conflict.coded("PlanTooLarge", "Too many facts for a server's plan")
def plan_too_large(live: int, largest: int) -> str:
    return (
        f"A plan to forget holds the keys of all {live} live facts in memory, and this server works plans out up "
        f"to {largest} (COLMLM_PLAN_MAX_FACTS). Nothing was done; use `colmlm forget plan` beside the database."
    )


@NotFound.coded("ErasureNotFound", "No such erasure")
def erasure_not_found(seq: int) -> str:
    return f"Change {seq} is no erasure. List them with `colmlm log list --kind erase`."


@NotFound.coded("ErasureRequestNotFound", "No such request to erase")
def erasure_request_not_found(erasure_request_id: int) -> str:
    return f"No request to erase {erasure_request_id}. List them with `colmlm erase requests`."


@Conflict.coded("ErasureRequestState", "Request to erase was decided")
def erasure_request_state(erasure_request_id: int, state: str) -> str:
    return f"Request to erase {erasure_request_id} is {state} already. Nothing was done."


@Conflict.coded("SecondPersonNeeded", "A second person is needed")
def second_person_needed() -> str:
    return (
        "Here an erasure waits until the holder of another admin's token approves it (COLMLM_ERASE_NEEDS_TWO). "
        "Nothing was erased; ask for it with an admin's token."
    )


@Conflict.coded("SamePerson", "Asked by the same token")
def same_person(erasure_request_id: int, name: str) -> str:
    return (
        f"Request to erase {erasure_request_id} was made with the token {name!r}, and another one must approve it. "
        "Nothing was erased."
    )


@Invalid.coded("AdminKeyNeeded", "An admin's token is needed")
def admin_key_needed() -> str:
    return (
        "An erasure by two is asked for and decided with tokens of admins. Nothing was done; "
        "put the secret of one into COLMLM_TOKEN."
    )


@Invalid.coded("SignerNeeded", "A signer must be named")
def signer_needed() -> str:
    return (
        "Anybody can sign with a key of their own. Name the key that must have signed, known from elsewhere: "
        "--public-key (public_key) or --key (key); or ask the base that issued it, which knows its own."
    )


# Questions and misses.


@NotFound.coded("QuestionNotFound", "No such question")
def question_not_found(question_ids: Sequence[int]) -> str:
    return (
        f"No question {format_list(question_ids)} in this set. Nothing was done; "
        "`colmlm questions show` lists the ids."
    )


@NotFound.coded("QuestionRunNotFound", "No such run")
def question_run_not_found(run_id: int) -> str:
    return f"No run {run_id} of this set. List them with `colmlm questions show NAME --runs`; old ones are dropped."


@NotFound.coded("MissGroupNotFound", "No such group of misses")
def miss_group_not_found(group_ids: Sequence[int]) -> str:
    return f"No group of misses {format_list(group_ids)}. Nothing was done; look ids up with `colmlm misses list`."


@Conflict.coded("MissGroupState", "Decided already")
def miss_group_state(group_ids: Sequence[int], state: str) -> str:
    return f"Already {state}: {format_list(group_ids)}. Nothing was done; leave them out."


# Decoding.


@Invalid.coded("PromptRefused", "Prompt refused")
def prompt_refused(cause: str) -> str:
    return f"The prompt cannot be read: {cause}. Nothing was decoded."


@Invalid.coded("ContextLengthExceeded", "Prompt too long")
def context_length_exceeded(num_tokens: int, most: int) -> str:
    return (
        f"A prompt may have {most} tokens here, and this one has {num_tokens}. Nothing was decoded; shorten it, "
        "or raise COLMLM_PROMPT_MAX_TOKENS where the model reads more."
    )


@Invalid.coded("InvalidDecoding", "Invalid settings of decoding")
def invalid_decoding(cause: str) -> str:
    return f"This cannot be decoded as it says: {cause}. Nothing was decoded."


@Waited.coded("DecoderBusy", "Decoder busy")
def decoder_busy(waiting: int, retry_after: int) -> str:
    return (
        f"{waiting} prompts wait to be decoded, and this one waits no longer. Nothing was stored; "
        f"try again in {retry_after} s."
    )


# Tokens, requests, webhooks and jobs.


@NotFound.coded("ApiKeyNotFound", "No such token")
def api_key_not_found(name: str) -> str:
    return f"No token is named {name!r}. List the tokens with `colmlm tokens list`."


@Conflict.coded("ApiKeyEnded", "Token has ended")
def api_key_ended(name: str, state: str) -> str:
    remedy = "Rotate it with a new end" if state == "expired" else "Make a token of another name"
    return f"The token {name!r} is {state}. {remedy}."


@Conflict.coded("RequestUnderWay", "Request is under way")
def request_under_way() -> str:
    return "A request with this Idempotency-Key is under way. Ask again for its answer."


@Invalid.coded("RequestDiffers", "Another request had this key")
def request_differs() -> str:
    return "This Idempotency-Key came with another request before. Nothing was done; use a new key for each request."


@Conflict.coded("AnswerGone", "Answer is not kept")
def answer_gone(seq: int | None) -> str:
    done = "was carried out" if seq is None else f"was carried out, up to change {seq}"
    return (
        f"The request with this Idempotency-Key {done}, and its answer is not kept. Nothing was done now; "
        "read back what it asked for, and use a new key for a new request."
    )


@NotFound.coded("WebhookNotFound", "No such webhook")
def webhook_not_found(webhook_id: int) -> str:
    return f"No webhook {webhook_id}. List them with `colmlm webhooks list`."


@Conflict.coded("WebhookState", "Webhook is in another state")
def webhook_state(webhook_id: int, state: str) -> str:
    return f"Webhook {webhook_id} is {state} already. Nothing was done."


@NotFound.coded("JobNotFound", "No such job")
def job_not_found(job_id: int) -> str:
    return f"No job {job_id}. List them with `colmlm jobs list`."


@Conflict.coded("JobFinished", "Job has ended")
def job_finished(job_id: int, state: str) -> str:
    return f"Job {job_id} is over: {state}. There is nothing to cancel."


@KBError.coded("JobGivenUp", "Job given up")
def job_given_up(job_id: int, attempts: int) -> str:
    return (
        f"{attempts} workers died over job {job_id}; their logs and the kernel's say why, and memory is the usual "
        "cause. What it committed stays; once the cause is gone, ask for the same again."
    )


@NotFound.coded("UploadNotFound", "No such upload")
def upload_not_found(upload_id: str) -> str:
    return (
        f"No upload {upload_id!r}: its job is done and took it along, or nobody asked for it in a day. "
        "Upload the file again."
    )


@Invalid.coded("UploadTooLarge", "Upload too large")
def upload_too_large(cause: str) -> str:
    return f"{cause}. Nothing was kept; split the file, or raise COLMLM_UPLOAD_MAX_MB."


# Backups, the database and the machine.


@Conflict.coded("DatabaseNotEmpty", "Database is not empty")
def database_not_empty(table: str) -> str:
    return (
        f"A backup goes into an empty database only, and this one has rows in {table!r}. "
        "Name a new one with COLMLM_HOME or COLMLM_DATABASE_URL, then run: colmlm db migrate"
    )


@Conflict.coded("NewerLogNeeded", "The newer log is needed")
def newer_log_needed(seq: int, at: str) -> str:
    return (
        f"The backup ends with change {seq}, made {at}: what was erased after that would come back. Give the log "
        "of the newer life (`colmlm log export --changes`) with --change-log, or where there is none let it come "
        "back with --without-later-erasures. Nothing was restored."
    )


@EvidenceRefused.coded("BackupRefused", "Backup refused")
def backup_refused(file: str, cause: str) -> str:
    return f"{file}: {cause}. Nothing was restored; take another copy of it."


@OutOfReach.coded("StandbyAsked", "A standby was asked")
def standby_asked() -> str:
    return (
        "The database is a standby, where facts that were deleted may still be there, so nothing is answered from "
        "it. Set COLMLM_DATABASE_URL to the primary, or promote this server (pg_ctl promote) if that is gone."
    )


@Waited.coded("LogHeld", "The change log is held")
def log_held(holder: str | None, waited_seconds: float) -> str:
    by = f"It is held by {holder}" if holder else "It was let go of just now"
    return (
        f"An edit waited {waited_seconds:g} s for the change log's lock. {by}. Nothing was done; try again, "
        "or raise COLMLM_LOCK_TIMEOUT_SECONDS."
    )


@Waited.coded("Collided", "Met other work")
def collided() -> str:
    return (
        "This operation and another one waited for each other (a deadlock), so the database cancelled this one. "
        "Nothing was done; try again."
    )


@Waited.coded("StatementTooLong", "Took too long")
def statement_too_long() -> str:
    return (
        "A statement of this request or report took longer than its limit, and the database stopped it. Nothing was "
        "done; ask for less at once, or raise COLMLM_STATEMENT_TIMEOUT_SECONDS (of a command on this machine: "
        "COLMLM_REPORT_TIMEOUT_SECONDS)."
    )


@StorageRefused.coded("StorageFull", "Disk full")
def storage_full(what: str) -> str:
    return (
        f"No space is left for {what}. Nothing was kept; free some: a database that can't write stops. "
        "`colmlm doctor` says how much there is, `colmlm db sizing` what is needed."
    )


@StorageRefused.coded("StorageReadOnly", "Cannot be written")
def storage_read_only(what: str) -> str:
    return (
        f"{what} cannot be written by this program. Nothing was kept; mount it for writing, give this user the "
        "directory, or name another one. `colmlm doctor` says which it is."
    )


@KBError.coded("ReaderUnavailable", "Reader unavailable")
def reader_unavailable(cause: str) -> str:
    return (
        f"The process that reads files does not start: {cause}. Memory is the usual cause: free some, "
        "or raise COLMLM_DOCUMENT_MEMORY_MB where it was lowered."
    )


@OutOfReach.coded("ClusterUnavailable", "Cluster unavailable")
def cluster_unavailable(where: str, cause: str) -> str:
    return (
        f"No cluster of Ray at {where}: {cause}. Check the address, and `ray status` there; both sides need the "
        "same release of Ray."
    )
