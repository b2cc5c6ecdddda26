"""Hostile documents, uploaded and read by jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.jobs.records import UNFINISHED
from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.world import World, Wrong
from tests.hostile_documents import ANNOTATED, DOCUMENTS, Hostile, slow_lines, swapping

GROUP = "documents"
JOB_SECONDS = 600.0  # of a hang; jobs left by other cases run first, and a machine may be busy
# Those that are always refused: others would be annotated, and this base has no models for that.
_RAW = tuple(one for one in DOCUMENTS if one.codes)
_NAMES = ("../x.txt", "x\x00.txt", ".x", "x/y", "", "\u202etxt.x", "a" * 300, "x.txt\r\nX: y")


def cases() -> Iterator[Case]:
    yield Case(GROUP, "raw documents", _raw)
    for one in ANNOTATED:
        yield Case(GROUP, one.name, _annotated(one))
    yield Case(GROUP, "cancelled while it is read", _cancelled)
    yield Case(GROUP, "names of uploads", _names)
    yield Case(GROUP, "a folder swapped for a link while it is walked", _swapped)


def _raw(world: World) -> str:
    """Reads all in one job, and checks that each is refused for its own reason."""
    ids = [_upload(world, one.name, one.make()) for one in _RAW]
    job = _done(world, _start(world, "documents", {"upload_ids": ids, "corpus": "hostile"}))
    expect(job["state"] == "succeeded", f"{job['state']}: {job['error']}")
    codes = {one["document"].partition(":")[0]: one["code"] for one in job["result"]["refusals"]}
    names = {one["document"] for one in job["result"]["refusals"]}
    expect(
        job["result"]["refused"] >= len(_RAW), f"{job['result']['refused']} of {len(_RAW)} refused: {names}"
    )
    strange = {
        one.name: codes[one.name] for one in _RAW if one.name in codes and codes[one.name] not in one.codes
    }
    expect(not strange, f"refused for another reason: {strange}")
    return f"{job['result']['refused']} refused"


def _annotated(hostile: Hostile) -> Callable[[World], str]:
    def attack(world: World) -> str:
        format_ = {".parquet": "parquet", ".json": "squad"}.get(Path(hostile.name).suffix, "annotated")
        upload_id = _upload(world, hostile.name, hostile.make())
        work = {"upload_id": upload_id, "corpus": f"hostile {hostile.name}", "format": format_}
        job = _done(world, _start(world, "ingest", work))
        expect(job["state"] == "succeeded", f"{job['state']}: {job['error']}")
        codes = {one["code"] for one in job["result"]["refusals"]}
        expect(codes == set(hostile.codes), f"refused for another reason: {codes}")
        return f"{job['result']['refused']} refused: {codes}"

    return attack


def _cancelled(world: World) -> str:
    """Cancels a job while it reads, and checks that it ends at once."""
    upload_id = _upload(world, "slow.jsonl.gz", slow_lines())
    job_id = _start(world, "documents", {"upload_ids": [upload_id], "corpus": "hostile"})
    _await(world, job_id, lambda job: job["state"] != "queued")
    world.ask("POST", f"/v1/jobs/{job_id}/cancel")
    began = time.monotonic()
    job = _done(world, job_id)
    expect(job["state"] == "cancelled", f"it has {job['state']}")
    return f"ended {time.monotonic() - began:.1f} s after it was cancelled"


def _names(world: World) -> str:
    got = [world.ask("POST", f"/v1/uploads?name={quote(name)}", b"Lima").status for name in _NAMES]
    expect(all(400 <= status < 500 for status in got), f"{got}")
    return f"{got}"


def _swapped(world: World) -> str:
    """Walk a folder while one below it becomes a link to another and back; nothing of the other is found."""
    walks = 100 * world.rounds
    with TemporaryDirectory() as top:
        inside, outside = Path(top, "docs", "in"), Path(top, "outside")
        for folder in (inside, outside):
            folder.mkdir(parents=True)
            (folder / "a.txt").write_text(folder.name)
        theirs = (outside / "a.txt").stat().st_ino
        with swapping(inside, outside):
            found = [file for _ in range(walks) for file in find_files([inside.parent]).files]
    inodes = [file.origin.inode for file in found if file.origin is not None]
    expect(theirs not in inodes, f"{inodes.count(theirs)} of {walks} walks found the file outside")
    return f"{len(found)} files in {walks} walks, all inside"


def _upload(world: World, name: str, content: bytes) -> str:
    answer = world.ask("POST", f"/v1/uploads?name={quote(name)}", content)
    if answer.status != 201:
        raise Wrong(f"the upload of {name}: {answer.status} {answer.body[:200]!r}")
    upload_id: str = answer.said["upload_id"]
    return upload_id


def _start(world: World, kind: str, work: object) -> int:
    answer = world.ask("POST", f"/v1/jobs/{kind}", work)
    if answer.status != 202:
        raise Wrong(f"no job: {answer.status} {answer.body[:200]!r}")
    job_id: int = answer.said["job_id"]
    return job_id


def _done(world: World, job_id: int) -> Any:
    return _await(world, job_id, lambda job: job["state"] not in UNFINISHED)


def _await(world: World, job_id: int, wanted: Callable[[Any], bool]) -> Any:
    until = time.monotonic() + JOB_SECONDS
    while not wanted(job := world.ask("GET", f"/v1/jobs/{job_id}").said):
        if time.monotonic() > until:
            raise Wrong(f"job {job_id} is {job['state']} after {JOB_SECONDS:g} s")
        time.sleep(0.1)
    return job
