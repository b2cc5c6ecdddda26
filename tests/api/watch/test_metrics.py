"""What Prometheus reads is what happened."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.engines import WatchedPool
from tests.api.conftest import CAPITAL, Client, Connect
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder, activated

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(client: Client) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"] == CONTENT_TYPE_LATEST
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_they_take_a_key(app: GatedApp, connect: Connect) -> None:
    assert connect(app).get("/metrics").status_code == 401


def test_lookups_are_counted_by_outcome_and_their_parts_timed(
    atlas: KnowledgeBase, app: GatedApp, connect: Connect, fact_id: int
) -> None:
    client = connect(app, "reader")
    ask = {"questions": [CAPITAL, "What is nobody asking?"], "threshold": 0.9}
    client.post("/v1/lookups", json=ask)
    atlas.facts.delete([fact_id], actor="tester", reason="abstain", abstain=True)
    client.post("/v1/lookups", json=ask)
    found = samples(client)
    outcomes = {o: value(found, "colmlm_lookups_total", outcome=o) for o in ("hit", "no_match", "abstained")}
    assert outcomes == {"hit": 1, "no_match": 2, "abstained": 1}
    assert value(found, "colmlm_lookup_seconds_count") == 2
    assert value(found, "colmlm_search_seconds_count") >= 2 <= value(found, "colmlm_select_seconds_count")
    assert value(found, "colmlm_lookup_seconds_sum") > value(found, "colmlm_search_seconds_sum") > 0


def test_outputs_are_timed_whole_and_to_their_first_piece(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "reader")
    client.post("/v1/generations", json={"prompt": CAPITAL})
    assert "event: trace" in client.post("/v1/generations", json={"prompt": CAPITAL, "stream": True}).text
    found = samples(client)
    assert value(found, "colmlm_decode_seconds_count") == 2
    assert value(found, "colmlm_first_token_seconds_count") == 1


def test_requests_are_counted_by_route_and_never_by_path(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "reader")
    for path in ("/v1/facts/1", "/v1/facts/2", "/v1/facts/999999", "/no/such/path/1", "/v1/facts/x"):
        client.get(path)
    client.get("/v1/facts", headers={"Authorization": "Bearer nobody"})
    client.request("BREW", "/v1/facts")
    found = samples(client)
    requests = {
        (dict(labels)["method"], dict(labels)["route"], dict(labels)["status"]): int(count)
        for (name, labels), count in found.items()
        if name == "colmlm_http_requests_total"
    }
    assert requests["GET", "/v1/facts/{fact_id}", "200"] == 2
    assert requests["GET", "/v1/facts/{fact_id}", "404"] == 1
    assert requests["GET", "unrouted", "401"] == 1
    assert {route for _, route, _ in requests} <= {"/v1/facts/{fact_id}", "unrouted", "/v1/facts"}
    assert {method for method, _, _ in requests} <= {"GET", "other"}
    assert value(found, "colmlm_http_requests_in_progress") == 1, "the one that asks"


def test_the_index_the_log_and_the_pools_are_read_when_asked(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, fact_id: int
) -> None:
    client = connect(create_app(atlas, encoder, LookupGenerator(atlas, encoder)), "reader")
    assert value(samples(client), "colmlm_index_open") == 0
    atlas.lookups.catch_up()
    atlas.lookups.snapshot()
    atlas.facts.edit(fact_id, "Cusco", actor="tester", reason="lag")
    atlas.facts.edit(fact_id, "Callao", actor="tester", reason="lag")
    found = samples(client)
    assert value(found, "colmlm_index_lag_changes") == 2
    assert value(found, "colmlm_changes_total", kind="update") == 2
    assert value(found, "colmlm_changes_total", kind="delete") == 0
    assert value(found, "colmlm_database_up") == 1
    assert value(found, "colmlm_snapshot_age_seconds") >= 0
    assert value(found, "colmlm_database_connections", pool="requests", state="waiting") == 0
    assert value(found, "process_resident_memory_bytes") > 0
    with atlas.engine.connect():
        assert value(samples(client), "colmlm_database_connections", pool="upkeep", state="in_use") == 1
    assert value(samples(client), "colmlm_changes_total", kind="update") == 2, "each change is counted once"


def test_the_memory_of_keys_that_torch_searches_is_told(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    client = connect(create_app(atlas, encoder, LookupGenerator(atlas, encoder)), "reader")
    atlas.lookups.catch_up()
    assert "colmlm_index_capacity_keys" not in {name for name, _ in samples(client)}
    second = FakeEncoder(salt="2")
    atlas.keysets.create(second.checkpoint, "torch")
    activated(atlas, atlas.keysets.rekey(second).keyset_id)
    atlas.lookups.catch_up()
    found, memory = samples(client), client.get("/health").json()["index_memory"]
    assert value(found, "colmlm_index_capacity_keys") == memory["capacity"] >= memory["num_keys"] > 0
    assert value(found, "colmlm_index_bytes", where="main memory") == memory["main_bytes"]
    assert value(found, "colmlm_index_bytes", where="device") == memory["device_bytes"]
    assert memory["main_bytes"] + memory["device_bytes"] == memory["capacity"] * (2 * second.dim + 9)


def test_webhooks_are_watched_by_number_and_not_by_address(
    atlas: KnowledgeBase, app: GatedApp, connect: Connect, fact_id: int
) -> None:
    client = connect(app, "reader")
    atlas.settings = replace(atlas.settings, webhook_networks=("127.0.0.0/8",))
    atlas.webhooks.add("http://127.0.0.1:1/a-secret-path")
    atlas.facts.edit(fact_id, "Cusco", actor="tester", reason="lag")
    found = samples(client)
    assert value(found, "colmlm_webhook_lag_changes", webhook="1") == 1
    assert value(found, "colmlm_webhook_state", webhook="1", state="active") == 1
    assert value(found, "colmlm_webhook_failures", webhook="1") == 0
    assert "a-secret-path" not in client.get("/metrics").text


def test_no_metric_holds_a_text(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "reader")
    client.post("/v1/lookups", json={"questions": [CAPITAL]})
    said = client.get("/metrics").text
    assert not re.search("Peru|Lima|reader|colmlm_[A-Za-z0-9_-]{40}", said)


def test_a_caller_that_waits_for_a_connection_is_seen(kb: KnowledgeBase) -> None:
    engine = create_engine(kb.engine.url, poolclass=WatchedPool, pool_size=1, max_overflow=0)
    pool = engine.pool
    assert isinstance(pool, WatchedPool)
    with engine.connect():
        waiter = threading.Thread(target=lambda: engine.connect().close())
        waiter.start()
        while pool.num_waiting == 0:
            waiter.join(0.01)
        assert (pool.num_waiting, pool.checkedout()) == (1, 1)
    waiter.join()
    assert pool.num_waiting == 0
    engine.dispose()
