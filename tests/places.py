"""Paths that the tests need: the project, the evaluation data beside it, and files signed by older versions."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# for child processes: the program and the tests
PYTHONPATH = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
SHARED_DATA = ROOT.parent / "shared" / "data"
SIGNED = ROOT / "tests" / "kb" / "signed"
