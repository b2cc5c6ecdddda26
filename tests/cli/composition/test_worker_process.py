"""The worker beside a server: what it dies of is kept, told, and forgotten when it goes on."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.cli.composition.worker_process import WorkerProcess
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.cli.conftest import Run
from tests.cli.operating.test_doctor import finding


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_what_a_worker_died_of_is_kept_without_secrets(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"postgresql+psycopg://me:hunter2@/nowhere?host={tmp_path}"
    settings.home.mkdir(parents=True, exist_ok=True)
    with WorkerProcess(replace(settings, database_url=nowhere)) as worker:
        assert worker.state().running and not worker.state().failures
        until(lambda: worker.state().failures)
        state = worker.state()
        assert (state.exit_code, state.restarts) == (5, 1)
        assert "No database answers at" in state.last_error[-1]
        assert tickets.noted_attendance(settings.home) == state
        file = settings.home / "worker.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "hunter2" not in file.read_text()
    assert tickets.noted_attendance(settings.home) is None, "it was told to end"
    assert "No database answers at" in capfd.readouterr().err, "the server's log has it too"


@pytest.mark.slow(reason="starts worker processes and waits for their restarts")
def test_a_worker_that_goes_on_is_well_again(kb: KnowledgeBase, settings: Settings) -> None:
    with WorkerProcess(settings, steady_seconds=1.0) as worker:
        until(lambda: Jobs(kb).num_workers())
        worker._process.kill()
        until(lambda: worker.state().failures)
        assert tickets.noted_attendance(settings.home) is not None
        until(lambda: worker.state().running and not worker.state().failures)
        assert worker.state().restarts == 1 and worker.state().exit_code == -9
        until(lambda: tickets.noted_attendance(settings.home) is None)


@pytest.mark.slow(reason="starts worker processes and waits for their restarts")
def test_a_worker_that_the_system_does_not_start_is_tried_again(
    kb: KnowledgeBase, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkerProcess(settings) as worker:
        until(lambda: Jobs(kb).num_workers())
        worker.environment["FILLED"] = "x" * (1 << 20)  # more than a process may be given
        worker._process.kill()
        until(lambda: "cannot be started" in caplog.text)
        assert "Argument list too long" in worker.state().last_error[-1] and not worker.state().running
        del worker.environment["FILLED"]
        until(lambda: worker.state().running)


def test_a_doctor_names_a_worker_that_fails_and_jobs_that_nobody_does(
    run: Run, keyed_here: list[int], home: Path
) -> None:
    assert finding(run("doctor", "--json"), "worker")["state"] == "ok"
    noted = {
        "running": False,
        "since": "2026-01-02T03:04:05Z",
        "failures": 4,
        "restarts": 9,
        "exit_code": 1,
        "last_error": ["Traceback", "ModuleNotFoundError: no such thing"],
    }
    (home / "worker.json").write_text(json.dumps(noted))
    ran = run("doctor", "--json")
    found = finding(ran, "worker")
    assert ran.code == 1 and found["state"] == "failed"
    assert "4 times in a row" in found["found"] and found["found"].endswith("no such thing")
    (home / "worker.json").write_text("no JSON")
    assert finding(run("doctor", "--json"), "worker")["state"] == "ok"
