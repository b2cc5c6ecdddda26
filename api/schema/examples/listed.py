"""The example of every component and operation of the OpenAPI document, listed by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from colmlm.api.nouns.generation import Finished, Spliced
from colmlm.api.openai import examples as openai
from colmlm.api.schema.examples import asking, evidence, facts, removal, running
from colmlm.api.schema.examples.small_base import (
    CHANGE,
    FACT,
    HASH,
    JOB,
    SIGNED,
    SOURCE,
    TEXT,
    TRACE,
    as_json,
)
from colmlm.api.wire.answers import Problem, cursor
from colmlm.kb.evidence.provenance import MEDIA_TYPES, Provenance, of_fact, of_output, write_prov
from colmlm.kb.facts.compared import AlsoSaid
from colmlm.kb.log.cloud_events import BATCH, EVENT, cloud_event
from colmlm.kb.log.signing import PAYLOAD_TYPE


def _provenance(account: Provenance) -> Mapping[str, Any]:
    return {media_type: write_prov(account, form) for form, media_type in MEDIA_TYPES.items()}


_BY_NAME: dict[str, Any] = {
    type(example).__name__: as_json(example)
    for part in (facts, asking, evidence, removal, running, openai)
    for example in part.EXAMPLES
}

# Operations whose request is bytes.
OCTETS: Mapping[str, str] = {
    "upload": "The bytes of the file.",
    "look_up_vectors": "The bytes of the queries.",
}

_EVENT = f"id: 41\r\nevent: change\r\ndata: {msgspec.json.encode(CHANGE).decode()}\r\n\r\n"
_DOCUMENT_LINE = (
    f'{{"id": "peru", "text": "{TEXT}", "facts": [{{"start": 23, "end": 27, "value": "Lima"}}]}}\n'
)

_ENVELOPE = {
    "payloadType": PAYLOAD_TYPE,
    "payload": "bWFkZSB1cA==",
    "signatures": [{"keyid": HASH, "sig": "bWFkZSB1cA=="}],
}

# Operations whose response has no type of this package.
BY_OPERATION: Mapping[str, Any] = {
    "export_corpus": _DOCUMENT_LINE,
    "export_changes": msgspec.json.encode(SIGNED).decode() + "\n",
    "follow_changes": _EVENT,
    "read_facts": as_json([FACT]),
    "read_also_said": as_json([AlsoSaid(12, (905,))]),
    "follow_job": f"event: progress\r\ndata: {msgspec.json.encode(JOB).decode()}\r\n\r\n",
    "read_head": SIGNED,
    "read_certificate": _ENVELOPE,
    "read_erasure_certificate": _ENVELOPE,
}

_SPLICED = Spliced(
    output_start=1, output_end=5, fact_id=12, version=1, value="Lima", score=0.93, document=SOURCE
)
_PIECES = (
    ("piece", {"text": " Lima"}),
    ("splice", _SPLICED),
    ("piece", {"text": "."}),
    ("finish", Finished(reason="end", prompt_tokens=14, completion_tokens=1)),
    ("trace", TRACE),
)

# Operations whose response may also be a stream of events.
EVENTS: Mapping[str, str] = {
    "generate": "".join(
        f"event: {name}\r\ndata: {msgspec.json.encode(data).decode()}\r\n\r\n" for name, data in _PIECES
    ),
    **openai.EVENTS,
}

_DATABASE = "0f3a5c7e9b1d2f48"
_EVENT_OF_CHANGE = as_json(cloud_event(CHANGE, _DATABASE))

# Operations that give what they have in other forms too, where `Accept` asks for them.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "list_changes": {BATCH: [_EVENT_OF_CHANGE]},
    "read_change": {EVENT: _EVENT_OF_CHANGE},
    "trace_output": _provenance(of_output(TRACE, _DATABASE)),
    "trace_fact": _provenance(of_fact(evidence.FACT_TRACE, _DATABASE)),
}


def example_of(component: str) -> Any:
    """Gives the example of a component of the OpenAPI document, or None where it has none, which a test refuses."""
    if (item := component.removeprefix("CountedPageOf")) != component:
        return {**example_of(f"PageOf{item}"), "total": 214, "is_exact": True}
    if (item := component.removeprefix("PageOf")) != component and item in _BY_NAME:
        return {"items": [_BY_NAME[item]], "next": cursor("facts", (12,))}
    return _BY_NAME.get(component)


def _problem(status: int, said: str) -> Any:
    kinds = {404: ("FactNotFound", "No such fact"), 409: ("FactDeleted", "Fact is deleted")}
    kind, title = kinds.get(status, ("Refused", "Not served"))
    return as_json(Problem(f"urn:colmlm:{kind}", title, status, f"{said}."))


# How to make the example of a refusal from its status and description, by component.
REFUSALS: Mapping[str, Callable[[int, str], Any]] = {
    "Problem": _problem,
    "OpenAIProblem": lambda status, said: as_json(openai.refused(status, said)),
}
