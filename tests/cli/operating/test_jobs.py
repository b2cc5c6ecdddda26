"""`colmlm jobs` and `colmlm worker`: the same work as in the terminal, done elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from colmlm.kb import interpreter
from colmlm.kb.jobs.kinds import Documents
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import ROOT, Annotators, Run


def started(run: Run, *words: object) -> int:
    ran = run("jobs", "start", *words, "--json")
    assert ran.code == 0, ran.err
    job_id: int = ran.json["job_id"]
    return job_id


def result_of(run: Run, job_id: int) -> dict[str, Any]:
    ran = run("jobs", "list", job_id, "--wait", "--json")
    assert ran.code == 0, ran.json["error"]
    result: dict[str, Any] = ran.json["result"]
    return result


def test_a_keyset_is_made_checked_and_activated_by_jobs(run: Run, atlas: list[int]) -> None:
    rekey, gate = started(run, "rekey"), started(run, "gate", "keyset_id=1", "activate=true", "sample=5")
    assert [job["job_id"] for job in run("jobs", "list", "--state", "queued", "--json").json["jobs"]] == [
        gate,
        rekey,
    ]
    assert "Ran 2 jobs" in run("worker", "--once").err
    assert "No job was waiting." in run("worker", "--once").err
    made = result_of(run, rekey)
    assert (made["num_keys"], made["num_unkeyed"], made["state"]) == (2, 0, "active")
    checked = result_of(run, gate)
    assert checked["keyset_id"] == 1 and checked["activated"] is checked["passed"]
    assert run("log", "list", "--json").json["changes"][0]["actor"] == "tester"
    shown = run("jobs", "list", rekey)
    assert (
        shown.code == 0
        and "2 of 2 Calibrating" in shown.out
        and "num keys: 2" in shown.out
        and "calibrated: yes" in shown.out
    )


def test_uploaded_documents_are_annotated_taken_in_and_keyed(
    run: Run, kb: KnowledgeBase, light: Annotators, home: Path
) -> None:
    jobs = Jobs(kb)
    texts = {"harbour.md": b"# Harbour\n\nThe harbour opened in 1834.\n", "noise.txt": bytes(range(256))}
    uploads = [jobs.uploads.save(name, [text]).upload_id for name, text in texts.items()]
    job_id = jobs.submit(Documents(upload_ids=uploads, corpus="town"), actor="ana").job_id
    assert run("worker", "--once").code == 0
    result = result_of(run, job_id)
    assert (result["new"], result["facts"], result["refused"], result["citable"]) == (1, 1, 1, True)
    (fact,) = kb.facts.find()
    assert fact.value == "1834" and fact.source is not None
    assert (fact.source.external_id, fact.source.uri) == ("harbour.md", None)
    assert kb.log.changes()[0].actor == "ana" and list((home / "uploads").iterdir()) == []


def test_what_cannot_be_done_is_said_in_one_line(run: Run, atlas: list[int]) -> None:
    for words in (["rekey", "keyset_id"], ["rekey", "keyset_id=x"], ["backup"], ["rekey", "checkpoint=a/b"]):
        ran = run("jobs", "start", *words)
        assert ran.code == 2 and ran.err.count("\n") == 1, ran.err
    missing = started(run, "rekey", "checkpoint=missing")
    verify = started(run, "verify", "run_id=7")
    assert run("jobs", "list", missing, "--wait", "--timeout", 0).code == 1
    assert run("jobs", "cancel", verify, "--actor", "ben", "--json").json["cancelled_by"] == "ben"
    run("worker", "--once")
    failed = run("jobs", "list", missing, "--wait")
    assert failed.code == 1 and "no directory 'missing'" in failed.out
    assert run("jobs", "cancel", verify).code == 4
    assert run("jobs", "list", 4711).code == 3


def child_of(pid: int) -> int | None:
    """Its worker: for a moment a server also has children that look libraries up for it."""
    return next((child.pid for child in psutil.Process(pid).children() if is_worker(child)), None)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "worker" in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


def is_gone(pid: int) -> bool:
    """Whether it has ended; who should hear of that may not be listening."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def waited_for(reached: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 90
    while not (found := reached()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)
    return found


@pytest.fixture
def served(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = interpreter.command("-m", "colmlm.cli", "serve", "--no-model", "--port", port)
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.mark.slow(reason="starts a server and its worker, and kills the worker")
def test_the_servers_worker_is_started_again_and_goes_with_it(
    run: Run, atlas: list[int], served: subprocess.Popen[bytes]
) -> None:
    worker = waited_for(lambda: child_of(served.pid))
    assert result_of(run, started(run, "fsck"))["ok"]
    os.kill(worker, signal.SIGKILL)
    assert result_of(run, started(run, "fsck"))["ok"]
    another = child_of(served.pid)
    assert served.poll() is None and another is not None and another != worker
    served.kill()
    waited_for(lambda: is_gone(another))
