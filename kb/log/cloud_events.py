"""Changes of the log as CloudEvents 1.0, the form in which brokers, functions and event stores take events."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from colmlm.kb.log.records import ChangeRecord

EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change as a CloudEvent in the JSON format, structured mode.

    Its `id` is the change's number and its `source` this base; the two together are unique. `sequence` orders events by
    their text. `subject` is the fact, where the change is of one. `data` is the change as `GET /v1/changes` gives it.
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
    """Give the type of the events of this kind of change."""
    return f"org.colmlm.change.{kind}"


def cloud_event(change: ChangeRecord, database: str) -> CloudEvent:
    """Give the event of a change of this base."""
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
