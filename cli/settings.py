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
    span_annotator: Path | None = None
    question_generator: Path | None = None
    reader: Path | None = None
    server: str | None = None
    token: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    annotator_api_key: str | None = field(default=None, repr=False)
    ray: str | None = None
    ray_workers: Workers | None = None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from the variables `env`. Raises `SettingsError`."""
        return read_settings(cls, env)
