"""Principals: who was authenticated for a change or a request, and the corpora on which each has rights.

A principal with rights on some corpora only is *scoped*. What it asks for is limited in two places: lookups and answers
by their filter (`kb.lookup.options`), everything else by the database (`kb.store.scoped_role`).
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
        """Read a stored principal. Fields that only a later version of the program knows are ignored.

        Its `corpora` keep only those on which the caller of this context has rights.
        """
        known = {field.name: kept[field.name] for field in fields(cls) if field.name in kept}
        corpora = known.get("corpora")
        named = None if corpora is None else tuple(one for one in corpora if is_in_scope(one))
        return cls(**known | {"corpora": named})

    def __str__(self) -> str:
        """Give the principal in a few words, such as "token desk", "local ann" or "token desk, job 7"."""
        who = f"{'token' if self.kind == 'key' else self.kind} {self.name}"
        return who if self.job_id is None or self.kind == "job" else f"{who}, job {self.job_id}"


@cache
def local_user() -> str:
    """Give the name of the user that runs this process. The system is asked, since a variable could lie."""
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
    """The right to carry out the request in one row of the table `idempotency`, until another run claims the row."""

    row_id: int
    claim: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The principal and the request behind an edit. Its ids go into the log, which nothing erases, so none is text.

    `request_id` is the server's own, `client_request_id` the caller's name for the request. `on_behalf_of` is the
    person for whom the principal says to act. `is_service` is True while the program works for itself (`as_service`).
    """

    principal: Principal
    request_id: str | None = None
    client_request_id: str | None = None
    on_behalf_of: str | None = None
    claim: Claim | None = None
    is_service: bool = False


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current_origin() -> Origin:
    """Give the origin of edits in this context; by default that of the local user."""
    return origin.get() or Origin(local_principal())


@contextmanager
def acting_as(principal: Principal, on_behalf_of: str | None = None) -> Iterator[None]:
    """Give edits within the block this principal, and the same request as before."""
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
    """Give the corpora on which the caller of this context has rights; None where it has them on all corpora."""
    found = origin.get()
    return None if found is None else found.principal.corpora


def is_in_scope(*corpora: str | None) -> bool:
    """Tell whether the caller has rights on all of these corpora. None, no corpus, needs rights on all corpora."""
    scope = scope_of_caller()
    return scope is None or all(corpus in scope for corpus in corpora)


def scope_of_statements() -> tuple[str, ...] | None:
    """Give the corpora whose rows the statements of this context see; None for all, as for the program's own."""
    found = origin.get()
    return None if found is None or found.is_service else found.principal.corpora


def is_filtered() -> bool:
    """Tell whether statements see all corpora, but the caller some only. Then filters limit the response."""
    return scope_of_caller() is not None and scope_of_statements() is None


def work_as_service() -> None:
    """Let statements in the rest of this context see all corpora, as within `as_service`."""
    origin.set(replace(current_origin(), is_service=True))


@contextmanager
def as_service() -> Iterator[None]:
    """Let statements within the block see all corpora, as for the program's own index, whatever the caller may see.

    The block must limit by other means what it gives to the caller.
    """
    before = origin.set(replace(current_origin(), is_service=True))
    try:
        yield
    finally:
        origin.reset(before)
