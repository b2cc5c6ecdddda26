"""Records: JSON Lines, rows of tables and of Parquet, each a document without facts.

The usual fields are ``id``, ``title``, ``text``, and perhaps ``url``, ``licence`` and ``revision``; a user may name
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import Parsed, Refusal, parse_json, parse_record
from colmlm.kb.corpus.raw.fields import Fields
from colmlm.kb.corpus.raw.text import Unreadable
from colmlm.kb.corpus.squad import identity


def parse_raw_line(line: bytes, where: str, path: Path, fields: Fields) -> Parsed:
    """Parses one line as a document without facts; where it has no address, its file's is taken."""
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused(where, "not a JSON object")
    name = record.get("id")
    named = str(name) if isinstance(name, str | int) else where
    if record.get("facts"):
        return _refused(named, "annotated already; ingest the file as it is, with --format annotated")
    try:
        chosen = fields.of(record)
    except Unreadable as error:
        return _refused(named, f"no text in it: {error}")
    return raw_document(record, chosen, where, path)


def raw_document(record: Mapping[str, Any], chosen: Mapping[str, str], where: str, path: Path) -> Parsed:
    """Makes a document of a record, by the fields that hold its parts; one without an id is known by a digest."""
    parts = {part: _as_text(record.get(name)) for part, name in chosen.items()}
    if isinstance(text := parts["text"], str):
        parts["text"] = text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "id" not in chosen:
            parts["id"] = identity(_string(parts.get("title")), text)
    if not parts.get("title"):
        parts["title"] = None
    parts["uri"] = parts.get("uri") or path.as_uri()
    return parse_record({**parts, "facts": []}, where)


def _as_text(value: object) -> object:
    """Gives whole numbers as text, since ids, titles and revisions often are such."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _refused(document: str, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, 0, reason),))
