"""The version of the program, as it is installed."""

from __future__ import annotations


def version() -> str:
    """Give the version; "unknown" where the program runs from a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("colmlm")
    except PackageNotFoundError:
        return "unknown"
