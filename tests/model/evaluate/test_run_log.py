"""A run's rows are kept, and resumed where they are of the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.model.evaluate.run_log import EvaluationFileError, RunLog

RUN = {"checkpoint_id": "abc", "mode": "auto"}


def test_a_run_that_was_killed_goes_on_behind_its_last_whole_line(tmp_path: Path):
    file = tmp_path / "answers" / "run.jsonl"
    made = {f"q{n}": {"output": f"a\u2028b\r\n{n} 🏔"} for n in range(4)}
    RunLog.open(file, RUN).add({name: made[name] for name in ("q0", "q1")})
    RunLog.open(file, RUN).add({"q2": made["q2"]})
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole + json.dumps({"row": "q3"})[:7], encoding="utf-8")
    log = RunLog.open(file, RUN)
    assert list(log.rows) == ["q0", "q1", "q2"] and file.read_text(encoding="utf-8") == whole
    log.add({"q3": made["q3"]})
    assert RunLog.open(file, RUN).rows == made


def test_the_rows_of_another_run_are_not_gone_on_with(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    RunLog.open(file, RUN).add({"q0": {}})
    with pytest.raises(EvaluationFileError, match="its mode differ"):
        RunLog.open(file, RUN | {"mode": "off"})
    for text in ("not JSON", '{"facts": []}\n', "[1]\n"):
        (tmp_path / "other").write_text(text)
        with pytest.raises(EvaluationFileError, match="no rows"):
            RunLog.open(tmp_path / "other", RUN)


def test_without_a_file_answers_are_kept_in_memory_only():
    log = RunLog.open(None, RUN)
    log.add({"q0": {}, "q1": {}})
    assert len(log.rows) == 2
