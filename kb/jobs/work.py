"""The work of a job: its arguments, the right that it needs, and the lock that keeps others out meanwhile."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from colmlm.kb.access.records import Right

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


Rate = Annotated[float, Meta(ge=0.001, le=0.5)]


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a job. Jobs with the same `lock` run one after the other; None locks nothing."""

    kind: ClassVar[str]
    right: ClassVar[Right]

    @property
    def lock(self) -> str | None:
        return self.kind

    @property
    def uploads(self) -> tuple[str, ...]:
        """The uploaded files that this work reads, and that are removed when it is over."""
        return ()
