"""Files on their way to a job of a knowledge base elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colmlm.api.client.api import Api
from colmlm.kb.jobs.uploads import Upload
from colmlm.kb.nouns.telling import Advance

_BLOCK = 1 << 18


def upload(api: Api, file: Path) -> Upload:
    """The file as the server keeps it for a job, or a day. It is sent again only where it was turned away."""
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
    with api.telling.progress(f"Uploading {file.name} (KB)") as advance:
        response = api.connection.request(
            "POST",
            "/v1/uploads",
            is_repeatable=False,
            params={"name": file.name},
            headers=headers,
            content=_Blocks(file, advance),
        )
    return api.read(response.content, Upload)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The file from its start, each time it is sent."""

    file: Path
    advance: Advance

    def __iter__(self) -> Iterator[bytes]:
        total, sent = self.file.stat().st_size, 0
        with self.file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                yield block
                sent += len(block)
                self.advance(sent // 1000, total // 1000)
