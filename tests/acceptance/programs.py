"""Give the programs of this folder their options, a database of their own, and one way to report."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser that describes the program by the first line of its module, and knows `--json`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end, which the user of an embedded server may enter."""
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def own_database(actor: str = "tester") -> Iterator[Settings]:
    """Start an embedded server with an empty, migrated database, and stop it at the end."""
    with own_folder() as folder:
        settings = Settings(home=folder, actor=actor)
        engine = database.connect_database(settings)
        database.migrate_database(engine)
        try:
            yield replace(settings, database_url=engine.url.render_as_string(hide_password=False))
        finally:
            engine.dispose()  # which also stops the server


def report(outcome: Any, *, is_good: bool, as_json: bool) -> int:
    """Print what a program found, a dataclass or a mapping, and give its exit code."""
    found: Mapping[str, Any] = outcome if isinstance(outcome, Mapping) else asdict(outcome)
    print(json.dumps(found) if as_json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0 if is_good else 1
