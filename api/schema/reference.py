"""Write the API reference of the site from the OpenAPI document.

python -m colmlm.api.schema.reference > api.md
python -m colmlm.api.schema.reference --json > openapi.json     the document itself
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from colmlm.api.app import build_routes
from colmlm.api.schema.openapi import complete_document

_HEAD = """# API reference

This page describes the document that a server gives at `/schema/openapi.json`.
"""


def reference(document: Mapping[str, Any]) -> str:
    """Give the page of an OpenAPI document."""
    parts = [_HEAD, document["info"]["description"], _refusals(document), _contents(document)]
    for tag in document["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}")
        parts += [_operation(*found) for found in _of(document, tag["name"])]
    parts.append("## Types")
    parts += [_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _of(document: Mapping[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if tag in operation["tags"]:
                yield method.upper(), path, operation


def _contents(document: Mapping[str, Any]) -> str:
    rows = [
        f"| `{method} {path}` | {operation['summary']} | {operation['x-right']} |"
        for tag in document["tags"]
        for method, path, operation in _of(document, tag["name"])
    ]
    return "\n".join(["| route | | right |", "|---|---|---|", *rows])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### {method} {path}", "", f"**{operation['summary']}.** {operation['description']}"]
    if parameters := operation.get("parameters"):
        lines += ["", "| parameter | in | type | |", "|---|---|---|---|"]
        lines += [_parameter(parameter) for parameter in parameters]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        lines += ["", f"Body: {_kind(media['schema'])}", "", *_block(media["example"])]
    for status, answer in operation["responses"].items():
        if int(status) < 400:
            for media_type, media in answer.get("content", {}).items():
                lines += ["", f"{status}, `{media_type}`: {_kind(media['schema'])}", ""]
                lines += _block(media["example"])
    return "\n".join(lines)


def _refusals(document: Mapping[str, Any]) -> str:
    answers = {
        status: answer["description"]
        for item in document["paths"].values()
        for operation in item.values()
        for status, answer in operation["responses"].items()
        if int(status) >= 400
    }
    return "\n".join(["| status | |", "|---|---|", *(f"| {s} | {answers[s]} |" for s in sorted(answers))])


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    said = parameter.get("description", "")
    if "default" in schema:
        said = f"{said} (default {json.dumps(schema['default'])})".strip()
    need = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
    return f"| `{parameter['name']}` | {parameter['in']}{need} | {_kind(schema)} | {said} |"


def _type(name: str, schema: Mapping[str, Any]) -> str:
    said = " ".join(schema.get("description", "").split())
    lines = [f"### {name}", "", said, "", "| field | type | |", "|---|---|---|"]
    required = schema.get("required", ())
    for field, kind in sorted(schema.get("properties", {}).items(), key=lambda one: one[0] not in required):
        need = "required" if field in required else _default(kind)
        lines.append(f"| `{field}` | {_kind(kind)} | {need} {kind.get('description', '')} |")
    return "\n".join(lines)


def _default(schema: Mapping[str, Any]) -> str:
    return f"default {json.dumps(schema['default'])}" if "default" in schema else ""


def _kind(schema: Mapping[str, Any]) -> str:
    """Describe a schema in a few words."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf"):
        return " or ".join(_kind(choice) for choice in choices)
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    kind = schema.get("type", "anything")
    limits = [
        f"{word} {schema[name]}"
        for name, word in (("minimum", "from"), ("maximum", "to"), ("exclusiveMinimum", "above"),
                           ("maxLength", "up to"))
        if name in schema
    ]  # fmt: skip
    return " ".join([" or ".join(kind) if isinstance(kind, list) else kind, *limits])


def _block(example: Any) -> list[str]:
    if isinstance(example, str):
        return ["```", *example.replace("\r", "").strip().splitlines(), "```"]
    return ["```json", *json.dumps(example, indent=1, ensure_ascii=False).splitlines(), "```"]


def main() -> None:
    """Write the page, or with `--json` the document, to stdout without connecting to a database."""
    document = complete_document(build_routes())
    sys.stdout.write(json.dumps(document, indent=1) if "--json" in sys.argv[1:] else reference(document))


if __name__ == "__main__":
    main()
