"""Jobs over the API: asked for with the right of the work, followed, cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.routes import jobs as routes
from colmlm.kb.corpus.format import to_record
from colmlm.kb.jobs.kinds import KINDS
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import PERU, Client, Connect
from tests.api.routes.test_generations import events
from tests.kb.jobs.process import worker


@pytest.fixture
def client(app: GatedApp, connect: Connect) -> Client:
    """A client that brings no key."""
    return connect(app)


def annotated() -> bytes:
    return json.dumps(to_record(PERU)).encode() + b"\n"


def sent(client: Client, content: bytes, name: str = "peru.jsonl") -> str:
    answer = client.post("/v1/uploads", params={"name": name}, content=content)
    assert answer.status_code == 201, answer.text
    upload_id: str = answer.json()["upload_id"]
    return upload_id


def test_a_file_that_does_not_fit_on_the_disk_is_refused_and_removed(
    atlas: KnowledgeBase, connect: Connect, small_disk: Path
) -> None:
    atlas.settings = replace(atlas.settings, home=small_disk)
    operator = connect(create_app(atlas), "operator")
    full = operator.post("/v1/uploads", params={"name": "x.txt"}, content=b"x" * 200_000)
    assert (full.status_code, full.json()["type"]) == (507, "urn:colmlm:StorageFull")
    assert "colmlm doctor" in full.json()["detail"] and list(small_disk.glob("uploads/*")) == []
    assert operator.post("/v1/uploads", params={"name": "x.txt"}, content=b"x").status_code == 201


def test_an_upload_becomes_facts_and_the_stream_says_how_far_it_is(
    operator: Client, atlas: KnowledgeBase
) -> None:
    work = {"upload_id": sent(operator, annotated()), "corpus": "other"}
    started = operator.post("/v1/jobs/ingest", json=work)
    assert started.status_code == 202
    job = started.json()
    assert (job["kind"], job["state"], job["actor"]) == ("ingest", "queued", "the operator")
    assert worker(atlas).run(once=True) == 1
    (name, told), *rest = events(operator.get(f"/v1/jobs/{job['job_id']}/events").text)
    assert (name, rest) == ("end", []) and told["state"] == "succeeded"
    assert told == operator.get(f"/v1/jobs/{job['job_id']}").json()
    assert told["result"]["facts"] == 2 and told["done"] == told["total"]
    again = operator.post("/v1/jobs/ingest", json=work)
    assert again.status_code == 404 and again.json()["type"] == "urn:colmlm:UploadNotFound"


def test_a_job_takes_the_right_of_its_work(client: Client, new_token: Callable[[str], str]) -> None:
    trainer, operator, reader = (
        {"Authorization": f"Bearer {new_token(role)}"} for role in ("trainer", "operator", "reader")
    )

    def status(method: str, path: str, headers: dict[str, str], **options: Any) -> int:
        return client.request(method, f"/v1/{path}", headers=headers, **options).status_code

    def listed(headers: dict[str, str], **params: str) -> list[int]:
        found = client.get("/v1/jobs", headers=headers, params=params).json()
        return [job["job_id"] for job in found["items"]]

    assert status("POST", "jobs/rekey", operator, json={}) == 403
    assert status("POST", "uploads", reader, params={"name": "x.txt"}, content=b"x") == 403
    job_id = client.post("/v1/jobs/rekey", headers=trainer, json={}).json()["job_id"]
    assert (listed(trainer), listed(operator), listed(reader)) == ([job_id], [], [])
    for path in (f"jobs/{job_id}", f"jobs/{job_id}/events"):
        assert status("GET", path, operator) == 403
    assert status("POST", f"jobs/{job_id}/cancel", operator) == 403
    cancelled = client.post(f"/v1/jobs/{job_id}/cancel", headers=trainer).json()
    assert (cancelled["state"], cancelled["cancelled_by"]) == ("cancelled", "the trainer")
    assert status("POST", f"jobs/{job_id}/cancel", trainer) == 409
    assert (listed(trainer, state="queued"), listed(trainer, state="cancelled")) == ([], [job_id])
    assert status("GET", "jobs/4711", trainer) == 404


def test_every_kind_has_a_route_with_its_right() -> None:
    paths = {next(iter(route.paths)).rpartition("/")[2]: route.opt["right"] for route in routes.STARTING}
    assert paths == {kind: work.right for kind, work in KINDS.items()}


def test_what_is_no_work_is_refused_at_once(
    operator: Client, kb: KnowledgeBase, subtests: pytest.Subtests
) -> None:
    for kind, body in (
        ("documents", {"upload_ids": [], "corpus": "a"}),
        ("documents", {"upload_ids": ["0" * 32], "corpus": "a", "encoding": "no-such"}),
        ("ingest", {"upload_id": "0" * 32, "corpus": "a\x00"}),
        ("ingest", {"upload_id": "0" * 32, "corpus": "a", "reason": "\x00"}),
        ("ingest", {"upload_id": "0" * 31 + "x", "corpus": "a"}),
        ("verify", {"run_id": 0}),
        ("verify", {"run_id": 1, "unknown": 1}),
    ):
        with subtests.test(kind=kind, body=body):
            assert operator.post(f"/v1/jobs/{kind}", json=body).status_code in (400, 422)
            assert Jobs(kb).list() == []


def test_a_file_too_large_is_refused_while_it_comes_and_leaves_nothing(
    kb: KnowledgeBase, connect: Connect
) -> None:
    kb.settings = replace(kb.settings, upload_max_mb=3)
    operator = connect(create_app(kb), "operator")
    kept = sent(operator, b"x" * 2_900_000, "large.txt")  # more than any other body may have
    refused = operator.post("/v1/uploads", params={"name": "x.txt"}, content=b"x" * 3_100_000)
    assert refused.status_code == 413 and refused.json()["type"] == "urn:colmlm:UploadTooLarge"
    assert operator.post("/v1/uploads", params={"name": "../x.txt"}, content=b"x").status_code == 422
    assert [path.name for path in (kb.settings.home / "uploads").iterdir()] == [kept]
