from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from colmlm.kb import interpreter
from tests.cli.conftest import ROOT, program


@pytest.mark.parametrize(
    ("typed", "offered"), [("colmlm tr", ["trace", "train"]), ("colmlm keysets act", ["activate"])]
)
def test_the_shell_is_offered_what_may_follow(typed: str, offered: list[str]) -> None:
    words = typed.split()
    asked = {"_COLMLM_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    assert program(env=asked).stdout.split() == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_completion_installs_itself_for_the_shell_that_asks(tmp_path: Path) -> None:
    line = f"{shlex.join(interpreter.command('-m', 'colmlm.cli'))} --install-completion; exit $?"
    ran = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    script = tmp_path / ".bash_completions" / "colmlm.sh"
    assert "_COLMLM_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
