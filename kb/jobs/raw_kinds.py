"""The kinds of jobs that read raw documents: uploaded ones, and those of a folder."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from colmlm.kb.access.records import Right
from colmlm.kb.corpus.raw.fields import Fields
from colmlm.kb.jobs.work import FileName, Name, Reason, Share, UploadId, Work


class RawWork(Work, frozen=True, kw_only=True):
    """How raw documents are read and annotated, into which corpus.

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
            raise ValueError(f"there is no encoding {self.encoding!r}") from None

    @property
    def fields(self) -> Fields:
        return Fields(self.id_field, self.title_field, self.text_field)

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
