"""Secrets in files: private, complete, and of nobody once their writer is gone."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path

from colmlm.cli.bases.nearby import held_secret, read_held_secret, write_secret


def test_a_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "home" / "token"
    write_secret(file, "first")
    write_secret(file, "second")
    assert file.read_text() == "second\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_held_secret_is_read_while_it_is_held_and_gone_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    with held_secret(file, "said"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert read_held_secret(file) == read_held_secret(file) == "said\n"
    assert not file.exists() and read_held_secret(file) is None


def test_what_a_killed_process_left_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    if (child := os.fork()) == 0:
        with held_secret(file, "of a process that is killed"):
            os._exit(0)  # as killed as can be: nothing of it runs any more
    os.waitpid(child, 0)
    assert file.exists() and read_held_secret(file) is None
    with held_secret(file, "of the next"):
        assert read_held_secret(file) == "of the next\n"


def test_the_newest_holder_is_believed_and_keeps_its_file(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    with ExitStack() as older:
        older.enter_context(held_secret(file, "older"))
        with held_secret(file, "newer"):
            older.close()
            assert read_held_secret(file) == "newer\n"


def test_a_file_that_others_may_read_or_that_lies_elsewhere_is_not_read(tmp_path: Path) -> None:
    file, other = tmp_path / "server.json", tmp_path / "other"
    other.write_text("planted")
    other.chmod(0o600)
    with other.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_held_secret(other) == "planted"
        other.chmod(0o640)
        assert read_held_secret(other) is None
        other.chmod(0o600)
        file.symlink_to(other)
        assert read_held_secret(file) is None
