"""Principals: who was authenticated for a change, as opposed to the person they say to act for."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Principal:
    """Who made a change. `kind` is "key", a token with its `key_id`, or "local", a user of the server's machine.

    The principal of a job is the one that asked for it, with the `job_id`; where the job's row does not name that, the
    kind is "job".
    """

    kind: str
    name: str
    key_id: int | None = None
    job_id: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the principal as the log stores it, without fields that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """Read a stored principal, and ignores fields that only a later release knows."""
        return cls(**{field.name: kept[field.name] for field in fields(cls) if field.name in kept})

    def __str__(self) -> str:
        """Give the principal in a few words, such as "token 3", "local ann" or "token 3, job 7"."""
        who = f"token {self.key_id}" if self.kind == "key" else f"{self.kind} {self.name}"
        return who if self.job_id is None or self.kind == "job" else f"{who}, job {self.job_id}"


@cache
def local_user() -> str:
    """Give the name of the user this process runs as. It asks the system, so that no variable can pretend another."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user id has no name, as in containers
        return f"uid {os.getuid()}"


def local_principal() -> Principal:
    return Principal("local", local_user())
