"""Describes the machine that figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers")


def machine() -> dict[str, Any]:
    """Gives this machine's processor and number of cores, and the versions of Python and of the packages."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if _is_installed(name)},
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
