"""JSON Lines of raw documents: ``{"id", "title", "text"}``, with an optional ``url`` or ``uri``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colmlm.kb.corpus.format import Parsed, Refusal, parse_json, parse_record

_KEPT = ("title", "licence", "revision", "text")


def parse_raw_line(line: bytes, where: str, path: Path) -> Parsed:
    """Parses one line as a document without facts; where it has no address, its file's is taken."""
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused(where, "not a JSON object")
    external_id = record.get("id")
    if record.get("facts"):
        name = external_id if isinstance(external_id, str | int) else where
        return _refused(str(name), "annotated already; ingest the file as it is, with --format annotated")
    if isinstance(external_id, int) and not isinstance(external_id, bool):
        external_id = str(external_id)
    plain: dict[str, Any] = {name: record.get(name) for name in _KEPT}
    uri = record.get("uri") or record.get("url") or path.as_uri()
    if isinstance(plain["text"], str):
        plain["text"] = plain["text"].replace("\r\n", "\n").replace("\r", "\n")
    return parse_record({**plain, "id": external_id, "uri": uri, "facts": []}, where)


def _refused(document: str, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, 0, reason),))
