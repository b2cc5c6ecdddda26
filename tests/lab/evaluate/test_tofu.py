"""`colmlm-lab evaluate tofu-log`: numbers, intervals and forget quality of a log, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import invoke

TABLES = (
    "eval_log.json",
    "eval_real_author_wo_options.json",
    "eval_real_world_wo_options.json",
    "eval_log_forget.json",
)


def log(file: Path, rows: int = 40, *, wrong: float = 3.0) -> Path:
    """A log whose examples differ a little; `wrong` is about the loss of wrong answers."""
    table = {
        "avg_gt_loss": {str(i): 0.5 + i / 100 for i in range(rows)},
        "avg_paraphrased_loss": {str(i): 0.7 + i / 100 for i in range(rows)},
        "average_perturb_loss": {str(i): [wrong, wrong + i / 50] for i in range(rows)},
        "rougeL_recall": {str(i): i % 3 / 2 for i in range(rows)},
    }
    file.write_text(json.dumps(dict.fromkeys(TABLES, table)))
    return file


def test_the_report_has_the_nine_numbers_the_forget_set_and_their_intervals(tmp_path: Path) -> None:
    report = invoke("evaluate", "tofu-log", log(tmp_path / "one.json"), "--json").json
    numbers = [
        f"{t}_{n}" for t in ("retain", "ra", "wf", "forget") for n in ("prob", "rougeL_recall", "truth_ratio")
    ]
    assert "forget_quality" not in report
    assert set(report["intervals"]) == {*numbers, "model_utility"}
    assert all(
        low <= report[name] <= high and low < high for name, (low, high) in report["intervals"].items()
    )
    assert report["retain_n"] == report["forget_n"] == 40


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_forget_quality_is_of_the_two_logs(tmp_path: Path) -> None:
    one, other = log(tmp_path / "one.json"), log(tmp_path / "other.json", wrong=1.0)
    same, apart = (
        invoke("evaluate", "tofu-log", one, "--retain", retain, "--json").json for retain in (one, other)
    )
    assert same["forget_quality"] == 1 and same["forget_ks"] == 0
    assert apart["forget_quality"] < 1e-9 and apart["forget_ks"] == 1


def test_people_read_a_table_and_are_warned_of_another_forget_set(tmp_path: Path) -> None:
    one, other = log(tmp_path / "one.json"), log(tmp_path / "other.json", rows=30)
    done = invoke("evaluate", "tofu-log", one, "--retain", other)
    assert done.code == 0
    assert "model utility" in done.out and "forget quality" in done.out
    assert "the forget sets differ, 40 and 30 examples" in done.err


@pytest.mark.parametrize("arguments", [["bad.json"], ["good.json", "--retain", "bad.json"]])
def test_a_file_that_is_no_log_is_refused_in_a_line(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log(tmp_path / "good.json")
    (tmp_path / "bad.json").write_text("{}")
    done = invoke("evaluate", "tofu-log", *arguments, "--json")
    assert done.code == 2 and done.out == ""
    assert "bad.json is no evaluation log" in done.err
