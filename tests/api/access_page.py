"""Compares the generated tables of docs/access.md with what the app answers."""

from __future__ import annotations

import os
import re

from tests.places import ROOT

DOC = ROOT / "docs" / "access.md"


def hold_to(test: str, found: str) -> None:
    """Requires that the table which names this test says what was found; with UPDATE_DOCS writes it anew."""
    table = re.compile(rf"(<!-- asked [^\n]*{re.escape(test)} -->\n).*?(?=\n\n)", re.DOTALL)
    page = DOC.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_DOCS"):
        DOC.write_text(table.sub(lambda written: written[1] + found, page), encoding="utf-8")
        return
    written = table.search(page)
    assert written is not None, f"no table names {test}"
    assert written.group() == written[1] + found, f"run: UPDATE_DOCS=1 pytest {test}"
