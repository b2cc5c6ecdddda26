"""The kinds of jobs: the arguments of each, the right that it needs, and the lock that keeps others out meanwhile.

The arguments are stored with the job and shown to readers, so they hold no secret and no text of a document.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta

from colmlm.kb.access.records import Right
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.errors import InvalidWork
from colmlm.kb.jobs.records import MAX_ID, FileName, Id, Kinds, Name, Rate, Reason, Share, UploadId, Work
from colmlm.kb.keys.records import Adapting
from colmlm.kb.lookup.options import CorporaNames

# The kinds of jobs that read raw documents: uploaded ones, and those of a folder.


class RawWork(Work, frozen=True, kw_only=True):
    """Choose how raw documents are read and annotated, into which corpus.

    With `questions` each fact gets one; with `verify` those are dropped that do not lead the reader back to their fact.
    `id_field`, `title_field` and `text_field` name the fields of records where they are not the usual ones.
    """

    corpus: Name
    reason: Reason | None = None
    questions: bool = False
    verify: bool = True
    span_threshold: Share | None = None
    encoding: FileName | None = None
    id_field: Name | None = None
    title_field: Name | None = None
    text_field: Name | None = None

    def __post_init__(self) -> None:
        try:
            "x".encode(self.encoding or "utf-8")
        except LookupError:
            raise ValueError(
                f"there is no encoding {self.encoding!r}. Name one such as utf-8 or latin-1"
            ) from None

    @property
    def fields(self) -> FieldNames:
        return FieldNames(self.id_field, self.title_field, self.text_field)

    @property
    def lock(self) -> str:
        return f"corpus {self.corpus}"


class Documents(RawWork, frozen=True, kw_only=True):
    """Read uploaded raw documents, annotate their facts, ingest and key them, as `colmlm corpus add` does.

    With `questions` each fact gets one; with `verify` those are dropped that do not lead the reader back to their fact.
    `id_field`, `title_field` and `text_field` name the fields of records where they are not the usual ones.
    """

    kind: ClassVar[str] = "documents"
    right: ClassVar[Right] = Right.edit
    upload_ids: Annotated[list[UploadId], Meta(min_length=1, max_length=100)]

    @property
    def uploads(self) -> tuple[str, ...]:
        return tuple(self.upload_ids)


class Sync(RawWork, frozen=True, kw_only=True):
    """Sync a corpus with a folder, as `colmlm corpus sync` does: add what is new or changed, take out what is gone.

    `folder` names a directory of the folder `folders` of the worker's home, or a link there. Where none of the files of
    the last sync is left it refuses, unless `allow_empty`, and where the corpus follows another folder, unless `move`.
    """

    kind: ClassVar[str] = "sync"
    right: ClassVar[Right] = Right.edit
    folder: FileName
    allow_empty: bool = False
    move: bool = False


class Rekey(Work, frozen=True, kw_only=True):
    """Give keys to facts that have none: in a keyset, made by its own checkpoint; or in the keyset of a checkpoint.

    `checkpoint` names a directory of the knowledge base's `checkpoints` folder, by default the worker's own; `kinds`
    is as in `colmlm keysets fill`. Predicted keys are made true. With `adapt` keys are predicted from
    `from_keyset`'s instead, by default the active's, by a map that is fitted on about `sample` facts.
    """

    kind: ClassVar[str] = "rekey"
    right: ClassVar[Right] = Right.train
    keyset_id: Id | None = None
    checkpoint: FileName | None = None
    corpus: Name | None = None
    kinds: Kinds = "context"
    adapt: bool = False
    from_keyset: Id | None = None
    sample: Annotated[int, Meta(ge=10, le=1_000_000)] | None = None
    method: Literal["auto", "procrustes", "ridge"] | None = None

    def __post_init__(self) -> None:
        if self.keyset_id is not None and self.checkpoint is not None:
            raise ValueError("keyset_id and checkpoint exclude each other. Give one of them")
        if not self.adapt and self.adapting:
            raise ValueError("from_keyset, sample and method need adapt. Set adapt, or leave them out")
        if self.adapt and self.kinds != "context":
            raise ValueError("kinds is not for adapt, which makes those of the other keyset. Leave kinds out")

    @property
    def adapting(self) -> Adapting:
        """The given settings for predicting keys. The others have defaults."""
        given = {"from_keyset_id": self.from_keyset, "sample": self.sample, "method": self.method}
        return cast("Adapting", {name: value for name, value in given.items() if value is not None})

    @property
    def lock(self) -> str:
        return _keyset(self.keyset_id) if self.checkpoint is None else f"checkpoint {self.checkpoint}"


class Gate(Work, frozen=True, kw_only=True):
    """Measure a keyset against the gate and store the report; with `activate`, activate it if it passes.

    `questions` is a set of which at least `min_right` must be answered right with it, and at most `max_wrong` wrongly.
    """

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
    min_recall_kept: Share | None = None
    questions: FileName | None = None
    min_right: Share | None = None
    max_wrong: Share | None = None

    @property
    def lock(self) -> str:
        return _keyset(self.keyset_id)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that were given. For the others the gate has defaults."""
        names = (
            "sample", "min_recall_at_1", "min_recall_at_10", "max_facts_lost", "max_question_loss", "min_agreement",
            "min_recall_kept", "questions", "min_right", "max_wrong",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class Ingest(Work, frozen=True, kw_only=True):
    """Ingest an uploaded annotated file into a corpus; with `key`, give its facts keys of the worker's checkpoint."""

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


class CalibrateAnswers(Work, frozen=True, kw_only=True):
    """Choose the score from which answers are given, by the questions of a file, of a set and of these corpora.

    `wrong` is the rate of wrong answers that it aims at; `sample` is how many questions are asked at most.
    """

    kind: ClassVar[str] = "calibrate-answers"
    right: ClassVar[Right] = Right.edit
    upload_id: UploadId | None = None
    corpora: Annotated[list[Name], Meta(max_length=100)] = msgspec.field(default_factory=list)
    question_set: FileName | None = None
    wrong: Rate = 0.05
    sample: Annotated[int, Meta(ge=1, le=100_000)] = 300
    seed: Annotated[int, Meta(ge=0, le=MAX_ID)] = 0
    dry_run: bool = False
    reason: Reason = "calibrated"

    @property
    def uploads(self) -> tuple[str, ...]:
        return () if self.upload_id is None else (self.upload_id,)


class AskQuestions(Work, frozen=True, kw_only=True):
    """Ask all questions of a set, and store what came of each as a run.

    They are asked as `colmlm ask` does, in a `mode`, or with a `ranking` as a lookup does. With `accepted_only` no
    proposed fact answers, and of named `corpora` only what stands in these.
    """

    kind: ClassVar[str] = "ask-questions"
    right: ClassVar[Right] = Right.edit
    question_set: FileName
    mode: Literal["read", "paper"] = "read"
    ranking: Literal["key", "words", "reader"] | None = None
    threshold: Annotated[float, Meta(ge=-1, le=1)] | None = None
    accepted_only: bool = False
    corpora: CorporaNames = ()

    def __post_init__(self) -> None:
        if self.ranking is not None and self.mode != "read":
            raise ValueError("mode and ranking exclude each other. Give one of them")

    @property
    def lock(self) -> str:
        return f"questions {self.question_set}"


class VerifyForgetting(Work, frozen=True, kw_only=True):
    """Ask for the facts of an applied forget run with every check there is, and store the answers with the run."""

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
        return MakeBackup.kind  # so that no backup of this name is replaced meanwhile


class WriteSnapshot(Work, frozen=True, kw_only=True):
    """Bring the active keyset's index to the head of the change log and write it to disk."""

    kind: ClassVar[str] = "snapshot"
    right: ClassVar[Right] = Right.train


class Check(Work, frozen=True, kw_only=True):
    """Compare facts, keys, indexes, documents and the change log with one another; change nothing."""

    kind: ClassVar[str] = "fsck"
    right: ClassVar[Right] = Right.audit


class Compare(Work, frozen=True, kw_only=True):
    """Find all pairs of facts that contradict or say the same, by the words of their questions and by their keys.

    `radius` is the score from which keys of facts with different values make a contradiction.
    """

    kind: ClassVar[str] = "compare"
    right: ClassVar[Right] = Right.edit
    radius: Annotated[float, Meta(ge=-1, le=1)] | None = None


KINDS: dict[str, type[Work]] = {
    work.kind: work
    for work in (
        Rekey,
        Gate,
        Ingest,
        Documents,
        Sync,
        CalibrateAnswers,
        AskQuestions,
        VerifyForgetting,
        MakeBackup,
        VerifyBackup,
        WriteSnapshot,
        Check,
        Compare,
    )
}


_PLAIN = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
}


def work_of(kind: str, arguments: object, *, strict: bool = True) -> Work:
    """Make the work of a kind from these arguments; without `strict`, numbers may be strings. Raises `InvalidWork`."""
    if kind not in KINDS:
        raise InvalidWork(kind, f"there is no such kind. Name one of {', '.join(KINDS)}")
    try:
        return msgspec.convert(arguments, KINDS[kind], strict=strict)
    except msgspec.ValidationError as error:
        said = str(error.__cause__ or error)  # the cause: each argument is valid, but not their combination
        said = re.sub(r"`(\w+)`", lambda found: _PLAIN.get(found[1], found[0]), said)
        raise InvalidWork(kind, re.sub(r"(.*) - at `\$\.?(.*)`", r"\2: \1", said)) from error


def uploads_of(kind: str, arguments: object) -> tuple[str, ...]:
    """Give the uploads of a stored job; none where its kind is of another program version and unknown to this one."""
    try:
        return work_of(kind, arguments).uploads
    except InvalidWork:
        return ()


def _keyset(keyset_id: int | None) -> str:
    return "keyset of the worker" if keyset_id is None else f"keyset {keyset_id}"
