"""Bulk work by real processes of Ray on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
from sqlalchemy import make_url

from colmlm.cli.composition.bulk.errands import KeyingElsewhere
from colmlm.cli.composition.bulk.spreading import RayPlace, Spreading
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CONFLICT, FailedElsewhere
from colmlm.kb import interpreter
from colmlm.kb.keys.records import RekeyPart
from colmlm.kb.service import KnowledgeBase
from colmlm.model.lm.checkpoint import load
from tests.cli.conftest import Annotators, Run
from tests.gates import await_that, gate
from tests.kb.corpora import ingest, numbered
from tests.tiny import tiny_checkpoint

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow(reason="starts Ray"), pytest.mark.timeout(600)]

SECRET = "a-password-that-nobody-may-read"


@pytest.fixture
def facts(home: Path, kb: KnowledgeBase) -> int:
    """Documents for five batches, in the base of the settings."""
    ingest(kb, *numbered(300))
    return len(kb.facts.find(limit=1000))


@pytest.fixture
def elsewhere(home: Path, facts: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Runtime, list[int]]]:
    """A runtime whose URL has a password, and the processes that were there before."""
    before = [process.pid for process in psutil.Process().children(recursive=True)]
    url = make_url(os.environ["COLMLM_DATABASE_URL"]).set(password=SECRET)
    monkeypatch.setenv("COLMLM_DATABASE_URL", url.render_as_string(hide_password=False))
    with Runtime.from_environment() as runtime:
        runtime.open()
        yield runtime, before


def started_since(before: list[int]) -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in before]


def processes_of(folder: object) -> list[psutil.Process]:
    """Those of Ray that name this folder, whoever their parent is by now."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if str(folder) in " ".join(process.info["cmdline"] or ())]


def test_a_rekey_on_ray_makes_the_keys_of_one_process(
    run: Run, facts: int, kb: KnowledgeBase, checkpoint: Path, tmp_path: Path
) -> None:
    ran = run("keysets", "fill", "--ray", "auto", "--ray-workers", 2, "--json")
    assert (ran.code, ran.json["num_keys"], ran.json["num_unkeyed"]) == (0, facts, 0), ran.err
    changes = [change for change in kb.log.changes(limit=1000) if change.kind == "key"]
    assert len(changes) >= 5 and {change.actor for change in changes} == {"tester"}
    ids, keys = kb.keysets.keys(ran.json["keyset_id"])
    found = ModelEncoder(load(checkpoint, tmp_path)).encode_documents(list(kb.corpora.export("lands")))
    alone = np.concatenate(found)
    assert len(ids) == len(set(ids.tolist())) == len(alone)
    assert np.allclose(np.sum(keys * alone, axis=1), 1, atol=1e-3)
    assert run("doctor", "--data", "--json").json["ok"]


def test_ray_is_told_no_secret_listens_to_nobody_outside_and_ends(
    elsewhere: tuple[Runtime, list[int]], kb: KnowledgeBase
) -> None:
    runtime, before = elsewhere
    keyset = kb.keysets.create(runtime.encoder.checkpoint)
    seen: dict[str, object] = {}
    keying = KeyingElsewhere(Spreading(runtime, RayPlace(None, 1)))

    def look() -> None:
        processes = started_since(before)
        folder = Path(next(process.cwd() for process in processes if "colmlm-ray-" in process.cwd()))
        seen["folder"], seen["mode"] = folder, folder.stat().st_mode & 0o077
        seen["command lines"] = [p.pid for p in processes if SECRET in " ".join(p.cmdline())]
        seen["addresses"] = {
            one.laddr.ip.removeprefix("::ffff:")  # IPv4, heard by a socket of IPv6
            for process in processes
            for one in process.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        }
        files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
        seen["files"] = [str(file) for file in files if SECRET.encode() in file.read_bytes()]
        seen["number of files"] = len(files)

    class Looking:
        def __call__(self, parts):
            with closing(keying(parts)) as heard:
                for number in heard:
                    if number and not seen:
                        look()
                    yield number

    kb.keysets.rekey(runtime.encoder, elsewhere=Looking())
    assert seen["number of files"] and (seen["mode"], seen["command lines"], seen["files"]) == (0, [], [])
    assert seen["addresses"] <= {"127.0.0.1", "::1"} and seen["addresses"]
    assert not Path(str(seen["folder"])).exists() and started_since(before) == []
    _, left = psutil.wait_procs(processes_of(seen["folder"]), timeout=10)
    assert left == []
    assert kb.keysets.show(keyset.keyset_id).num_unkeyed == 0


def test_a_killed_process_costs_nothing_and_what_it_committed_is_not_made_again(
    elsewhere: tuple[Runtime, list[int]], kb: KnowledgeBase
) -> None:
    runtime, before = elsewhere
    keying, killed = KeyingElsewhere(Spreading(runtime, RayPlace(None, 2))), []

    class Killing:
        def __call__(self, parts):
            with closing(keying(parts)) as heard:
                for number in heard:
                    if number and not killed:
                        workers = [p for p in started_since(before) if "RayWorker" in " ".join(p.cmdline())]
                        killed.extend(workers)
                        workers[0].kill()
                    yield number

    made = kb.keysets.rekey(runtime.encoder, elsewhere=Killing())
    assert killed and (made.num_unkeyed, made.num_keys) == (0, len(kb.facts.find(limit=1000)))
    assert kb.upkeep.fsck().ok and started_since(before) == []


def test_what_a_worker_cannot_do_is_told_in_a_line_with_its_code(
    home: Path, facts: int, tmp_path: Path
) -> None:
    own = tiny_checkpoint(tmp_path / "own", seed=5)
    parts: list[RekeyPart] = []

    def noting(asked: Sequence[RekeyPart]) -> Generator[int, None, None]:
        parts.extend(asked)
        yield 0

    with Runtime.from_environment(checkpoint=own) as runtime:
        runtime.kb.keysets.rekey(runtime.encoder, elsewhere=noting)
    own.rename(tmp_path / "away")  # now a worker finds the checkpoint of the settings, which is another
    with Runtime.from_environment() as runtime:
        runtime.open()
        with pytest.raises(FailedElsewhere, match=r"^A worker of Ray failed: .*cannot be compared") as caught:
            list(KeyingElsewhere(Spreading(runtime, RayPlace(None, 1)))(parts[:2]))
    assert caught.value.failure.exit_code == CONFLICT and "\n" not in caught.value.failure.line


def test_workers_load_the_checkpoint_that_is_named(
    run: Run, facts: int, kb: KnowledgeBase, tmp_path: Path
) -> None:
    own, moved = tiny_checkpoint(tmp_path / "own", seed=5), tmp_path / "moved"
    assert run("keysets", "create", "--checkpoint", own, "--empty").code == 0
    own.rename(moved)
    ran = run("keysets", "fill", 1, "--checkpoint", moved, "--ray", "auto", "--ray-workers", 1, "--json")
    assert (ran.code, ran.json["num_keys"], ran.json["num_unkeyed"]) == (0, facts, 0), ran.err


def test_a_command_that_is_killed_leaves_no_process_and_the_next_one_sweeps_its_folder(
    run: Run, facts: int, kb: KnowledgeBase, database_url: str
) -> None:
    words = ("keysets", "fill", "--ray", "auto", "--ray-workers", "1")
    with gate(database_url, "INSERT ON fact_key") as in_the_first_part:
        command = subprocess.Popen(
            interpreter.command("-m", "colmlm.cli", *words), stderr=subprocess.DEVNULL, start_new_session=True
        )
        await_that(in_the_first_part)
        started = psutil.Process(command.pid).children(recursive=True)
        folder = next(Path(one.cwd()) for one in started if "colmlm-ray-" in one.cwd())
        command.kill()
        command.wait()
        _, left = psutil.wait_procs(started + processes_of(folder), timeout=60)
        assert left == [] and folder.exists()
    ran = run(*words, "--json")
    assert (ran.code, ran.json["num_keys"]) == (0, facts), ran.err
    assert not folder.exists()


def test_documents_are_annotated_on_ray_as_by_one_process(
    run: Run, kb: KnowledgeBase, light: Annotators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")  # of a user whose locale is not UTF-8
    folder = tmp_path / "town"
    folder.mkdir()
    for n in range(20):
        (folder / f"{n:02}.md").write_text(f"# Café {n}\n\nThe café {n} of Lundvik opened in {1800 + n}.\n")
    alone = run("corpus", "annotate", folder, "--output", tmp_path / "alone.jsonl", "--json")
    spread = run("corpus", "annotate", folder, "--output", tmp_path / "ray.jsonl", "--ray", "auto", "--json")
    assert (alone.code, spread.code) == (0, 0), spread.err
    lines = [sorted((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("alone", "ray")]
    assert lines[0] == lines[1] and len(lines[0]) >= 20


def test_a_job_runs_on_ray_and_a_cancelled_one_leaves_what_it_committed(
    run: Run, facts: int, kb: KnowledgeBase, home: Path
) -> None:
    job_id = run("jobs", "start", "rekey", "--json").json["job_id"]
    worker = subprocess.Popen(
        interpreter.command("-m", "colmlm.cli", "worker", "--ray", "auto", "--ray-workers", "1"),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 200
        while not (keysets := kb.keysets.all()) or not keysets[0].num_keys:
            assert time.monotonic() < until and worker.poll() is None
            time.sleep(0.05)
        run("jobs", "cancel", job_id)
        assert run("jobs", "list", job_id, "--wait", "--timeout", 60, "--json").json["state"] in (
            "cancelled",
            "succeeded",
        )
        kept = kb.keysets.all()[0].num_keys
        assert kept > 0
        again = run("jobs", "start", "rekey", "--json").json["job_id"]
        assert (
            run("jobs", "list", again, "--wait", "--timeout", 200, "--json").json["result"]["num_unkeyed"]
            == 0
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert kb.upkeep.fsck().ok


def test_recall_is_that_of_one_process(run: Run, facts: int) -> None:
    asked = ("evaluate", "recall", "--corpus", "lands", "--no-baselines", "--json")
    spread = run(*asked, "--ray", "auto", "--ray-workers", 1)
    assert spread.code == 0, spread.err
    alone = run(*asked)
    for name in ("facts", "questions", "recall_at_1", "recall_at_10"):
        assert spread.json[name] == pytest.approx(alone.json[name], abs=0.01), name
