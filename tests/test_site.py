"""The site's reference pages, drawn from the program, leave nothing out; its prose keeps the rules."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from types import ModuleType
from typing import Any

import pytest

from colmlm.api.app import build_routes
from colmlm.api.schema.openapi import complete_document
from colmlm.kb import interpreter
from colmlm.kb.errors import KINDS, KBError
from tests.places import ROOT
from tests.test_docs import settings_read


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return complete_document(build_routes())


def test_every_setting_is_described(site: ModuleType) -> None:
    rows = re.findall(r"^\| `(COLMLM_\w+)` \| [^|]* \| (.+) \|$", site.settings_page(), re.MULTILINE)
    secrets = {f"{name}_FILE" for name, _ in rows}
    assert settings_read() <= {name for name, _ in rows} | secrets
    assert all(text.endswith(".") for _, text in rows)


def test_every_error_code_has_a_title_a_status_and_a_message(site: ModuleType) -> None:
    page = site.errors_page()
    found = re.findall(r"^## (\w+)\n\n\*\*.+\.\*\* HTTP status [45]\d\d\.\n\n> \S", page, re.MULTILINE)
    for module in site.ERROR_FILES:
        importlib.import_module(
            f"colmlm.{module.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        )
    kinds = {kind.__name__ for kind in KINDS.values() if kind.title == KBError.title}
    assert len(found) == page.count("\n## ")
    assert set(KINDS) - kinds <= set(found), "a code without a page"


def test_every_route_is_on_the_pages_of_rights_and_of_http(
    site: ModuleType, document: dict[str, Any]
) -> None:
    rights, http = site.rights_page(), site.http_page()
    for path, item in document["paths"].items():
        for method in item:
            assert f"`{method.upper()} {path}`" in http and f"`{method.upper()} {path}` |" in rights, (
                method,
                path,
            )


def test_every_command_and_option_is_on_the_page_of_the_command_line(site: ModuleType) -> None:
    page = site.command_line_page()
    for words in (
        "### colmlm facts delete",
        "### colmlm-lab evaluate documents",
        "`--dry-run`",
        "`--corpus`",
    ):
        assert words in page
    assert "| 141 | the reader of the output closed it |" in page
    assert page.count("\n### colmlm ") >= 90, "a command without a section"


def test_every_metric_that_a_server_gives_is_described(site: ModuleType) -> None:
    named = set(re.findall(r"^\| `(colmlm_\w+)`", site.metrics_page(), re.MULTILINE))
    source = (ROOT / "api" / "watch" / "metrics.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\"(colmlm_[a-z_]+)\"", source)) <= named


def test_prose_is_measured_without_code_tables_and_headings(tmp_path: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One; two\n\n| a; b |\n|---|\n\nYou stop it. It ends; what is left goes.\n\n```sh\nx; y\n```\n"
    )
    figures = json.loads(run_prose("--json", str(page)).stdout)["all"]
    assert (figures["words"], figures["mean_sentence"]) == (9, 4.5)
    assert (figures["semicolons"], figures["you"]) == (111.11, 111.1)
    refused = run_prose("--check", str(page))
    assert refused.returncode == 1 and "a semicolon" in refused.stdout and "clause" in refused.stdout


def run_prose(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        interpreter.command(ROOT / "scripts" / "prose", *words), capture_output=True, text=True
    )
