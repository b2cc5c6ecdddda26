"""Where the tests find files: the project, the evaluation data beside it, and what was signed by older versions."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
SIGNED = ROOT / "tests" / "kb" / "signed"
