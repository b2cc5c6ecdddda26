"""The change log over HTTP: pages, differences, a signed head, and a feed that waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import SIZES, Limiter, Tuning
from colmlm.kb.log import witness
from colmlm.kb.log.records import BATCH, EVENT
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.api.serving import served
from tests.kb.log.test_chain import put_in

WHO = {"actor": "ana", "reason": "test"}


def test_what_differs_between_two_changes_is_told(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    before = atlas.log.head_seq()
    atlas.facts.edit(fact_id, "Cusco", **WHO)
    after = atlas.facts.add("Q?", "A", **WHO).seq
    found = operator.get("/v1/changes/diff", params={"first": before, "last": after}).json()
    assert (found["counts"]["updated"], found["counts"]["inserted"]) == (1, 1)
    assert [(d["kind"], d["old"], d["new"]) for d in found["items"]] == [
        ("updated", "Lima", "Cusco"),
        ("inserted", None, "A"),
    ]
    assert operator.get("/v1/changes/diff", params={"first": 0, "last": after + 1}).status_code == 404


def test_a_head_that_was_kept_is_held_to_the_log(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    head = operator.get("/v1/changes/head").json()
    assert head["seq"] == atlas.log.head_seq()
    atlas.facts.delete([fact_id], **WHO)
    assert operator.post("/v1/changes/head/check", json={"head": head}).json()["held"]
    forged = operator.post("/v1/changes/head/check", json={"head": {**head, "seq": 1}})
    assert (forged.status_code, forged.json()["title"]) == (422, "Signature refused")
    log = operator.get("/v1/changes/export").text.splitlines(keepends=True)
    report = witness.check_log(log, "export")
    assert report.ok and report.seq == atlas.log.head_seq()


def test_a_break_is_sealed_by_an_admin(app: GatedApp, connect: Connect, atlas: KnowledgeBase) -> None:
    admin = connect(app, "admin")
    bogus = put_in(atlas, payload='{"principal": {"kind": 3}, "request_id": 5}')
    shown = admin.get("/v1/changes", params={"kind": "update"}).json()["items"][-1]
    assert (shown["seq"], shown["request_id"]) == (bogus, None)
    body = {"seqs": [bogus], "reason": "put in by hand"}
    assert admin.post("/v1/changes/seal", json={**body, "dry_run": True}).json()["seq"] == bogus + 1
    assert admin.post("/v1/changes/seal", json=body).json()["breaks"][0]["causes"] == ["prev_hash", "hash"]
    assert admin.post("/v1/changes/seal", json=body).json()["title"] == "No open break of the log"
    log = admin.get("/v1/changes/export").text.splitlines(keepends=True)
    assert witness.check_log(log, "export").sealed[0].seq == bogus


def events(lines: Iterator[str]) -> Iterator[tuple[str, int]]:
    """Kinds and seqs as they come."""
    for line in lines:
        if line.startswith("data: "):
            change = json.loads(line.removeprefix("data: "))
            yield change["kind"], change["seq"]


def test_a_feed_gives_what_was_and_waits_for_what_comes(
    atlas: KnowledgeBase, new_token: Callable[[str], str], fact_id: int
) -> None:
    app = create_app(atlas, tuning=Tuning(poll_seconds=0.05, idle_seconds=0.05))
    headers, head = {"Authorization": f"Bearer {new_token('auditor')}"}, atlas.log.head_seq()
    with served(app) as address, httpx.Client(base_url=address, headers=headers, timeout=20) as client:
        with client.stream("GET", "/v1/changes/events", params={"after": head - 1}) as stream:
            lines = stream.iter_lines()
            assert next(events(lines))[1] == head
            while next(lines) != ": nothing new":  # idle, and still there
                pass
            deleted = atlas.facts.delete([fact_id], **WHO).seq
            assert next(events(lines)) == ("delete", deleted)
        restored = atlas.facts.restore([fact_id], **WHO).seq
        missed = {"Last-Event-ID": str(deleted)}
        with client.stream("GET", "/v1/changes/events", headers=missed) as stream:
            assert next(events(stream.iter_lines())) == ("restore", restored)
        assert client.get("/v1/changes/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_a_feed_that_ended_gives_its_place_back(operator: Client) -> None:
    for _ in range(SIZES[Limiter.feeds].slots + 1):
        answer = operator.get("/v1/changes/events", params={"after": 0})
        assert answer.status_code == 200 and "event: change" in answer.text


def test_one_token_holds_its_share_of_the_streams_and_no_other_waits(
    atlas: KnowledgeBase, new_token: Callable[[str], str]
) -> None:
    """A browser session counts as the token that it was opened with."""
    path, share = "/v1/changes/events", SIZES[Limiter.feeds].slots_of_one or 0
    own, other = ({"Authorization": f"Bearer {new_token(role)}"} for role in ("auditor", "admin"))
    with (
        served(create_app(atlas)) as address,
        httpx.Client(base_url=address, timeout=20) as client,
        ExitStack() as held,
    ):
        origin = {"Origin": address}
        client.post("/session", data={"key": own["Authorization"][7:], "back": "/"}, headers=origin)
        for number in range(share):
            stream = held.enter_context(client.stream("GET", path, headers=own if number else {}))
            assert stream.status_code == 200
        for headers in (own, {}):
            refused = client.get(path, headers=headers)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            assert f"hold {share} streams" in refused.json()["detail"]
        assert client.get("/v1/changes", headers=own).status_code == 200
        assert held.enter_context(client.stream("GET", path, headers=other)).status_code == 200


def test_changes_are_given_as_cloud_events_where_they_are_asked_for(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    for _ in range(2):
        atlas.facts.delete([fact_id], **WHO)
        atlas.facts.restore([fact_id], **WHO)
    batch = {"Accept": BATCH}
    seen: list[BaseCloudEvent] = []
    path: str | None = "/v1/changes?limit=3"
    while path:
        answer = operator.get(path, headers=batch)
        assert answer.headers["content-type"] == BATCH and "accept" in answer.headers["vary"].lower()
        seen += [JSONFormat().read(CloudEvent, json.dumps(event)) for event in answer.json()]
        path = answer.links["next"]["url"] if "next" in answer.links else None
    assert [event.get_id() for event in seen] == [str(change.seq) for change in atlas.log.changes()]
    assert seen[-1].get_type() == "org.colmlm.change.restore"
    filtered = operator.get("/v1/changes", params={"kind": "delete", "limit": 1}, headers=batch)
    assert "kind=delete" in filtered.links["next"]["url"]
    for other in ("*/*", "application/json", "text/html", f"application/json, {BATCH};q=0.5"):
        assert "items" in operator.get("/v1/changes", headers={"Accept": other}).json()


def test_one_change_is_read_by_its_number(operator: Client, atlas: KnowledgeBase) -> None:
    head = atlas.log.head_seq()
    plain = operator.get(f"/v1/changes/{head}").json()
    event = operator.get(f"/v1/changes/{head}", headers={"Accept": EVENT})
    assert event.headers["content-type"] == EVENT and event.json()["data"] == plain
    assert (plain["seq"], event.json()["id"]) == (head, str(head))
    assert operator.get(f"/v1/changes/{head + 1}").status_code == 404


def test_a_feed_gives_cloud_events_where_they_are_asked_for(operator: Client) -> None:
    asked = {"Accept": f"text/event-stream, {EVENT}"}
    lines = operator.get("/v1/changes/events", params={"after": 0}, headers=asked).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events and all(event["specversion"] == "1.0" for event in events)
    assert [event["id"] for event in events] == [
        line.removeprefix("id: ") for line in lines if line.startswith("id: ")
    ]


def test_an_erasure_is_certified(app: GatedApp, connect: Connect, atlas: KnowledgeBase, fact_id: int) -> None:
    admin = connect(app, "admin")
    erased = admin.post("/v1/erasures", json={"fact_ids": [fact_id], "reason": "asked for"}).json()
    seq = erased["report"]["erased"]["seq"]
    certificate = admin.get(f"/v1/changes/{seq}/certificate").text
    checked = admin.post("/v1/certificates/check", json={"text": certificate}).json()
    assert checked["ok"] and (checked["applied_seq"], checked["run_id"]) == (seq, None)
    assert admin.get(f"/v1/changes/{seq - 1}/certificate").json()["title"] == "No such erasure"


def test_the_log_is_read_in_either_order(operator: Client, atlas: KnowledgeBase, fact_id: int) -> None:
    edit = atlas.facts.edit(fact_id, "Cusco", **WHO)
    atlas.facts.undo(edit.seq, **WHO)
    oldest = operator.get("/v1/changes").json()["items"]
    assert (oldest[-1]["undoes"], oldest[-2]["undoes"]) == (edit.seq, None)
    seen, asked = [], {"order": "newest", "limit": 2}
    while True:
        page = operator.get("/v1/changes", params=asked).json()
        seen += page["items"]
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
    assert seen == oldest[::-1]
    wrong = {**asked, "order": "oldest"}
    assert operator.get("/v1/changes", params=wrong).status_code == 422, "a cursor belongs to one order"
