"""A small demo corpus of short documents with annotated facts; `lab.demo_corpus` makes it from the JSON files here."""

from __future__ import annotations

from pathlib import Path

DEMO_CORPUS: Path = Path(__file__).resolve().parent / "corpus.jsonl"
"""One document per line: id, title, uri, licence, revision, text and facts (offsets in code points)."""

DEMO_KEYS: Path = DEMO_CORPUS.with_name("keys.safetensors")
"""The keys of these documents and of the questions that calibrate them, by the released checkpoint."""
