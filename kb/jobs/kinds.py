"""The kinds of work: what each takes, whose right it is, and what it excludes.

The arguments are stored with the job and shown, so nothing here is a secret, and nothing a text of a document.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from colmlm.kb.access.api_keys import Right
from colmlm.kb.errors import InvalidWork

MAX_ID = 2**63 - 1

Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
Name = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$")
]
Reason = Annotated[
    str,
    Meta(
        max_length=1000, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", description="Why; it stays in the change log"
    ),
]
FileName = Annotated[
    str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", description="A name, no path")
]
UploadId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Kinds = Literal["context", "context,question"]
Share = Annotated[float, Meta(ge=0, le=1)]


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a job is to do. Two jobs of one `lock` take turns; None excludes nothing."""

    kind: ClassVar[str]
    right: ClassVar[Right]

    @property
    def lock(self) -> str | None:
        return self.kind

    @property
    def uploads(self) -> tuple[str, ...]:
        """Uploaded files that this work reads, and that go when it is over."""
        return ()


class Rekey(Work, frozen=True, kw_only=True):
    """Key what has no key: in a keyset, with its own checkpoint; or with a checkpoint, by default the worker's own.

    `checkpoint` names a directory of the knowledge base's `checkpoints` folder; `kinds` is as in `colmlm rekey`.
    """

    kind: ClassVar[str] = "rekey"
    right: ClassVar[Right] = Right.train
    keyset_id: Id | None = None
    checkpoint: FileName | None = None
    corpus: Name | None = None
    kinds: Kinds = "context"

    def __post_init__(self) -> None:
        if self.keyset_id is not None and self.checkpoint is not None:
            raise ValueError("name a keyset or a checkpoint, not both")

    @property
    def lock(self) -> str:
        return _keyset(self.keyset_id) if self.checkpoint is None else f"checkpoint {self.checkpoint}"


class Gate(Work, frozen=True, kw_only=True):
    """Measure a keyset and keep the report; with `activate`, let it answer if it passes."""

    kind: ClassVar[str] = "gate"
    right: ClassVar[Right] = Right.train
    keyset_id: Id
    activate: bool = False
    reason: Reason = "gate passed"
    sample: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    min_recall_at_1: Share | None = None
    min_recall_at_10: Share | None = None
    max_facts_lost: Annotated[int, Meta(ge=0, le=MAX_ID)] | None = None
    max_question_loss: Share | None = None
    min_agreement: Share | None = None

    @property
    def lock(self) -> str:
        return _keyset(self.keyset_id)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that were given; for the others the gate's own hold."""
        names = ("sample", "min_recall_at_1", "min_recall_at_10", "max_facts_lost", "max_question_loss")
        given = {name: getattr(self, name) for name in (*names, "min_agreement")}
        return {name: value for name, value in given.items() if value is not None}


class Ingest(Work, frozen=True, kw_only=True):
    """Take an uploaded annotated file into a corpus; with `key`, give its facts keys of the worker's checkpoint."""

    kind: ClassVar[str] = "ingest"
    right: ClassVar[Right] = Right.edit
    upload_id: UploadId
    corpus: Name
    format: Literal["annotated", "parquet", "squad"] = "annotated"
    reason: Reason | None = None
    key: bool = False
    commit_every: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None

    @property
    def lock(self) -> str:
        return f"corpus {self.corpus}"

    @property
    def uploads(self) -> tuple[str, ...]:
        return (self.upload_id,)


class Documents(Work, frozen=True, kw_only=True):
    """Read uploaded raw documents, mark their facts, take them in and key them: what `colmlm corpus add` does."""

    kind: ClassVar[str] = "documents"
    right: ClassVar[Right] = Right.edit
    upload_ids: Annotated[list[UploadId], Meta(min_length=1, max_length=100)]
    corpus: Name
    reason: Reason | None = None
    questions: bool = True
    span_threshold: Share | None = None
    encoding: FileName | None = None

    def __post_init__(self) -> None:
        try:
            "x".encode(self.encoding or "utf-8")
        except LookupError:
            raise ValueError(f"there is no encoding {self.encoding!r}") from None

    @property
    def lock(self) -> str:
        return f"corpus {self.corpus}"

    @property
    def uploads(self) -> tuple[str, ...]:
        return tuple(self.upload_ids)


class VerifyForgetting(Work, frozen=True, kw_only=True):
    """Ask for the facts of an applied forget run in every way there is, and keep the answer with the run."""

    kind: ClassVar[str] = "verify"
    right: ClassVar[Right] = Right.audit
    run_id: Id
    sample: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    model: bool = True

    @property
    def lock(self) -> str:
        return f"forget run {self.run_id}"


class MakeBackup(Work, frozen=True, kw_only=True):
    """Write a backup into the folder `backups` of the worker's home."""

    kind: ClassVar[str] = "backup"
    right: ClassVar[Right] = Right.admin
    name: FileName
    replace: bool = False


class VerifyBackup(Work, frozen=True, kw_only=True):
    """Read a backup of the folder `backups` to its last byte and compare every checksum."""

    kind: ClassVar[str] = "verify-backup"
    right: ClassVar[Right] = Right.admin
    name: FileName

    @property
    def lock(self) -> str:
        return MakeBackup.kind  # not while one of this name is replaced


class WriteSnapshot(Work, frozen=True, kw_only=True):
    """Bring the active keyset's index to the head of the change log and write it to disk."""

    kind: ClassVar[str] = "snapshot"
    right: ClassVar[Right] = Right.train


class Check(Work, frozen=True, kw_only=True):
    """Compare facts, keys, indexes, documents and the change log with one another; change nothing."""

    kind: ClassVar[str] = "fsck"
    right: ClassVar[Right] = Right.audit


KINDS: dict[str, type[Work]] = {
    work.kind: work
    for work in (
        Rekey,
        Gate,
        Ingest,
        Documents,
        VerifyForgetting,
        MakeBackup,
        VerifyBackup,
        WriteSnapshot,
        Check,
    )
}


def work_of(kind: str, arguments: object, *, strict: bool = True) -> Work:
    """The work of a kind with these arguments. Raises `InvalidWork`; not `strict` reads numbers from strings."""
    if kind not in KINDS:
        raise InvalidWork(kind, f"there are {', '.join(KINDS)}")
    try:
        return msgspec.convert(arguments, KINDS[kind], strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidWork(kind, str(error)) from error


def uploads_of(kind: str, arguments: object) -> tuple[str, ...]:
    """The uploads of a stored job; none where another release stored it, whose kinds were others."""
    try:
        return work_of(kind, arguments).uploads
    except InvalidWork:
        return ()


def _keyset(keyset_id: int | None) -> str:
    return "keyset of the worker" if keyset_id is None else f"keyset {keyset_id}"
