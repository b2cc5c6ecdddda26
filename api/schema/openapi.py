"""Complete the OpenAPI document that Litestar generates.

It adds tags by resource, the right that each operation needs (`x-right`), an example of every request and response, and
the first line of a handler's docstring as its summary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

import msgspec
from litestar import Litestar, Request, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from litestar.routes import HTTPRoute

from colmlm.api.middleware.auth import EDITING, SAFE_METHODS, Right, needs, right_of
from colmlm.api.openai import answers
from colmlm.api.openai.answers import Citation, CitedDocument, annotations_of
from colmlm.api.openai.chat import (
    ChatRequest,
    CompletionUpdate,
    FeedbackMetadata,
    JudgedChoice,
    JudgedCompletion,
)
from colmlm.api.openai.completions import CompletionRequest
from colmlm.api.openai.fields import DONE, Message, OpenAIProblem, describe_error
from colmlm.api.openai.models import Embedding, EmbeddingRequest, Embeddings, EmbeddingUsage, Model, Models
from colmlm.api.openai.responses import (
    AnsweredResponse,
    OutputMessage,
    OutputText,
    ResponseRequest,
    ResponseUsage,
    text_citation,
)
from colmlm.api.schema import examples
from colmlm.api.schema.examples import (
    ASKING_EXAMPLES,
    CHANGE,
    EVIDENCE_EXAMPLES,
    FACT,
    FACT_EXAMPLES,
    HASH,
    JOB,
    OPERATING_EXAMPLES,
    PROOF,
    REMOVAL_EXAMPLES,
    SIGNED,
    SOURCE,
    TEXT,
    TRACE,
    as_json,
)
from colmlm.api.wire import MAX_ID, Problem, cursor
from colmlm.kb.access.records import ROLES
from colmlm.kb.evidence.generation import FinishedOutput, SplicedValue
from colmlm.kb.evidence.provenance import MEDIA_TYPES, Provenance, fact_account, output_account, write_prov
from colmlm.kb.facts.records import AlsoSaid
from colmlm.kb.log.records import BATCH, EVENT, cloud_event
from colmlm.kb.log.signing import PAYLOAD_TYPE

_CREATED, _MODEL = 1_769_860_800, "co-lmlm-135m"


def _citation_at(start: int) -> Citation:
    """Give a citation of the value Lima, `start` characters into the choice."""
    document = CitedDocument(
        document_id=3,
        corpus="atlas",
        external_id="peru",
        title="Peru",
        uri="https://example.org/peru",
        licence="CC-BY-4.0",
        start=23,
        end=27,
    )
    return Citation(
        index=0,
        start=start,
        end=start + len("Lima"),
        value="Lima",
        fact_id=12,
        version=1,
        score=0.93,
        document=document,
        url="https://kb.example.org/v1/generations/7",
    )


_USAGE = answers.Usage(prompt_tokens=14, completion_tokens=1, total_tokens=15)
_COMPLETED = answers.Completion(
    id="cmpl-0f3a",
    created=_CREATED,
    model=_MODEL,
    choices=[
        answers.CompletionChoice(
            index=0, text=" Lima.", finish_reason="stop", generation_id=7, citations=[_citation_at(1)]
        )
    ],
    usage=_USAGE,
    citations=[_citation_at(1)],
)
_TOLD = answers.ChatChoice(
    index=0,
    message=answers.ChatMessage(
        role="assistant", content="Lima.", annotations=annotations_of([_citation_at(0)])
    ),
    finish_reason="stop",
    generation_id=7,
    citations=[_citation_at(0)],
)
_CHUNK = answers.ChatChunk(
    id="chatcmpl-0f3a",
    created=_CREATED,
    model=_MODEL,
    choices=[answers.ChatChunkChoice(index=0, delta=answers.Delta(content="Lima."))],
)
_RESPONDED = AnsweredResponse(
    id="resp_0f3a",
    created_at=_CREATED,
    model=_MODEL,
    status="completed",
    instructions=None,
    max_output_tokens=None,
    temperature=0.0,
    top_p=1.0,
    metadata={},
    output=[
        OutputMessage(
            id="msg_0f3a",
            status="completed",
            content=[OutputText(text="Lima.", annotations=[text_citation(_citation_at(0))])],
        )
    ],
    usage=ResponseUsage(input_tokens=14, output_tokens=1, total_tokens=15),
    generation_id=7,
    citations=[_citation_at(0)],
)
_SERVED = Model(id=_MODEL, checkpoint_id="c0ffee")

OPENAI_EXAMPLES: tuple[Any, ...] = (
    CompletionRequest(model=_MODEL, prompt="The capital of Peru is", max_tokens=16, temperature=0.0),
    _COMPLETED,
    CompletionUpdate(metadata=FeedbackMetadata(feedback="down", value="Lima")),
    JudgedCompletion(
        id="7",
        created=_CREATED,
        model="c0ffee",
        choices=[
            JudgedChoice(message=answers.ChatMessage(role="assistant", content="Cusco."), generation_id=7)
        ],
        metadata=FeedbackMetadata(feedback="down", value="Lima"),
    ),
    ChatRequest(model=_MODEL, messages=[Message(role="user", content="What is the capital of Peru?")]),
    answers.ChatCompletion(
        id="chatcmpl-0f3a",
        created=_CREATED,
        model=_MODEL,
        choices=[_TOLD],
        usage=_USAGE,
        citations=_TOLD.citations,
    ),
    ResponseRequest(model=_MODEL, input="What is the capital of Peru?"),
    _RESPONDED,
    EmbeddingRequest(model=_MODEL, input="What is the capital of Peru?"),
    Embeddings(
        data=[Embedding(index=0, embedding=[0.6, 0.8])],
        model=_MODEL,
        keyset_id=2,
        checkpoint_id="c0ffee",
        usage=EmbeddingUsage(prompt_tokens=7, total_tokens=7),
    ),
    _SERVED,
    Models(data=[_SERVED]),
)


def _chunk_events(chunk: msgspec.Struct) -> str:
    return f"data: {msgspec.json.encode(chunk).decode()}\r\n\r\ndata: {DONE}\r\n\r\n"


def _completed_event(response: AnsweredResponse) -> str:
    data = {"type": "response.completed", "sequence_number": 9, "response": response}
    return f"event: response.completed\r\ndata: {msgspec.json.encode(data).decode()}\r\n\r\n"


OPENAI_EVENTS: Mapping[str, str] = {
    "complete": _chunk_events(_COMPLETED),
    "chat": _chunk_events(_CHUNK),
    "respond": _completed_event(_RESPONDED),
}


def describe_refusal(status: int, said: str) -> OpenAIProblem:
    """Give an error of this status in OpenAI's form."""
    return describe_error(f"{said}.", status, code="model_not_found" if status == 404 else "refused")


# The tags, one for each resource, in the order in which a reader meets them.
TAGS = {
    "Corpora": "Sets of documents, counted, deleted and exported.",
    "Documents": "Texts, and the facts in them.",
    "Facts": "What lookups answer with. Every edit takes a reason and is one change.",
    "Review": "Facts that a machine marked, and the verdicts of people on them.",
    "Lookups": "Ask for facts as a decoder does.",
    "Answers": "Ask questions, and get what a document says.",
    "Questions": "Questions kept with the values they should get, asked again and compared.",
    "Generations": "Outputs, decoded here and stored with their evidence.",
    "Misses": "What was asked and found nothing, or was called wrong, as a work list.",
    "OpenAI": "Completions, chats, responses, embeddings and models in OpenAI's protocol, with citations.",
    "Attributions": "What stored outputs took from which facts, and what became of that.",
    "Forgetting": "Sets of facts, chosen, planned, forgotten, verified, certified.",
    "Keysets": "Whose keys answer, and the switch from one to another.",
    "Changes": "The append-only log: read, followed, compared, witnessed.",
    "Jobs": "Long work, done by workers: queued, watched, cancelled; and the files it reads.",
    "Access": "Tokens, and who was refused what.",
    "Service": "This process, and how much there is.",
}
EVENT_STREAM = "text/event-stream"
# Programs that test a description hold each event to the schema of its stream, and linters the whole example.
_EVENTS = {
    "type": ["object", "string"],
    "description": "The text of the stream, or one event of it",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["data"],
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A name of the caller's for this edit: sent again with it, it is carried out once",
    "schema": {"type": "string", "pattern": "^[!-~]([ -~]{0,198}[!-~])?$"},
}
_REF = "#/components/schemas/"
_RESOURCES = {
    "certificates": "Forgetting",
    "chat": "OpenAI",
    "completions": "OpenAI",
    "denials": "Access",
    "embeddings": "OpenAI",
    "encodings": "Keysets",
    "erasures": "Forgetting",
    "tokens": "Access",
    "webhooks": "Changes",
    "uploads": "Jobs",
    "forget-runs": "Forgetting",
    "holds": "Forgetting",
    "retention-rules": "Corpora",
    "impact": "Attributions",
    "persons": "Forgetting",
    "models": "OpenAI",
    "responses": "OpenAI",
    "signing-key": "Forgetting",
    "health": "Service",
    "stats": "Service",
}
_DESCRIPTION = """A knowledge base that a language model reads and people can edit.

Every request brings the secret of a token as `Authorization: Bearer SECRET`; each operation names the right that the
token's role must have. Lists are given in pages: pass `next` of one page as `cursor` for the one after it, until it
is null. Refusals are problem documents (RFC 9457) that say the cause and the remedy. HEAD is answered wherever GET is.
Large answers to GET come as `zstd` or `gzip` where `Accept-Encoding` names one, but for streams."""


class Description(JsonRenderPlugin):
    """Serve the completed OpenAPI document as JSON."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return json.dumps(complete_document(request.app), ensure_ascii=False).encode()


def config() -> OpenAPIConfig:
    """Give Litestar's OpenAPI settings. The document needs the right `read`."""
    scheme = SecurityScheme(
        type="http", scheme="bearer", description="The secret of a token: colmlm tokens create"
    )
    return OpenAPIConfig(
        title="colmlm",
        version="1",
        description=_DESCRIPTION,
        components=Components(security_schemes={"token": scheme}),
        security=[{"token": []}],
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, method, path: handler.handler_name,
        render_plugins=[Description()],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, opt=needs(Right.read)),
    )


def complete_document(app: Litestar) -> dict[str, Any]:
    """Give the completed OpenAPI document of an app."""
    handlers = _handlers(app)
    document = _with_components(copy.deepcopy(app.openapi_schema.to_schema()), handlers.values())
    used = set()
    for method, path, operation in operations(document):
        tag = _tag_of_path(path)
        used.add(tag)
        right = right_of(handlers[operation["operationId"]])
        is_edit = right in EDITING and method not in SAFE_METHODS
        _describe(operation, tag, right, is_edit)
        _exemplify(operation)
    document["tags"] = [{"name": name, "description": said} for name, said in TAGS.items() if name in used]
    return document


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every operation with its method and path."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def _handlers(app: Litestar) -> dict[str, HTTPRouteHandler]:
    return {
        handler.handler_name: handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.resolve_include_in_schema()
    }


def _with_components(document: dict[str, Any], handlers: Iterable[HTTPRouteHandler]) -> dict[str, Any]:
    """Replace Litestar's schemas of the components by those of msgspec, which parses and writes the bodies.

    Litestar's lack the limits of list items and the refusal of unknown fields, and name generic types with their
    modules.
    """
    types = [Problem, OpenAIProblem, *(kind for handler in handlers for kind in _types(handler))]
    _, schemas = msgspec.json.schema_components(types, ref_template=f"{_REF}{{name}}")
    titles = {schema["title"]: name for name, schema in schemas.items()}
    own = document["components"]["schemas"]
    schemas |= {name: schema for name, schema in own.items() if schema.get("title") not in titles}
    text = json.dumps(document | {"components": document["components"] | {"schemas": schemas}})
    for name, schema in own.items():
        text = text.replace(f'{_REF}{name}"', f'{_REF}{titles.get(schema.get("title"), name)}"')
    for name in schemas:
        if (plain := name.strip("_").replace("_", "Of")) != name:
            text = text.replace(f'{_REF}{name}"', f'{_REF}{plain}"').replace(
                f'"{name}": {{', f'"{plain}": {{'
            )
    named: dict[str, Any] = json.loads(text)
    return named


def _types(handler: HTTPRouteHandler) -> Iterator[Any]:
    """Yield the structs and dataclasses of a handler's request and response."""
    fields = [handler.parsed_return_field, handler.parsed_data_field]
    for field in filter(None, fields):
        for kind in (field.annotation, *get_args(field.annotation)):
            origin = get_origin(kind) or kind
            if isinstance(origin, type) and (is_dataclass(origin) or issubclass(origin, msgspec.Struct)):
                yield kind


def _tag_of_path(path: str) -> str:
    name = path.removeprefix("/v1").strip("/").partition("/")[0]
    return _RESOURCES.get(name, name.capitalize())


def _describe(operation: dict[str, Any], tag: str, right: Right, is_edit: bool) -> None:
    summary, _, rest = operation.get("description", "").partition("\n")
    having = ", ".join(role for role, rights in ROLES.items() if right in rights)
    said = " ".join(rest.split())
    operation["summary"] = summary.rstrip(".")
    operation["description"] = f"{said} Needs the right `{right.value}` (roles: {having}).".strip()
    operation["tags"] = [tag]
    operation["x-right"] = right.value
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _said_or_absent(parameter["schema"])
    if is_edit:
        operation.setdefault("parameters", []).append(IDEMPOTENCY)
    if operation["operationId"] == "upload":
        operation["requestBody"] = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}


def _said_or_absent(schema: dict[str, Any]) -> dict[str, Any]:
    """Correct the schema of a parameter: an optional text cannot be null, and limits are integers."""
    schema.pop("description", None)
    for choice in schema.pop("oneOf", ()):
        if choice.get("type") != "null":
            schema |= choice if choice == {"type": "string"} else choice | {"type": [choice["type"], "null"]}
    whole = {name: min(int(v), MAX_ID) for name, v in schema.items() if isinstance(v, float)}
    return schema | whole


def _exemplify(operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        found = example_of(_component(media))
        media["example"] = OCTETS[name] if found is None else found
    for status, answer in operation["responses"].items():
        for media_type, media in answer.get("content", {}).items():
            if _component(media) in REFUSALS:
                media["example"] = REFUSALS[_component(media)](int(status), answer["description"])
            elif name in BY_OPERATION:
                media["example"] = BY_OPERATION[name]
            else:
                media["example"] = example_of(_component(media))
            if media["schema"] == {}:
                media["schema"] = _EVENTS if media_type == EVENT_STREAM else {"type": "string"}
        if (events := EVENTS.get(name)) and int(status) < 300:
            answer["content"][EVENT_STREAM] = {"schema": _EVENTS, "example": events}
        for media_type, example in FORMS.get(name, {}).items() if int(status) < 300 else ():
            shape = (
                {"type": "array", "items": {"type": "object"}}
                if isinstance(example, list)
                else {"type": "object"}
            )
            answer["content"][media_type] = {"schema": shape, "example": example}


def _component(media: Mapping[str, Any]) -> str:
    reference: str = media["schema"].get("$ref", "")
    return reference.removeprefix(_REF)


# The example of every component and operation of the OpenAPI document, listed by its name.


def _provenance(account: Provenance) -> Mapping[str, Any]:
    return {media_type: write_prov(account, form) for form, media_type in MEDIA_TYPES.items()}


_EXAMPLE_BY_TYPE: dict[str, Any] = {
    type(example).__name__: as_json(example)
    for example in (
        *FACT_EXAMPLES,
        *ASKING_EXAMPLES,
        *EVIDENCE_EXAMPLES,
        *REMOVAL_EXAMPLES,
        *OPERATING_EXAMPLES,
        *OPENAI_EXAMPLES,
    )
}

# Operations whose request is bytes.
OCTETS: Mapping[str, str] = {
    "upload": "The bytes of the file.",
    "look_up_vectors": "The bytes of the queries.",
}

_CHANGE_EVENT = f"id: 41\r\nevent: change\r\ndata: {msgspec.json.encode(CHANGE).decode()}\r\n\r\n"
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
    "follow_changes": _CHANGE_EVENT,
    "read_facts": as_json([FACT]),
    "read_also_said": as_json([AlsoSaid(12, (905,))]),
    "follow_job": f"event: progress\r\ndata: {msgspec.json.encode(JOB).decode()}\r\n\r\n",
    "read_head": SIGNED,
    "prove_change": PROOF,
    "prove_growth": PROOF,
    "read_certificate": _ENVELOPE,
    "read_erasure_certificate": _ENVELOPE,
}

_SPLICED = SplicedValue(
    output_start=1, output_end=5, fact_id=12, version=1, value="Lima", score=0.93, document=SOURCE
)
_PIECES = (
    ("piece", {"text": " Lima"}),
    ("splice", _SPLICED),
    ("piece", {"text": "."}),
    ("finish", FinishedOutput(reason="end", prompt_tokens=14, completion_tokens=1)),
    ("trace", TRACE),
)

# Operations whose response may also be a stream of events.
EVENTS: Mapping[str, str] = {
    "generate": "".join(
        f"event: {name}\r\ndata: {msgspec.json.encode(data).decode()}\r\n\r\n" for name, data in _PIECES
    ),
    **OPENAI_EVENTS,
}

_DATABASE = "0f3a5c7e9b1d2f48"
_EVENT_OF_CHANGE = as_json(cloud_event(CHANGE, _DATABASE))

# Operations that give what they have in other forms too, where `Accept` asks for them.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "list_changes": {BATCH: [_EVENT_OF_CHANGE]},
    "read_change": {EVENT: _EVENT_OF_CHANGE},
    "trace_output": _provenance(output_account(TRACE, _DATABASE)),
    "trace_fact": _provenance(fact_account(examples.FACT_TRACE, _DATABASE)),
}


def example_of(component: str) -> Any:
    """Give the example of a component of the OpenAPI document, or None where it has none, which a test refuses."""
    if (item := component.removeprefix("CountedPageOf")) != component:
        return {**example_of(f"PageOf{item}"), "total": 214, "is_exact": True}
    if (item := component.removeprefix("PageOf")) != component and item in _EXAMPLE_BY_TYPE:
        return {"items": [_EXAMPLE_BY_TYPE[item]], "next": cursor("facts", (12,))}
    return _EXAMPLE_BY_TYPE.get(component)


def _problem(status: int, said: str) -> Any:
    kinds = {404: ("FactNotFound", "No such fact"), 409: ("FactDeleted", "Fact is deleted")}
    kind, title = kinds.get(status, ("Refused", "Not served"))
    return as_json(Problem(f"urn:colmlm:{kind}", title, status, f"{said}."))


# How to make the example of a refusal from its status and description, by component.
REFUSALS: Mapping[str, Callable[[int, str], Any]] = {
    "Problem": _problem,
    "OpenAIProblem": lambda status, said: as_json(describe_refusal(status, said)),
}
