"""The log of a run: appended step by step, cut back when a run resumes, drawn, sent to TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from colmlm.model.training.config import TrainingRefused
from colmlm.model.training.logs import BOARD, LOSS_FILE, PLOT_FILE, TrainingLog, read_log

PNG = b"\x89PNG\r\n\x1a\n"


def write(log: TrainingLog, steps: range) -> None:
    for step in steps:
        log.write(step, {"loss": 10.0 / step, "accuracy": step / 10})


def test_each_line_is_in_the_file_at_once(tmp_path: Path):
    log = TrainingLog(tmp_path, 0, tensorboard=False)
    write(log, range(1, 4))
    assert (tmp_path / LOSS_FILE).read_text().splitlines() == [
        "step,loss,accuracy", "1,10.0,0.1", "2,5.0,0.2", "3,3.3333333333333335,0.3",
    ]  # fmt: skip
    log.close()


def test_a_run_that_goes_on_takes_the_lost_lines_away(tmp_path: Path):
    log = TrainingLog(tmp_path, 0, tensorboard=False)
    write(log, range(1, 6))
    log.close()
    with (tmp_path / LOSS_FILE).open("a") as target:
        target.write("6,1.6")  # the process was killed while it wrote this
    log = TrainingLog(tmp_path, 3, tensorboard=False)
    write(log, range(4, 6))
    log.close()
    assert read_log(tmp_path / LOSS_FILE)["step"] == [1, 2, 3, 4, 5]
    log = TrainingLog(tmp_path, 0, tensorboard=False)
    write(log, range(1, 2))
    log.close()
    assert read_log(tmp_path / LOSS_FILE) == {"step": [1.0], "loss": [10.0], "accuracy": [0.1]}


def test_the_plot_is_a_picture_of_what_there_is(tmp_path: Path):
    log = TrainingLog(tmp_path, 0, tensorboard=False)
    log.plot()
    assert not (tmp_path / PLOT_FILE).exists()
    write(log, range(1, 200))
    log.plot()
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(PNG)
    log.close()


def test_tensorboard_gets_every_number(tmp_path: Path):
    pytest.importorskip("tensorboard", exc_type=ImportError)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TrainingLog(tmp_path, 0)
    write(log, range(1, 6))
    log.close()
    log = TrainingLog(tmp_path, 3)
    write(log, range(4, 7))
    log.close()
    events = EventAccumulator(str(tmp_path / BOARD)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (step, pytest.approx(10 / step)) for step in (1, 2, 3, 4, 5, 6)
    ]


def test_tensorboard_that_is_asked_for_and_missing_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as where it is not installed
    with pytest.raises(TrainingRefused, match=r"pip install 'colmlm\[tensorboard\]'"):
        TrainingLog(tmp_path, 0, tensorboard=True)
    log = TrainingLog(tmp_path, 0)
    write(log, range(1, 3))
    log.close()
    assert not (tmp_path / BOARD).exists()
