"""The shape of the program, as `scripts/structure` counts it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT

SCRIPT = ROOT / "scripts" / "structure"


def structure(checkout: Path) -> dict[str, Any]:
    ran = subprocess.run([SCRIPT, checkout, "--json"], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return structure(ROOT)


def test_no_session_of_the_database_is_opened_outside_the_knowledge_base(ours: dict[str, Any]) -> None:
    assert ours["where"]["sessions"] == {}


def test_no_modules_import_each_other_not_even_for_types(ours: dict[str, Any]) -> None:
    assert ours["where"]["circles"] == []


def test_no_two_public_classes_have_one_name(ours: dict[str, Any]) -> None:
    assert ours["where"]["class_names"] == {}


def test_no_figure_is_above_its_budget_or_far_below_it(ours: dict[str, Any]) -> None:
    budget = json.loads((ROOT / "scripts" / "budget.json").read_text())
    checked = subprocess.run([SCRIPT, ROOT, "--budget"], capture_output=True, text=True)
    assert (checked.stdout, checked.returncode) == ("", 0)
    lower = {name: ours[name] for name, most in budget.items() if ours[name] < 0.98 * most - 1}
    assert lower == {}, "lower the budget in scripts/budget.json"


def test_no_file_is_longer_than_a_subject_may_be(ours: dict[str, Any]) -> None:
    assert ours["file_lines"]["longest"] <= 600, "split it by subject: CONTRIBUTING.md"


def test_what_is_wrong_with_a_program_is_found(tmp_path: Path) -> None:
    for room in ("kb", "api"):
        (tmp_path / room).mkdir()
    (tmp_path / "kb" / "one.py").write_text("from colmlm.kb.two import b\n\n\ndef a(v, w, x, y, z): ...\n")
    (tmp_path / "kb" / "two.py").write_text("import colmlm.kb.one\n\n\ndef b(self, v, w, x, y, z): ...\n")
    opens = "def c():\n    with Session(engine) as session:\n        pass\n\n\nclass A: ...\n"
    (tmp_path / "api" / "three.py").write_text(opens)
    (tmp_path / "api" / "four.py").write_text("class A: ...\n")
    found = structure(tmp_path)
    assert found["where"]["circles"] == [["kb.one", "kb.two"]]
    assert found["where"]["sessions"] == {"api/three.py": 1}
    assert found["where"]["class_names"] == {"A": ["api/four.py", "api/three.py"]}
    assert found["signatures_written_again"] == 1
    assert found["single_importers"] == 2 and found["commands"] is None
    (tmp_path / "kb" / "one.py").write_text(
        "from colmlm.api.four import A\n\n\nclass Fault(ValueError): ...\n"
    )
    (tmp_path / "api" / "four.py").write_text(
        "import colmlm.kb.one\n\n\nclass Worse(colmlm.kb.one.Fault): ...\n"
    )
    found = structure(tmp_path)
    assert found["where"]["cycles"] == ["api, kb"]
    assert found["where"]["error_classes"] == ["Fault", "Worse"]
