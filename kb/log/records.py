"""The records that verbs of the change log give, and its changes as CloudEvents 1.0, as brokers take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from colmlm.kb.principal import Principal


def require_options(shape: type, given: Mapping[str, Any]) -> None:
    """Raise `TypeError`, as Python does, for options that the `TypedDict` `shape` lacks, and for missing ones."""
    if unknown := given.keys() - shape.__annotations__.keys():
        there = ", ".join(sorted(shape.__annotations__))
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; choose from {there}")
    required: frozenset[str] = shape.__required_keys__  # type: ignore[attr-defined]
    if missing := required - given.keys():
        raise TypeError(f"it needs the option {', '.join(sorted(missing))}; give it")


class OnRecord(TypedDict):
    """The options of an edit that the log records: who makes it (`actor`), and why (`reason`)."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One entry of the change log; it holds no fact text.

    `principal` is who was authenticated, and `on_behalf_of` the person they said to act for. `request_id` is that of
    the API's request that asked for it, `client_request_id` the caller's name for that. All of them are None in changes
    made before they were recorded. `undoes` is the change that this one takes back, if it is an undo. `keyset_id` is
    the keyset that was activated, retired or given a threshold, and `checkpoint` the name of its checkpoint. `note`
    says of an activation that it was a rollback or forced, which criteria of the gate failed, and which limits were
    easier to keep than the usual ones.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    num_facts: int
    actor: str
    reason: str
    at: datetime
    prev_hash: str
    hash: str
    request_id: str | None = None
    client_request_id: str | None = None
    principal: Principal | None = None
    on_behalf_of: str | None = None
    undoes: int | None = None
    keyset_id: int | None = None
    checkpoint: str | None = None
    note: str | None = None


EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change as a CloudEvent in the JSON format, structured mode.

    Its `id` is the change's number and its `source` this base; together they are unique. `sequence` has leading zeros,
    so that texts sort. `subject` is the fact, where the change is of one. `data` is the change as in `GET /v1/changes`.
    """

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    time: str
    subject: str | UnsetType = UNSET
    sequence: str
    datacontenttype: str = "application/json"
    data: ChangeRecord


def source_of(database: str) -> str:
    """Give the URI that names a base as the source of its events."""
    return f"urn:colmlm:{database}"


def type_of(kind: str) -> str:
    """Give the CloudEvents type of the event of a change of this kind."""
    return f"org.colmlm.change.{kind}"


def cloud_event(change: ChangeRecord, database: str) -> CloudEvent:
    """Give the CloudEvents event of a change of this base."""
    is_of_one = change.num_facts == len(change.fact_ids) == 1
    return CloudEvent(
        id=str(change.seq),
        source=source_of(database),
        type=type_of(change.kind),
        time=change.at.isoformat(),
        subject=f"fact/{change.fact_ids[0]}" if is_of_one else UNSET,
        sequence=f"{change.seq:020d}",
        data=change,
    )
