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
    count_of,
    format_list,
    name_facts,
    remedy_after,
)


def kind_of(code: str) -> type[KBError] | None:
    """Give the class that is the kind of errors with this code; None if no error of the knowledge base has it."""
    kind = KINDS.get(code)
    return kind if kind is not None and kind.__module__ == KBError.__module__ else None


# Facts, documents and corpora.


@NotFound.coded("PairNotFound", "No such pair")
def pair_not_found(fact_ids: Sequence[int]) -> str:
    return (
        f"No contradiction between facts {format_list(fact_ids)} is open. Nothing was changed. List them with "
        "`colmlm facts compare contradictions`. Add --held to include the pairs that were settled as both true."
    )


@NotFound.coded("DocumentNotFound", "No such document")
def document_not_found(document_id: int) -> str:
    return f"No document {document_id}. Nothing was changed. List documents with `colmlm corpus documents`."


@NotFound.coded("ExternalIdNotFound", "No such document")
def external_id_not_found(corpus: str, external_ids: Sequence[str]) -> str:
    shown = ", ".join(map(repr, external_ids[:10]))
    more = f" and {len(external_ids) - 10} more" if len(external_ids) > 10 else ""
    return (
        f"No document {shown}{more} in corpus {corpus!r}. Nothing was changed. See `colmlm corpus documents`."
    )


@NotFound.coded("CorpusNotFound", "No such corpus")
def corpus_not_found(corpus: str) -> str:
    return f"No corpus {corpus!r}. Nothing was changed. List the corpora with `colmlm corpus list`."


@Conflict.coded("FactDeleted", "Fact is deleted")
def fact_deleted(fact_ids: Sequence[int]) -> str:
    return f"These facts are deleted: {format_list(fact_ids)}. Nothing was changed. Run `colmlm facts restore` first."


@Conflict.coded("FactNotDeleted", "Fact is not deleted")
def fact_not_deleted(fact_ids: Sequence[int]) -> str:
    return f"These facts are not deleted: {format_list(fact_ids)}. Nothing was changed. Leave them out."


@Conflict.coded("FactErased", "Fact is erased")
def fact_erased(fact_ids: Sequence[int]) -> str:
    return f"These facts are erased for good: {format_list(fact_ids)}. Nothing was changed. Leave them out."


@Conflict.coded("FactSuppressed", "Fact was erased before")
def fact_suppressed(erased: str, outcome: str) -> str:
    return (
        f"{erased} was erased before, so {outcome}. Nothing was changed. Pass --allow-erased (allow_erased) to have it "
        "again."
    )


@Conflict.coded("FactChanged", "Fact was changed meanwhile")
def fact_changed(fact_ids: Sequence[int]) -> str:
    which = name_facts(fact_ids, "were")
    return f"Meanwhile {which} changed. Your edit was not made. See `colmlm facts show` and retry."


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
        f'{who} this already ("{said}"). Nothing was changed. Edit it, or pass --anyway (anyway) to have both.'
        if fact_ids
        else "Two of these facts answer one question with two values. Nothing was changed. Leave one out, or pass "
        "--anyway (anyway) to have both."
    )


@Conflict.coded("SpanTaken", "Span is taken")
def span_taken(document_id: int, fact_ids: Sequence[int]) -> str:
    return (
        f"The span in document {document_id} overlaps fact {format_list(fact_ids)}. Deleted facts count too. "
        "Nothing was changed. Choose another span, or run `colmlm facts restore` and move the restored fact."
    )


@Conflict.coded("DocumentReplaced", "Document was replaced")
def document_replaced(document_id: int) -> str:
    return (
        f"Document {document_id} is out of date, since a newer text replaced it. Nothing was changed. Use the "
        "current document: `colmlm corpus documents` lists those."
    )


@Conflict.coded("TextsMissing", "Texts are missing")
def texts_missing(corpus: str, documents: int) -> str:
    return (
        f"Corpus {corpus!r} came with a release, and {count_of(documents, 'document')} of it have no text to export. "
        "Nothing was written. Add these documents again with their texts, or use `colmlm backup create`."
    )


@Conflict.coded("FolderEmpty", "Folder has none of the files")
def folder_empty(corpus: str, files: int) -> str:
    return (
        f"The folder has none of {count_of(files, 'file')} that corpus {corpus!r} was synced from. Nothing was "
        "changed. Check the path. If they were deleted on purpose, pass --allow-empty (allow_empty)."
    )


@Conflict.coded("FolderOther", "Corpus follows another folder")
def folder_other(corpus: str, place: str) -> str:
    return (
        f"Corpus {corpus!r} follows {place}, so this sync would remove its documents. Nothing was changed. Name "
        "another corpus, or pass --move (move) to follow this folder instead."
    )


@Invalid.coded("InvalidSpan", "Invalid span")
def invalid_span(document: int, cause: str) -> str:
    return f"No span of document {document}: {cause}. Nothing was changed. See `colmlm corpus documents {document}`."


@Invalid.coded("InvalidRelease", "Invalid release")
def invalid_release(cause: str, remedy: str, kept: str = "Nothing was imported.") -> str:
    return f"The release cannot be imported: {cause}. {kept} {remedy}"


# The change log, outputs, and the base as of a change.


@NotFound.coded("NoSuchChange", "No such change")
def no_such_change(seq: int, head: int) -> str:
    return f"No change {seq}. The log goes from 0 to {head}. Nothing was changed. See `colmlm log list`."


@NotFound.coded("NoOpenBreak", "No open break of the log")
def no_open_break(seqs: Sequence[int]) -> str:
    return f"The log has no break without a seal at {format_list(seqs)}. Nothing was changed. See `colmlm log verify`."


@Conflict.coded("NotUndoable", "Change cannot be undone")
def not_undoable(seq: int, cause: str, fact_ids: Sequence[int] = ()) -> str:
    of = f" {format_list(fact_ids)}" if fact_ids else ""
    remedy = remedy_after(cause, "Look at `colmlm log list`, and undo a later change first.")
    return f"Change {seq} cannot be undone: {cause}{of}. Nothing was changed.{remedy}"


@NotFound.coded("GenerationNotFound", "No such generation")
def generation_not_found(generation_id: int) -> str:
    return f"No stored output {generation_id}. Nothing was changed. List outputs with `colmlm trace outputs`."


@Invalid.coded("InvalidSplice", "Lookup does not fit")
def invalid_splice(ordinal: int, cause: str) -> str:
    return (
        f"Lookup {ordinal} of the output does not fit what is stored: {cause}. The output was not stored. Send its "
        "query, outcome, fact and version as they were at the lookup, and its place in the output."
    )


@Conflict.coded("NotAnsweredThen", "Not answered then")
def not_answered_then(seq: int, cause: str) -> str:
    return (
        f"No question can be answered as of change {seq}: {cause}. Nothing was changed. Name another change with "
        "--as-of (as_of). `colmlm log list --kind activate` shows since when there are answers."
    )


@Invalid.coded("PastTooLarge", "Too much of the past at once")
def past_too_large(rows: int, keys: int, limit: int) -> str:
    remedy = f"Ask {count_of(limit // keys, 'question')} at a time" if keys <= limit else "Ask a smaller base"
    return (
        f"This search of an earlier state is too large. It compares {count_of(rows, 'question')} with "
        f"{count_of(keys, 'vector')}: {count_of(rows * keys, 'comparison')}, of at most {limit:,}. "
        f"Nothing was changed. {remedy}, or raise COLMLM_AS_OF_MAX_SCORES."
    )


# Keysets.


@NotFound.coded("KeysetNotFound", "No such keyset")
def keyset_not_found(keyset_id: int) -> str:
    return f"No keyset {keyset_id}. Nothing was changed. List the keysets with `colmlm keysets list`."


@Conflict.coded("KeysetNotReady", "Keyset is not ready")
def keyset_not_ready(keyset_id: int, state: str) -> str:
    keys = "--checkpoint DIR" if state == "retired" else keyset_id
    return f"Keyset {keyset_id} is {state}, not ready. Nothing was changed. Run `colmlm keysets fill {keys}`."


@Conflict.coded("KeysetActive", "Keyset is active")
def keyset_active(keyset_id: int) -> str:
    return f"Keyset {keyset_id} is active. Nothing was changed. First activate another (`colmlm keysets activate`)."


@Conflict.coded("GateRefused", "Keyset has not passed its gate")
def gate_refused(keyset_id: int, cause: str) -> str:
    which = f"Keyset {keyset_id} was not activated: {cause}. Nothing was changed."
    return f"{which} Mend that and run `colmlm keysets check {keyset_id}`, or pass --force, which the log records."


@Invalid.coded("InvalidKeys", "Invalid keys")
def invalid_keys(checkpoint_id: str, cause: str) -> str:
    return f"Checkpoint {checkpoint_id!r} made invalid keys: {cause}. They were not stored. Use another --checkpoint."


@OutOfReach.coded("KeysLeftElsewhere", "Vectors left on Milvus")
def keys_left_elsewhere(keyset_id: int, cause: str) -> str:
    return (
        f"Keyset {keyset_id} was retired, but copies of its keys are still on the Milvus server: {cause.rstrip('.')}. "
        "Delete them with `colmlm doctor --data --repair`. The next erasure deletes them too."
    )


# Forgetting and erasing.


@NotFound.coded("ForgetRunNotFound", "No such forget run")
def forget_run_not_found(run_id: int) -> str:
    return f"No forget run {run_id}. Nothing was changed. List the runs with `colmlm forget list`."


@Conflict.coded("ForgetRunState", "Forget run in another state")
def forget_run_state(run_id: int, found: str, wanted: str) -> str:
    return f"Forget run {run_id} must be {wanted}, but is {found}. Nothing was changed. Run `colmlm forget plan` again."


@NotFound.coded("NothingSelected", "Nothing selected")
def nothing_selected() -> str:
    return "No live fact matches the selector. Nothing was planned. Widen it, or pass --allow-empty (allow_empty)."


@Invalid.coded("InvalidSelector", "Invalid selector")
def invalid_selector(cause: str) -> str:
    remedy = remedy_after(cause, "Correct the selector and try again.")
    return f"The selector cannot be used: {cause}. Nothing was changed.{remedy}"


@Conflict.coded("PlanStale", "Plan is stale")
def plan_stale(run_id: int, fact_ids: Sequence[int], places: str = "") -> str:
    whose, command = (
        ("for this person", "person find") if places else (f"of forget run {run_id}", "forget plan")
    )
    return (
        f"The plan {whose} is out of date: {places or name_facts(fact_ids, 'were')} edited or deleted since. "
        f"Nothing was changed. Make a new plan with `colmlm {command}` and check it."
    )


@Conflict.coded("PlanUnderWay", "Another plan is under way")
def plan_under_way() -> str:
    return "The server makes one plan of forgetting at a time. Nothing was changed. Try again in a minute."


@Conflict.coded("PlanTooLarge", "Too many facts for a server's plan")
def plan_too_large(live: int, largest: int) -> str:
    return (
        f"A plan would load the keys of {count_of(live, 'live fact')}, and this server allows {largest}. Nothing was "
        "changed. Run `colmlm forget plan` on the machine of the database, or raise COLMLM_PLAN_MAX_FACTS."
    )


@NotFound.coded("ErasureNotFound", "No such erasure")
def erasure_not_found(seq: int) -> str:
    return f"Change {seq} is no erasure. Nothing was changed. List them with `colmlm log list --kind erase`."


@NotFound.coded("ErasureRequestNotFound", "No such request to erase")
def erasure_request_not_found(erasure_request_id: int) -> str:
    return f"No erasure request {erasure_request_id}. Nothing was changed. See `colmlm erase settle`."


@Conflict.coded("ErasureRequestState", "Request to erase was decided")
def erasure_request_state(erasure_request_id: int, state: str) -> str:
    return f"Erasure request {erasure_request_id} is {state} already. Nothing was changed. See `colmlm erase settle`."


@Conflict.coded("SecondPersonNeeded", "A second person is needed")
def second_person_needed(what: str, setting: str, command: str) -> str:
    return (
        f"{what} needs two people here ({setting}): one asks for it, and the holder of another token approves it. "
        f"Nothing was changed. Put the secret of your token into COLMLM_TOKEN, and ask with `{command}`."
    )


@Conflict.coded("SamePerson", "Asked by the same token")
def same_person(what: str, name: str, command: str) -> str:
    return (
        f"{what} was asked for with the token {name!r}, so another token must approve it. Nothing was changed. Ask "
        f"somebody else to run `{command}`."
    )


@Conflict.coded("SignOnRepeated", "Sign-on was used")
def sign_on_repeated() -> str:
    return "This sign-on has begun a session already. Nothing was changed. Sign in again."


@Invalid.coded("AdminKeyNeeded", "An admin's token is needed")
def admin_key_needed() -> str:
    return (
        "COLMLM_TOKEN holds no secret of a token that may do this, which needs two people. Nothing was changed. Put "
        "the secret of your token there. `colmlm tokens create NAME --role admin` makes one."
    )


@Invalid.coded("SignerNeeded", "A signer must be named")
def signer_needed() -> str:
    return (
        "The signature was not checked: anybody can sign with a key of their own, and none was named that must have "
        "signed. Nothing was changed. Name the signer's key file with --public-key (public_key), or its fingerprint "
        "with --key (key)."
    )


# Questions and misses.


@NotFound.coded("QuestionNotFound", "No such question")
def question_not_found(question_ids: Sequence[int]) -> str:
    which = f"No question {format_list(question_ids)} in this set. Nothing was changed."
    return f"{which} List its questions with `colmlm questions list NAME`."


@NotFound.coded("QuestionRunNotFound", "No such run")
def question_run_not_found(run_id: int) -> str:
    return (
        f"No run {run_id} of this question set is stored. Nothing was changed. List the stored runs with "
        "`colmlm questions list NAME --runs`."
    )


@NotFound.coded("MissGroupNotFound", "No such group of misses")
def miss_group_not_found(group_ids: Sequence[int]) -> str:
    return (
        f"No group of unanswered questions {format_list(group_ids)}. Nothing was changed. List the groups with "
        "`colmlm misses list`."
    )


@Conflict.coded("MissGroupState", "Decided already")
def miss_group_state(group_ids: Sequence[int], state: str) -> str:
    return (
        f"These groups of unanswered questions are {state} already: {format_list(group_ids)}. Nothing was changed. "
        "Leave them out."
    )


# Decoding.


@Invalid.coded("PromptRefused", "Prompt refused")
def prompt_refused(cause: str) -> str:
    remedy = remedy_after(cause, "Correct the prompt and send it again.")
    return f"The prompt cannot be read: {cause}. No text was generated.{remedy}"


@Invalid.coded("ContextLengthExceeded", "Prompt too long")
def context_length_exceeded(num_tokens: int, most: int) -> str:
    return (
        f"The prompt has {count_of(num_tokens, 'token')}, and a prompt may have {most}. No text was generated. Shorten "
        "it. If the model reads more, raise COLMLM_PROMPT_MAX_TOKENS."
    )


@Invalid.coded("InvalidDecoding", "Invalid settings of decoding")
def invalid_decoding(cause: str) -> str:
    remedy = remedy_after(cause, "Correct the settings and try again.")
    return f"These settings cannot be used: {cause}. No text was generated.{remedy}"


@Waited.coded("DecoderBusy", "Decoder busy")
def decoder_busy(waiting: int, retry_after: int) -> str:
    return (
        f"The model is generating for other requests, and {waiting} more wait. This request ended without an output. "
        f"Nothing was stored. Try again in {retry_after} s."
    )


# Tokens, requests, webhooks and jobs.


@NotFound.coded("ApiKeyNotFound", "No such token")
def api_key_not_found(name: str) -> str:
    return f"No token is named {name!r}. Nothing was changed. List the tokens with `colmlm tokens list`."


@Invalid.coded("NeedsAllCorpora", "Needs a right on all corpora")
def needs_all_corpora(corpora: Sequence[str]) -> str:
    return (
        f"This token has its rights on {', '.join(corpora)} alone, and this needs them on all corpora. Nothing was "
        "changed. Use a token that was made without --corpus."
    )


@OutOfReach.coded("ScopesUnavailable", "Rights on corpora cannot be checked")
def scopes_unavailable(cause: str) -> str:
    return (
        f"The database does not let this program limit a token to its corpora: {cause}. Nothing was answered or made. "
        "See 'Keep a token to some corpora' in docs/production/access.md for what its administrator has to run."
    )


@Conflict.coded("ApiKeyEnded", "Token has ended")
def api_key_ended(name: str, state: str) -> str:
    remedy = (
        "Run `colmlm tokens rotate`" if state == "expired" else "Run `colmlm tokens create` with another name"
    )
    return f"The token {name!r} is {state}. Nothing was changed. {remedy}."


@Conflict.coded("RequestUnderWay", "Request is under way")
def request_under_way() -> str:
    return "The request with this Idempotency-Key is still running. Nothing was repeated. Send it again soon."


@Invalid.coded("RequestDiffers", "Another request had this key")
def request_differs() -> str:
    return "This Idempotency-Key belongs to another request. Nothing was changed. Use a new key."


@Conflict.coded("AnswerGone", "Answer is not kept")
def answer_gone(seq: int | None) -> str:
    done = "was carried out" if seq is None else f"was carried out (change {seq} is its last)"
    return (
        f"The request with this Idempotency-Key {done}, but its answer was not kept. Nothing was repeated. See "
        "`colmlm log list`, and use a new key for a new request."
    )


@NotFound.coded("WebhookNotFound", "No such webhook")
def webhook_not_found(webhook_id: int) -> str:
    return f"No webhook {webhook_id}. Nothing was changed. List the webhooks with `colmlm webhooks list`."


@Conflict.coded("WebhookState", "Webhook is in another state")
def webhook_state(webhook_id: int, state: str) -> str:
    return f"Webhook {webhook_id} is {state} already, so nothing was changed and nothing is left to do."


@NotFound.coded("JobNotFound", "No such job")
def job_not_found(job_id: int) -> str:
    return f"No job {job_id}. Nothing was changed. List the jobs with `colmlm jobs list`."


@Conflict.coded("JobFinished", "Job has ended")
def job_finished(job_id: int, state: str) -> str:
    return f"Job {job_id} has ended already: {state}. Nothing was changed. See `colmlm jobs list {job_id}`."


@KBError.coded("JobGivenUp", "Job given up")
def job_given_up(job_id: int, attempts: int) -> str:
    return (
        f"Job {job_id} ended {count_of(attempts, 'worker')}, usually for lack of memory. Its committed changes are "
        "kept. Read the workers' logs, free memory, and start it again with `colmlm jobs start`."
    )


@NotFound.coded("UploadNotFound", "No such upload")
def upload_not_found(upload_id: str) -> str:
    return (
        f"No upload {upload_id!r} exists. Its job has ended, or no job used it within a day. Nothing was changed. "
        "Upload the file again."
    )


@Invalid.coded("UploadTooLarge", "Upload too large")
def upload_too_large(cause: str) -> str:
    return f"{cause}. The upload was not kept. Split the file, or raise COLMLM_UPLOAD_MAX_MB."


# Backups, the database and the machine.


@Conflict.coded("DatabaseNotEmpty", "Database is not empty")
def database_not_empty(table: str) -> str:
    return (
        f"A backup needs an empty database, but this one has rows in {table!r}. Nothing was restored. Name a new "
        "database with COLMLM_HOME or COLMLM_DATABASE_URL, then run `colmlm db migrate`."
    )


@Conflict.coded("NewerLogNeeded", "The newer log is needed")
def newer_log_needed(seq: int, at: str) -> str:
    return (
        f"The backup ends with change {seq}, made {at}. Facts that were erased later would come back. Nothing was "
        "restored. Pass the newer log (`colmlm log export --changes`) with --change-log. If there is none, pass "
        "--without-later-erasures."
    )


@EvidenceRefused.coded("BackupRefused", "Backup refused")
def backup_refused(file: str, cause: str) -> str:
    return (
        f"{file} was refused: {cause}. Nothing was restored. Check another copy with `colmlm backup verify`."
    )


@OutOfReach.coded("StandbyAsked", "A standby was asked")
def standby_asked() -> str:
    return (
        "The database is a standby and may still show deleted facts, so nothing was answered or changed. Set "
        "COLMLM_DATABASE_URL to the primary. If that is gone, promote this server (pg_ctl promote)."
    )


@OutOfReach.coded("NoKnowledgeBase", "No knowledge base here")
def no_knowledge_base(home: str) -> str:
    return (
        f"There is no knowledge base in {home}, and none was made. Begin one with `colmlm up`, or set COLMLM_HOME to "
        "the folder of yours."
    )


@Waited.coded("LogHeld", "The change log is held")
def log_held(holder: str | None, waited_seconds: float) -> str:
    by = f"{holder} holds it" if holder else "It is free again now"
    return (
        f"An edit waited {waited_seconds:g} s for the lock of the change log. {by}. Nothing was changed. Try again, "
        "or raise COLMLM_LOCK_TIMEOUT_SECONDS."
    )


@Waited.coded("Collided", "Blocked by other work")
def collided() -> str:
    return "Other work blocked this work, so the database stopped it. Nothing was changed. Try again."


@Waited.coded("StatementTooLong", "Took too long")
def statement_too_long() -> str:
    return (
        "The database took too long to answer this, so it ended the work on it. Nothing was changed. Ask for less, or "
        "raise COLMLM_STATEMENT_TIMEOUT_SECONDS. For a command on this machine, raise COLMLM_REPORT_TIMEOUT_SECONDS."
    )


@StorageRefused.coded("StorageFull", "Disk full")
def storage_full(what: str) -> str:
    return (
        f"No space is left for {what}. It was not written. Free some space and try again. `colmlm doctor` shows the "
        "free space, and `colmlm db sizing` shows the need."
    )


@StorageRefused.coded("StorageReadOnly", "Cannot be written")
def storage_read_only(what: str) -> str:
    return (
        f"This program cannot write to {what}. It was not written. Mount it for writing, make this user its owner, or "
        "name another one. `colmlm doctor` shows the cause."
    )


@KBError.coded("ReaderUnavailable", "Reader unavailable")
def reader_unavailable(cause: str) -> str:
    return (
        f"The process that reads files did not start: {cause}. Nothing was changed. Free some memory. If you lowered "
        "COLMLM_DOCUMENT_MEMORY_MB, raise it again."
    )


@OutOfReach.coded("ClusterUnavailable", "Cluster unavailable")
def cluster_unavailable(where: str, cause: str) -> str:
    return (
        f"No Ray cluster answers at {where}: {cause}. No work was started there. Check the address, run `ray status` "
        "there, and use the same release of Ray on both sides."
    )
