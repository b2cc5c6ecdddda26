"""Where a Milvus server is, and what bounds its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

Uri = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s@]+$",
        description="an address that starts with http:// or https:// and holds no password",
    ),
]
Seconds = Annotated[float, Meta(ge=0.1, le=600, description="a number of seconds from 0.1 to 600")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MilvusAddress:
    """The server that holds the collections of keysets named `milvus:COLLECTION`. None is asked before one is named."""

    uri: Uri = field(default="http://127.0.0.1:19530", repr=False)  # a wrong one may hold a password
    token: str | None = field(default=None, repr=False)
    timeout_seconds: Seconds = 5.0
