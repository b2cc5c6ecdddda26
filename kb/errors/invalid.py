"""Errors of requests that make no sense as they are."""

from __future__ import annotations

from colmlm.kb.errors.root import Invalid


class InvalidValue(Invalid):
    title = "Invalid value"

    def __init__(self, field: str, cause: str) -> None:
        self.field = field
        super().__init__(f"The {field} cannot be stored: {cause}.")


class InvalidSpan(Invalid):
    title = "Invalid span"

    def __init__(self, document_id: int, cause: str) -> None:
        self.document_id = document_id
        super().__init__(f"No span of document {document_id}: {cause}. Nothing was done.")


class InvalidSelector(Invalid):
    title = "Invalid selector"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The selector cannot be used: {cause}.")


class InvalidQuery(Invalid):
    title = "Invalid query"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The query cannot be searched: {cause}.")


class InvalidQuestions(Invalid):
    title = "Invalid questions"

    def __init__(self, cause: str) -> None:
        super().__init__(f"These questions cannot be asked: {cause}.")


class PastTooLarge(Invalid):
    title = "Too much of the past at once"

    def __init__(self, rows: int, keys: int, limit: int) -> None:
        self.rows, self.keys, self.limit = rows, keys, limit
        remedy = f"Ask {limit // keys:,} queries at a time" if keys <= limit else "Ask a base with fewer keys"
        super().__init__(
            f"As of a change each query is compared with every key: {rows:,} queries with {keys:,} keys are "
            f"{rows * keys:,} scores, and {limit:,} are taken at once. Nothing was looked up. {remedy}, "
            "or raise COLMLM_AS_OF_MAX_SCORES."
        )


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


class InvalidRelease(Invalid):
    title = "Invalid release"

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"The release cannot be imported: {cause}. {remedy}")


class PromptRefused(Invalid):
    title = "Prompt refused"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The prompt cannot be read: {cause}. Nothing was decoded.")


class InvalidDecoding(Invalid):
    title = "Invalid settings of decoding"

    def __init__(self, cause: str) -> None:
        super().__init__(f"This cannot be decoded as it says: {cause}. Nothing was decoded.")


class ContextLengthExceeded(Invalid):
    title = "Prompt too long"

    def __init__(self, num_tokens: int, most: int) -> None:
        super().__init__(
            f"A prompt may have {most} tokens here, and this one has {num_tokens}. Nothing was decoded; shorten it, "
            "or raise COLMLM_PROMPT_MAX_TOKENS where the model reads more."
        )


class NotHeeded(Invalid):
    """A parameter that has no effect here. `parameter` is named as in Python; `why` says what to do."""

    title = "Cannot be heeded"

    def __init__(self, parameter: str, why: str) -> None:
        self.parameter, self.why = parameter, why
        super().__init__(f"`{parameter}`: {why}")


class RequestDiffers(Invalid):
    title = "Another request had this key"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key came with another request before. Nothing was done; use a new key for each request."
        )


class AdminKeyNeeded(Invalid):
    title = "An admin's token is needed"

    def __init__(self) -> None:
        super().__init__(
            "An erasure by two is asked for and decided with tokens of admins. Nothing was done; "
            "put the secret of one into COLMLM_TOKEN."
        )


class InvalidWork(Invalid):
    title = "Invalid job"

    def __init__(self, kind: str, cause: str) -> None:
        self.kind = kind
        super().__init__(f"A job {kind!r} cannot be made of this: {cause}. Nothing was started.")


class UploadTooLarge(Invalid):
    title = "Upload too large"

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}. Nothing was kept; split the file, or raise COLMLM_UPLOAD_MAX_MB.")


class SignerNeeded(Invalid):
    title = "A signer must be named"

    def __init__(self) -> None:
        super().__init__(
            "Anybody can sign with a key of their own. Name the key that must have signed, known from elsewhere: "
            "--public-key (public_key) or --key (key); or ask the base that issued it, which knows its own."
        )


class WebhookRefused(Invalid):
    title = "Webhook refused"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"Nothing is sent to this address: {why}.")
