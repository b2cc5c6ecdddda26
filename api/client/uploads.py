"""Uploads files for a job of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colmlm.api.client.api import Api
from colmlm.api.nouns.telling import Advance
from colmlm.kb.jobs.uploads import Upload

_BLOCK = 1 << 18


def upload(api: Api, file: Path, name: str | None = None) -> Upload:
    """Uploads a file, by default under its own name. The server keeps it until a job is done with it, or for a day.

    The request is retried only where the server did not accept it.
    """
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
    name = name or file.name
    with api.telling.progress(f"Uploading {name} (KB)") as advance:
        response = api.connection.request(
            "POST",
            "/v1/uploads",
            is_repeatable=False,
            params={"name": name},
            headers=headers,
            content=_Blocks(file, advance),
        )
    return api.read(response.content, Upload)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Gives the file's bytes from the start for each attempt to send it."""

    file: Path
    advance: Advance

    def __iter__(self) -> Iterator[bytes]:
        total, sent = self.file.stat().st_size, 0
        with self.file.open("rb") as stream:
            stream.seek(0)  # on macOS a second open of /dev/fd goes on where the first stopped
            while block := stream.read(_BLOCK):
                yield block
                sent += len(block)
                self.advance(sent // 1000, total // 1000)
