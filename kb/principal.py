"""Principals: who was authenticated, for a change or to read, and of which corpora they have a right.

A principal with a right on some corpora only is *scoped*. What it asks for is limited in two places: lookups and
answers by their filter (`kb.lookup.options`), everything else by the database (`kb.store.scoped_role`).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Principal:
    """Record who made a change. `kind` is "key", a token with its `key_id`, or "local", a user of the server's machine.

    The principal of a job is the one that asked for it, with the `job_id`; where the job's row does not name that, the
    kind is "job". Its rights are on these `corpora` (None: on all, and on what belongs to none).
    """

    kind: str
    name: str
    key_id: int | None = None
    job_id: int | None = None
    corpora: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the principal as the log stores it, without fields that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """Read a stored principal, and ignore fields that only a later release knows.

        Of its corpora are named those that who asks in this context has a right on.
        """
        known = {field.name: kept[field.name] for field in fields(cls) if field.name in kept}
        corpora = known.get("corpora")
        named = None if corpora is None else tuple(one for one in corpora if in_scope(one))
        return cls(**known | {"corpora": named})

    def __str__(self) -> str:
        """Give the principal in a few words, such as "token desk", "local ann" or "token desk, job 7"."""
        who = f"{'token' if self.kind == 'key' else self.kind} {self.name}"
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


# The origin of an edit: who was authenticated for it, and the request or job that asked for it.
#
# The origin is a context variable and not a parameter of every verb, since no edit depends on it and no
# caller of a verb may claim another. Where none was set, the process edits for itself, as the user it runs
# as.


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry out the request of one row of `idempotency`, until another claims it."""

    row_id: int
    claim: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The principal and the request of an edit. Its ids go into the log, which nothing erases, so they are never text.

    `request_id` is the server's own, `client_request_id` the caller's name for the request. `on_behalf_of` is the
    person the principal says to act for. With `is_service` the program works for itself (`as_service`).
    """

    principal: Principal
    request_id: str | None = None
    client_request_id: str | None = None
    on_behalf_of: str | None = None
    claim: Claim | None = None
    is_service: bool = False


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current_origin() -> Origin:
    """Give the origin of edits in this context."""
    return origin.get() or Origin(local_principal())


@contextmanager
def acting_as(principal: Principal, on_behalf_of: str | None = None) -> Iterator[None]:
    """Make this principal the one that edits, within the block and in the same request."""
    before = origin.set(replace(current_origin(), principal=principal, on_behalf_of=on_behalf_of))
    try:
        yield
    finally:
        origin.reset(before)


def act_for(name: str | None) -> None:
    """Set the person on whose behalf the rest of this context edits."""
    origin.set(replace(current_origin(), on_behalf_of=name))


# The scope of a caller: the corpora that it has a right on.


def scope_of_caller() -> tuple[str, ...] | None:
    """Give the corpora that who asks in this context has a right on; None where that is all of them."""
    found = origin.get()
    return None if found is None else found.principal.corpora


def in_scope(*corpora: str | None) -> bool:
    """Tell whether who asks in this context has a right on all of these corpora. No corpus (None) needs it on all."""
    scope = scope_of_caller()
    return scope is None or all(corpus in scope for corpus in corpora)


def scope_of_statements() -> tuple[str, ...] | None:
    """Give the corpora that the statements of this context see; None where they see all, as the program's own do."""
    found = origin.get()
    return None if found is None or found.is_service else found.principal.corpora


def is_filtered() -> bool:
    """Tell whether statements see all corpora, while who asks has a right on some: then filters limit the response."""
    return scope_of_caller() is not None and scope_of_statements() is None


def work_as_service() -> None:
    """Let the program read and write for itself in the rest of this context, as within `as_service`."""
    origin.set(replace(current_origin(), is_service=True))


@contextmanager
def as_service() -> Iterator[None]:
    """Let the program read and write for itself within the block, such as its index, whatever the caller may see.

    What the block gives to the caller must be limited by other means.
    """
    before = origin.set(replace(current_origin(), is_service=True))
    try:
        yield
    finally:
        origin.reset(before)
