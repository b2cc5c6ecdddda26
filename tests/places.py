"""Where the tests find files: the project, the evaluation data beside it, and what was signed by older versions."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# For a child process: the program, and the tests beside it.
PYTHONPATH = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
SHARED_DATA = ROOT.parent / "shared" / "data"
SIGNED = ROOT / "tests" / "kb" / "signed"
