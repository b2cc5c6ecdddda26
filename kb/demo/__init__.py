"""A small demo corpus of short documents with annotated facts; `lab.demo_corpus` makes it from the JSON files here."""

from __future__ import annotations

from pathlib import Path

DEMO_CORPUS: Path = Path(__file__).resolve().parent / "corpus.jsonl"
"""One document per line: id, title, uri, licence, revision, text and facts (offsets in code points)."""
