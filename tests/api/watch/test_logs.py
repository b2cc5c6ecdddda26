"""The log is one JSON object a line, with who asked what of which route, and without texts and secrets."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from colmlm.api.middleware.gate import GatedApp
from colmlm.api.settings import ServerSettings
from colmlm.api.watch import logs
from colmlm.kb.store.engines import SECRETS
from tests.api.conftest import CAPITAL, Connect


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(ServerSettings(log_format="json"), stream)
    return stream


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_request_is_one_line_with_route_actor_status_and_time(
    app: GatedApp, connect: Connect, log: io.StringIO
) -> None:
    client = connect(app, "reader")
    client.get("/v1/facts/1?secret=yes")
    client.get("/v1/facts", headers={"Authorization": "Bearer nobody"})
    asked, denied = (line for line in lines(log) if line["message"] == "request")
    assert (asked["method"], asked["route"], asked["status"]) == ("GET", "/v1/facts/{fact_id}", 200)
    assert (asked["actor"], asked["level"]) == ("the reader", "info")
    assert asked["ms"] > 0 and asked["timestamp"].endswith("Z")
    assert (denied["route"], denied["status"], denied["actor"]) == ("unrouted", 401, None)


def test_what_is_asked_and_answered_and_the_key_are_not_in_it(
    app: GatedApp, connect: Connect, log: io.StringIO
) -> None:
    client = connect(app, "reader")
    client.post("/v1/generations", json={"prompt": CAPITAL})
    client.post("/v1/lookups", json={"questions": [CAPITAL]})
    client.get("/v1/facts", params={"text": "Lima"})
    token = client.headers["Authorization"].removeprefix("Bearer ")
    assert len(lines(log)) == 3
    assert not any(word in log.getvalue() for word in (CAPITAL, "Lima", token))


def test_secrets_are_blotted_out_of_messages_fields_and_tracebacks(log: io.StringIO) -> None:
    token, url = "colmlm_" + "x" * 43, "postgresql://me:hunter2@db/x"
    try:
        raise ValueError(f"no {token}")
    except ValueError:
        logging.getLogger("some.module").exception("failed for %s", token, extra={"url": url})
    (line,) = lines(log)
    assert line["level"] == "error" and "ValueError: no [secret]" in line["exception"]
    assert token not in log.getvalue() and "hunter2" not in log.getvalue()
    assert line["url"] == "postgresql://[secret]@db/x"


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_in_the_query_of_a_databases_url_is_blotted_out(name: str, log: io.StringIO) -> None:
    logging.getLogger("some.module").warning(
        "no %s", f"postgresql://db/x?sslmode=require&{name}=hunter2&port=1"
    )
    assert (
        "hunter2" not in log.getvalue() and "sslmode=require" in log.getvalue() and "port=1" in log.getvalue()
    )


def test_probes_are_not_logged_unless_asked_for(app: GatedApp, connect: Connect, log: io.StringIO) -> None:
    client = connect(app)
    client.get("/healthz")
    assert log.getvalue() == ""
    logs.configure(ServerSettings(log_format="json", log_level="debug"), log)
    client.get("/healthz")
    assert "/healthz" in [line.get("route") for line in lines(log)]


def test_on_a_terminal_it_is_text_without_local_variables() -> None:
    stream = io.StringIO()
    logs.configure(ServerSettings(log_format="text"), stream)
    asked = "-".join(("what", "was", "asked"))
    try:
        raise ValueError(len(asked))
    except ValueError:
        logging.getLogger("some.module").exception("failed", extra={"route": "/v1/facts"})
    said = stream.getvalue()
    assert "failed" in said and "route=/v1/facts" in said and "ValueError: 14" in said
    assert asked not in said
