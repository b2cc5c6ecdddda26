"""Errors where what a request names does not exist."""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.kb.errors.root import NotFound, format_list


class FactNotFound(NotFound):
    title = "No such fact"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"No fact {format_list(fact_ids)}. Nothing was done; look ids up with `colmlm facts list`."
        )


class PairNotFound(NotFound):
    title = "No such pair"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"Facts {format_list(fact_ids)} are no contradiction that is kept here, or are noted like that already. "
            "Nothing was done; see `colmlm facts compare contradictions`, and with --held those where both hold."
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
            f"No change {seq}: the log goes from 0 (before the first change) to {head}. See `colmlm log list`."
        )


class ForgetRunNotFound(NotFound):
    title = "No such forget run"

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        super().__init__(f"No forget run {run_id}. List them with `colmlm forget list`.")


class ApiKeyNotFound(NotFound):
    title = "No such token"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"No token is named {name!r}. List the tokens with `colmlm tokens list`.")


class ErasureRequestNotFound(NotFound):
    title = "No such request to erase"

    def __init__(self, request_id: int) -> None:
        self.erasure_request_id = request_id
        super().__init__(f"No request to erase {request_id}. List them with `colmlm erase requests`.")


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


class NoOpenBreak(NotFound):
    title = "No open break of the log"

    def __init__(self, seqs: Sequence[int]) -> None:
        self.seqs = tuple(seqs)
        super().__init__(
            f"Nothing to seal at change {format_list(seqs)}: it fits, is sealed already, or is not there. Nothing was "
            "done; `colmlm log verify` names the breaks."
        )


class QuestionSetNotFound(NotFound):
    title = "No such set of questions"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"No set of questions is named {name!r}. List them with `colmlm questions list`.")


class QuestionNotFound(NotFound):
    title = "No such question"

    def __init__(self, question_ids: Sequence[int]) -> None:
        self.question_ids = tuple(question_ids)
        super().__init__(
            f"No question {format_list(question_ids)} in this set. Nothing was done; "
            "`colmlm questions show` lists the ids."
        )


class QuestionRunNotFound(NotFound):
    title = "No such run"

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        super().__init__(
            f"No run {run_id} of this set. List them with `colmlm questions show NAME --runs`; old ones are dropped."
        )


class MissGroupNotFound(NotFound):
    title = "No such group of misses"

    def __init__(self, group_ids: Sequence[int]) -> None:
        self.group_ids = tuple(group_ids)
        super().__init__(
            f"No group of misses {format_list(group_ids)}. Nothing was done; look ids up with `colmlm misses list`."
        )


class WebhookNotFound(NotFound):
    title = "No such webhook"

    def __init__(self, webhook_id: int) -> None:
        self.webhook_id = webhook_id
        super().__init__(f"No webhook {webhook_id}. List them with `colmlm webhooks list`.")


class ErasureNotFound(NotFound):
    title = "No such erasure"

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(f"Change {seq} is no erasure. List them with `colmlm log list --kind erase`.")
