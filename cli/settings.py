"""The settings of a user of the command line: a model, a server, and secrets for them; read from `COLMLM_*` once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from colmlm.kb.store.settings import read_settings

Workers = Annotated[int, Meta(ge=1, le=10_000, description="a number of processes from 1 to 10000")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """The models that encode, decode and annotate here, the server to work with, with the token for it, and Ray."""

    checkpoint: Path | None = None
    """The checkpoint that makes keys and decodes. Default: that of the active keyset, else the released
    one.
    """
    span_annotator: Path | None = None
    """The annotator that marks facts in documents. Default: the released one."""
    question_generator: Path | None = None
    """The model that writes questions for facts. Default: the released one."""
    reader: Path | None = None
    """The reader that finds answers in passages. Default: the released one."""
    server: str | None = None
    """The address of the server that commands ask in place of this machine's base."""
    token: str | None = field(default=None, repr=False)
    """The secret of your token for that server."""
    key_file: Path | None = None
    """The former name of `COLMLM_TOKEN_FILE`."""
    annotator_api_key: str | None = field(default=None, repr=False)
    """The key of the chat endpoint of `colmlm corpus annotate --annotator seed`."""
    ray: str | None = None
    """Where bulk work runs: `auto`, or the address of a Ray cluster. Unset: in this process."""
    ray_workers: Workers | None = None
    """How many processes work there. Default: one for each GPU, else for each core."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from the variables `env`. Raises `SettingsError`."""
        return read_settings(cls, env)
