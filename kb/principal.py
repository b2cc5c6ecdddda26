"""Principals: who was authenticated for a change, as opposed to whom somebody says to act for."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Principal:
    """Who made a change. `kind` is "key", an API key with its `key_id`, or "local", a user of the server's machine.

    Of a job it is who asked for it, with the `job_id`; "job" is the kind where the job's row does not say who that was.
    """

    kind: str
    name: str
    key_id: int | None = None
    job_id: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What the log keeps of it: nothing of what is None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """The principal as it was kept; fields that a later release keeps too are passed over."""
        return cls(**{field.name: kept[field.name] for field in fields(cls) if field.name in kept})

    def __str__(self) -> str:
        """In a word or three, such as "key 3", "local ann" or "key 3, job 7"."""
        who = f"key {self.key_id}" if self.kind == "key" else f"{self.kind} {self.name}"
        return who if self.job_id is None or self.kind == "job" else f"{who}, job {self.job_id}"


@cache
def local_user() -> str:
    """The name of the user this process runs as. The system says it, so no variable can pretend another."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name, as in containers
        return f"uid {os.getuid()}"


def local_principal() -> Principal:
    return Principal("local", local_user())
