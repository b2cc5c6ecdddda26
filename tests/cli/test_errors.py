from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from psycopg.errors import DiskFull, LockNotAvailable, QueryCanceled, ReadOnlySqlTransaction
from sqlalchemy.exc import DBAPIError

from colmlm.cli import errors
from colmlm.cli.composition.runtime import ON_EXISTING_BASE
from colmlm.cli.errors import explain
from colmlm.cli.start.commands import COMMANDS, VERBS
from colmlm.kb.errors import FactNotFound, KBError, refusals
from tests.cli.conftest import invoke
from tests.disks import files_limited_to
from tests.places import ROOT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FactNotFound([3]), 3),
        (refusals.log_held(None, 10.0), 8),
        (QueryCanceled("canceling statement due to statement timeout"), 8),
        (LockNotAvailable("canceling statement due to lock timeout"), 8),
        (DBAPIError("SELECT 1", {}, LockNotAvailable("canceling statement due to lock timeout")), 8),
        (FileNotFoundError(2, "No such file or directory", "x.jsonl"), 2),
        (IsADirectoryError(21, "Is a directory", "/"), 2),
        (PermissionError(13, "Permission denied", "/root"), 2),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2),
        (OSError(28, "No space left on device"), 9),
        (OSError(30, "Read-only file system", "/kb"), 9),
        (OSError(5, "Input/output error"), 1),
        (DiskFull("could not extend file"), 9),
        (ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction"), 9),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ZeroDivisionError("division by zero"), 70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert explain(error).exit_code == code


@pytest.mark.parametrize(
    "error", [ValueError("a\nb\n\nc"), OSError(5, "Input/output\nerror", "a\nb"), KBError("x\ny")]
)
def test_an_explanation_is_one_line(error: Exception) -> None:
    assert "\n" not in explain(error).line


def test_model_errors_are_known_by_their_real_names() -> None:
    from colmlm.model.lm.config import BaseNotFound, CheckpointError

    assert explain(CheckpointError("no")).exit_code == errors.MODEL
    assert explain(BaseNotFound("no")).exit_code == errors.MODEL


def test_weights_and_tokenizers_that_find_no_space_are_no_fault_of_the_program(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from tests.tiny import bare_tokenizer

    file = str(tmp_path / "file")
    for write in (
        lambda: save_file({"weights": torch.zeros(100)}, file),
        lambda: bare_tokenizer().save(file),
    ):
        with files_limited_to(100), pytest.raises(Exception, match="File too large") as full:
            write()
        failure = explain(full.value)
        assert failure.exit_code == 9 and "No space is left" in failure.line


def test_a_statement_with_its_parameters_is_not_repeated() -> None:
    from sqlalchemy.exc import OperationalError

    failure = explain(OperationalError("SELECT :secret", {"secret": "hunter2"}, Exception("server closed")))
    assert failure.exit_code == errors.DATABASE
    assert "server closed" in failure.line and "hunter2" not in failure.line


@pytest.mark.parametrize("name", ["OperationalError", "InterfaceError", "errors.AdminShutdown"])
def test_a_database_that_goes_away_under_the_driver_itself_is_no_fault_of_ours(name: str) -> None:
    import psycopg

    failure = explain(attrgetter(name)(psycopg)("terminating connection"))
    assert failure.exit_code == errors.DATABASE
    assert "terminating connection" in failure.line and "colmlm db status" in failure.line


def test_every_exit_code_is_in_the_table() -> None:
    named = {line.split()[0] for line in (errors.__doc__ or "").splitlines() if line[:1].isdigit()}
    assert {str(code) for code in errors._CODES.values()} <= named


@pytest.mark.parametrize("name", [name for name in errors._CODES if name.startswith("colmlm.")])
def test_a_code_is_of_an_error_that_there_is(name: str) -> None:
    module, _, error = name.rpartition(".")
    assert issubclass(getattr(import_module(module), error), Exception)


def test_a_job_that_found_the_disk_full_says_so() -> None:
    from colmlm.cli.composition.handlers import problem

    said = problem(OSError(28, "No space left on device", "/kb/index/x"))
    assert said["type"] == "urn:colmlm:StorageFull"
    assert "/kb/index/x" in said["detail"]


def test_a_home_without_a_knowledge_base_is_named_and_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLMLM_DATABASE_URL", raising=False)
    home = tmp_path / "mistyped"
    monkeypatch.setenv("COLMLM_HOME", str(home))
    for words in (
        ["log", "verify"],
        ["facts", "list"],
        ["trace", "output", "1"],
        ["erase", "1", "--dry-run"],
        ["facts", "compare", "contradictions"],
        ["hold", "list"],
        ["corpus", "delete", "wiki", "--yes", "--reason", "closed"],
        ["keysets", "activate", "1"],
    ):
        refused = invoke(*words)
        assert refused.code == 5 and f"There is no knowledge base in {home}" in refused.err
        assert not (home / "postgres").exists()


def test_every_command_that_needs_a_knowledge_base_exists() -> None:
    groups = re.findall(r"\|?(?:(\w+) )?\(([\w|]+)\)\\b|(\w+) (\w+)\\b", ON_EXISTING_BASE.pattern)
    named = [
        (group or alone_group, verb)
        for group, verbs, alone_group, alone_verb in groups
        for verb in (verbs or alone_verb).split("|")
    ]
    assert len(named) > 20
    unknown = [pair for pair in named if pair[1] not in (VERBS[pair[0]] if pair[0] else COMMANDS)]
    assert unknown == []


def test_a_person_at_the_shell_reads_the_option_and_not_the_field_of_the_api() -> None:
    assert explain(refusals.answered_already([3], "Lima")).line.endswith(
        "Edit it, or pass --anyway to have both."
    )
    erased = refusals.fact_suppressed("Fact 2 of these 3", "none of them was added")
    assert "Pass --allow-erased to have it again" in explain(erased).line


def test_a_missing_package_has_one_remedy_and_a_missing_file_the_one_of_its_kind() -> None:
    said = explain(FileNotFoundError("x is not installed. Run `pip install x`")).line
    assert said == "x is not installed. Run `pip install x`."
    gone = explain(FileNotFoundError(2, "No such file or directory", "a. b/x.jsonl")).line
    assert gone == "a. b/x.jsonl: No such file or directory. Check the path and try again."


def test_an_option_beside_which_another_is_missing_is_named_alone() -> None:
    refused = invoke("questions", "threshold", "--wrong", "0.02")
    assert refused.code == 2
    assert (
        "Invalid value for --wrong: it counts beside --calibrate alone; pass --calibrate too" in refused.err
    )
    refused = invoke("keysets", "threshold", "--sample", "9", "--dry-run")
    assert "Invalid value for --sample, --dry-run: they count beside --calibrate alone" in refused.err


_ACTION = re.compile(
    r"\b(add|allow|ask|check|choose|correct|count|get|give|leave|look|make|name|pass|put|raise|read|remove|run|say"
    r"|save|see|send|set|shorten|stop|such as|as in|take|use|write)\b",
    re.IGNORECASE,
)


def _refusals_of_values() -> Iterator[tuple[str, str, str]]:
    """Give the place, the words and the named option of each `BadParameter` whose words are not another error's."""
    for file in [*(ROOT / "cli").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("BadParameter"):
                continue
            words = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
            said = "".join(str(part.value) for part in words)
            hint = next((one.value for one in node.keywords if one.arg == "param_hint"), None)
            if said.strip(".: "):
                named = hint.value if isinstance(hint, ast.Constant) else ""
                yield f"{file.relative_to(ROOT)}:{node.lineno}", said, str(named)


def test_each_refusal_of_a_value_says_what_to_do_and_names_no_option_that_was_not_given() -> None:
    found = list(_refusals_of_values())
    assert len(found) > 100
    assert [(place, said) for place, said, _ in found if not _ACTION.search(said)] == []
    assert [(place, hint) for place, _, hint in found if "," in hint] == []
