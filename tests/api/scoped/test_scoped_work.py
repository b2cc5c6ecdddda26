"""Webhooks, uploads, jobs and forget runs of an operator of some corpora: its own, and nothing of any other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from colmlm.api.middleware.gate import GatedApp
from colmlm.cli.composition.handlers import HANDLERS
from colmlm.kb.facts.records import FactEdit
from colmlm.kb.jobs.kinds import Ingest, Sync
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.worker import Worker
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.api.conftest import Client, Connect
from tests.api.planted import HIDDEN, OFFICE, PLANTED, SEEN, WHY, Planted, leaked
from tests.receiver import LOOPBACK, Receiver

WHO = {"reason": "mended"}
DOCUMENT = {"id": "rome", "text": "Rome is old.", "facts": [{"start": 0, "end": 4, "value": "Rome"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_networks=LOOPBACK)


def other_client(kb: KnowledgeBase, app: GatedApp, connect: Connect, name: str, *corpora: str) -> Client:
    """Give a client of another operator, of these corpora; of all where none is named."""
    client = connect(app)
    secret, _ = kb.access.create(name, "operator", corpora=list(corpora))
    client.headers["Authorization"] = f"Bearer {secret}"
    return client


def sent_to(hook: Receiver, secret: str) -> list[dict[str, Any]]:
    return [one.verified(secret)["data"] for one in hook.received]


def test_a_webhook_of_an_operator_of_a_corpus_is_told_of_that_corpus_alone(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted, hook: Receiver
) -> None:
    made = editor.post("/v1/webhooks", json={"url": hook.url, "since": 0}).json()
    assert made["webhook"]["corpora"] == [SEEN] and made["webhook"]["state"] == "active"
    both = other_client(kb, app, connect, "both", SEEN, HIDDEN)
    assert both.patch(f"/v1/facts/{planted.open_fact}", json={"value": "Titania", **WHO}).status_code == 200
    mixed = [FactEdit(planted.open_fact, "Puckia"), FactEdit(planted.facts[0], "Snoutia")]
    kb.facts.edit_many(mixed, actor="tester", reason=WHY)
    kb.facts.delete([planted.facts[1]], actor="tester", reason=WHY)
    Deliverer(kb).run_once()
    data = sent_to(hook, made["secret"])
    assert [(one["kind"], one["fact_ids"]) for one in data] == [("ingest", []), ("update", [1])]
    assert [one["reason"] for one in data] == ["set up", "mended"]
    assert data[1]["principal"]["corpora"] == [SEEN], "which other corpora somebody has is not told"
    said = json.dumps(data)
    assert [word for word in PLANTED if word in said] == []
    items = editor.get("/v1/changes").json()["items"]
    assert [one["seq"] for one in data] == [one["seq"] for one in items], "the log says the same"
    assert kb.webhooks.show(made["webhook"]["webhook_id"]).delivered_seq == kb.log.head_seq()


def test_webhooks_are_made_listed_and_removed_by_who_may(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, scoped: Client, planted: Planted
) -> None:
    url = {"url": "http://127.0.0.1:1/hook"}
    full, other = other_client(kb, app, connect, "full"), other_client(kb, app, connect, "pay", HIDDEN)
    of_all = full.post("/v1/webhooks", json=url).json()["webhook"]
    for_one = full.post("/v1/webhooks", json=url | {"corpora": [HIDDEN]}).json()["webhook"]
    assert (of_all["corpora"], for_one["corpora"]) == (None, [HIDDEN])
    own = editor.post("/v1/webhooks", json=url).json()["webhook"]
    for corpora in ([HIDDEN], [SEEN, HIDDEN], ["nowhere"]):
        refused = editor.post("/v1/webhooks", json=url | {"corpora": corpora})
        assert refused.status_code == 404, refused.text
    assert full.post("/v1/webhooks", json=url | {"corpora": ["nowhere"]}).status_code == 404
    assert scoped.post("/v1/webhooks", json=url).status_code == 403
    assert editor.get("/v1/webhooks").json()["items"] == [own]
    assert other.get("/v1/webhooks").json()["items"] == []
    assert len(full.get("/v1/webhooks").json()["items"]) == 3
    for client, webhook in ((editor, of_all), (editor, for_one), (other, own), (other, for_one)):
        path = f"/v1/webhooks/{webhook['webhook_id']}"
        for method, verb in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/test")):
            answer = client.request(method, path + verb)
            assert answer.status_code == 404 and leaked(answer) == [], (path, verb, answer.text)
    path = f"/v1/webhooks/{own['webhook_id']}"
    for verb, state in (("pause", "paused"), ("resume", "active")):
        assert editor.post(f"{path}/{verb}").json()["state"] == state
    assert editor.delete(path).status_code == 200 and editor.get("/v1/webhooks").json()["items"] == []


def test_nothing_is_sent_for_a_token_that_has_the_right_no_more(
    kb: KnowledgeBase, editor: Client, planted: Planted, hook: Receiver
) -> None:
    assert editor.post("/v1/webhooks", json={"url": hook.url, "since": 0}).status_code == 201
    kb.access.revoke("sales operator")
    kb.facts.delete([planted.open_fact], actor="tester", reason="gone")
    Deliverer(kb).run_once()
    assert hook.received == []


def test_a_release_that_knows_of_no_corpora_sends_a_webhook_on_some_nothing(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    assert editor.post("/v1/webhooks", json={"url": "http://127.0.0.1:1/x", "since": 0}).status_code == 201
    with kb.engine.connect() as connection:  # what such a release looks for, and how it resumes one
        due = connection.exec_driver_sql("SELECT count(*) FROM webhook WHERE state = 'active'").scalar()
        assert due == 0
        with pytest.raises(IntegrityError, match="webhook_corpora_check"):
            connection.exec_driver_sql("UPDATE webhook SET state = 'active'")


def upload(client: Client, content: str = json.dumps(DOCUMENT)) -> str:
    sent = client.post("/v1/uploads", params={"name": "a.jsonl"}, content=content.encode())
    assert sent.status_code == 201, sent.text
    return str(sent.json()["upload_id"])


def test_an_operator_of_a_corpus_adds_an_uploaded_file_and_sees_its_job(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted
) -> None:
    asked = {"upload_id": upload(editor), "corpus": SEEN, "reason": "a file"}
    job = editor.post("/v1/jobs/ingest", json=asked).json()
    path = f"/v1/jobs/{job['job_id']}"
    Worker(kb, HANDLERS).run(once=True)
    done = editor.get(path).json()
    assert done["state"] == "succeeded" and done["result"]["facts"] == 1, done
    (change,) = [one for one in editor.get("/v1/changes").json()["items"] if one["reason"] == "a file"]
    assert change["principal"]["job_id"] == job["job_id"] and change["principal"]["corpora"] == [SEEN]
    page = editor.get("/console/corpora")
    assert f"/console/jobs/{job['job_id']}" in page.text and leaked(page) == []
    assert editor.get(f"/console/jobs/{job['job_id']}").status_code == 200
    other = other_client(kb, app, connect, "pay", HIDDEN)
    assert other.get(path).status_code == 404 and other.get("/v1/jobs").json()["items"] == []


def test_jobs_of_other_scopes_are_neither_listed_nor_cancelled(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted
) -> None:
    full = other_client(kb, app, connect, "full")
    both = other_client(kb, app, connect, "both", SEEN, HIDDEN)
    of_full = full.post("/v1/jobs/ingest", json={"upload_id": upload(full), "corpus": SEEN}).json()
    of_both = both.post("/v1/jobs/ingest", json={"upload_id": upload(both), "corpus": SEEN}).json()
    own = editor.post("/v1/jobs/ingest", json={"upload_id": upload(editor), "corpus": SEEN}).json()
    assert [one["job_id"] for one in editor.get("/v1/jobs").json()["items"]] == [own["job_id"]]
    ids = [one["job_id"] for one in both.get("/v1/jobs").json()["items"]]
    assert ids == [own["job_id"], of_both["job_id"]]
    for job_id in (planted.job, of_full["job_id"], of_both["job_id"]):
        for method, path in (
            ("GET", f"/v1/jobs/{job_id}"),
            ("POST", f"/v1/jobs/{job_id}/cancel"),
            ("GET", f"/v1/jobs/{job_id}/events"),
            ("GET", f"/console/jobs/{job_id}"),
        ):
            answer = editor.request(method, path)
            assert answer.status_code == 404 and leaked(answer) == [], (path, answer.text)
    assert editor.post(f"/v1/jobs/{own['job_id']}/cancel").json()["state"] == "cancelled"
    assert Jobs(kb).get(of_both["job_id"]).state == "queued"


def test_an_operator_of_a_corpus_makes_no_other_and_syncs_no_folder_of_others(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted
) -> None:
    for corpus in (HIDDEN, "new"):
        asked = {"upload_id": upload(editor), "corpus": corpus}
        assert editor.post("/v1/jobs/ingest", json=asked).status_code == 404
        assert editor.post("/v1/jobs/sync", json={"corpus": corpus, "folder": "pay"}).status_code == 404
    ghost = other_client(kb, app, connect, "ghost", SEEN)
    with kb.engine.begin() as connection:  # as the sign-on maps a group to a corpus that nobody made
        connection.exec_driver_sql("UPDATE api_key SET corpora = '{ghost}' WHERE name = 'ghost'")
    assert (
        ghost.post("/v1/documents", json={"corpus": "ghost", "documents": [DOCUMENT], **WHO}).status_code
        == 404
    )
    for more in ({}, {"move": True}):
        refused = editor.post("/v1/jobs/sync", json={"corpus": SEEN, "folder": "pay", **more})
        assert refused.status_code == 403 and refused.json()["type"].endswith("NeedsAllCorpora")
    kb.corpora.follow(SEEN, ["/home/folders/sales"])
    again = editor.post("/v1/jobs/sync", json={"corpus": SEEN, "folder": "sales"})
    assert again.status_code == 202 and again.json()["principal"]["corpora"] == [SEEN]
    assert [job.kind for job in Jobs(kb).list()] == [Sync.kind, Sync.kind]
    assert Ingest.kind not in {job.kind for job in Jobs(kb).list()}


def test_a_plan_of_an_operator_of_a_corpus_holds_its_own_facts_alone(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted
) -> None:
    for parts in ({"everything": True}, {"text": "e"}, {"fact_ids": [planted.open_fact]}):
        asked = {"selector": parts, "equivalents": "include", "radius": -1, **WHO}
        made = editor.post("/v1/forget-runs", json=asked)
        assert made.status_code == 201 and leaked(made) == [], made.text
        plan, run = made.json()["plan"], made.json()["run"]
        assert (plan["num_facts"], plan["num_equivalents"], plan["num_conflicting"]) == (1, 0, 0)
        assert plan["collateral"]["generations"] == 0 and plan["live_facts"] == 1
    for parts in ({"corpus": HIDDEN}, {"fact_ids": [planted.facts[0]]}, {"like": planted.facts[0]}):
        refused = editor.post("/v1/forget-runs", json={"selector": parts, **WHO})
        assert refused.status_code in (404, 422), (parts, refused.text)
        assert leaked(refused, json.dumps(parts)) == [], refused.text
    path = f"/v1/forget-runs/{run['run_id']}"
    assert [one["fact_id"] for one in editor.get(f"{path}/facts").json()["items"]] == [planted.open_fact]
    for part in ("", "/facts", "/survivors", "/drift"):
        shown = editor.get(path + part)
        assert shown.status_code == 200 and leaked(shown) == [], (part, shown.text)
    assert editor.post(f"{path}/apply", json=WHO).json()["fact_ids"] == [planted.open_fact]
    Forgetting(kb).verify(run["run_id"])
    seen = editor.get(path).json()
    assert seen["run"]["state"] == "applied" and seen["verification"] is None and not seen["run"]["verified"]
    for method, part in (("POST", "verify"), ("GET", "certificate")):
        assert editor.request(method, f"{path}/{part}", json={}).status_code == 403
    assert editor.post(f"{path}/restore", json=WHO).status_code == 200
    assert editor.get(f"/v1/facts/{planted.open_fact}").json()["value"] == OFFICE


def test_runs_of_other_scopes_are_neither_listed_nor_done(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, editor: Client, planted: Planted
) -> None:
    of_all = Forgetting(kb).plan(Selector(fact_ids=(planted.open_fact,)), actor="tester", reason=WHY).run_id
    both = other_client(kb, app, connect, "both", SEEN, HIDDEN)
    asked = {"selector": {"everything": True}, "reason": WHY}
    of_both = both.post("/v1/forget-runs", json=asked).json()["run"]["run_id"]
    assert editor.get("/v1/forget-runs").json()["items"] == []
    for run_id in (planted.run, of_all, of_both):
        for method, part in (("GET", ""), ("GET", "/facts"), ("POST", "/apply"), ("POST", "/restore")):
            answer = editor.request(method, f"/v1/forget-runs/{run_id}{part}", json=WHO)
            assert answer.status_code == 404 and leaked(answer) == [], (run_id, part, answer.text)
    assert both.post(f"/v1/forget-runs/{of_both}/apply", json=WHO).status_code == 200
