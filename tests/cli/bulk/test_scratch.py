"""The directories in which Ray works: those of commands that are gone are swept, those of others are not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from colmlm.cli.composition.bulk.spreading import PREFIX, scratch
from colmlm.kb import interpreter

HOLDER = """
from colmlm.cli.composition.bulk.spreading import scratch
with scratch() as one: print(one, flush=True); input()
"""


def holder() -> subprocess.Popen[bytes]:
    """Starts a process that says its directory, and works there until it is told something."""
    return subprocess.Popen(interpreter.command("-c", HOLDER), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_directory_goes_with_its_block_and_is_of_its_user_alone() -> None:
    with scratch() as directory:
        Path(directory, "r").mkdir()
        assert Path(directory).name.startswith(PREFIX) and Path(directory).stat().st_mode & 0o077 == 0
    assert not Path(directory).exists()


def test_what_a_killed_process_left_is_swept_and_what_others_work_in_is_not(tmp_path: Path) -> None:
    with holder() as killed, holder() as at_work:
        left, used = (Path(one.stdout.readline().decode().strip()) for one in (killed, at_work))
        killed.kill()
        killed.wait()
        link = left.with_name(f"{PREFIX}link-{os.getpid()}")
        (tmp_path / "kept").touch()
        link.symlink_to(tmp_path)
        with scratch():
            assert not left.exists() and used.exists() and (tmp_path / "kept").exists()
        link.unlink()
        at_work.communicate(b"\n", timeout=60)
    assert not used.exists()
