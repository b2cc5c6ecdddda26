"""The description says what there is, with examples that hold; the reference page says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
from litestar.routes import HTTPRoute

from colmlm.api.middleware.auth import right_of
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.schema.openapi import TAGS, operations
from tests.api.conftest import Client


def test_every_route_is_described(app: GatedApp, operator: Client, description: dict[str, Any]) -> None:
    document = operator.get("/schema/openapi.json").json()
    assert document == description
    rights = {
        handler.handler_name: right_of(handler).value
        for route in app.routed.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if route.path.startswith("/v1")
    }
    del rights["options_handler"]
    found = {operation["operationId"]: operation for _, _, operation in operations(document)}
    assert set(rights) <= set(found)
    for name, operation in found.items():
        assert operation["summary"] and not operation["summary"].endswith("."), name
        assert set(operation["tags"]) <= set(TAGS) and operation["description"], name
        assert operation["x-right"] == rights.get(name, operation["x-right"]), name
        assert {"400", "401", "403", "422", "503"} <= set(operation["responses"]), name


def test_every_example_fits_its_schema(description: dict[str, Any]) -> None:
    checked = 0
    for _, _, operation in operations(description):
        answers = operation["responses"].values()
        for body in (operation.get("requestBody", {}), *answers):
            for media_type, media in body.get("content", {}).items():
                fits(media["example"], media["schema"], description)
                assert media_type != "text/event-stream" or "data: " in media["example"]
                checked += 1
    assert checked > 100


def fits(example: Any, schema: Any, document: Any) -> None:
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(example)


def test_the_description_is_one_that_linters_accept(description: dict[str, Any]) -> None:
    """What the rules of spectral and redocly that are errors ask for, as far as it is not tested above."""
    document = description
    jsonschema.Draft202012Validator.check_schema({"$defs": document["components"]["schemas"]})
    assert document["openapi"].startswith("3.1") and document["security"] == [{"token": []}]
    assert document["info"]["license"]["identifier"] == "Apache-2.0"
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for schema in within(document):
        assert schema.get("type") != "array" or "items" in schema or "prefixItems" in schema, schema
        # Generators of clients make names of these, and leave a route out where they cannot.
        assert not any(isinstance(one, dict | list) for one in schema.get("enum", ())), schema
        if reference := schema.get("$ref"):
            assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    for _, path, operation in operations(document):
        taken = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert taken == set(re.findall(r"{(\w+)}", path)), path


def within(part: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of the document that is not an example."""
    if isinstance(part, dict):
        yield part
        for name, inner in part.items():
            if name not in ("example", "default", "enum"):
                yield from within(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from within(inner)
