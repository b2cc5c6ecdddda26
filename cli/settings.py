"""The settings of a user of the command line: a model, a server, and secrets for them; read from `COLMLM_*` once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from colmlm.kb.store.environment import read


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """The models that encode, decode and annotate here, and the server to work with, with the token for it."""

    checkpoint: Path | None = None
    span_annotator: Path | None = None
    question_generator: Path | None = None
    reader: Path | None = None
    server: str | None = None
    token: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    annotator_api_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Reads the settings from the variables `env`. Raises `SettingsError`."""
        return read(cls, env)
