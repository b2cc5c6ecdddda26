from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isnan

import pytest

from colmlm.lab.bench.clients import HttpLoad, measure
from colmlm.lab.bench.machine import milliseconds
from tests.cli.conftest import Run, invoke, program


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_lookups_over_http_are_measured_on_the_knowledge_base_that_is_there(
    run: Run, keyed: list[int]
) -> None:
    measured = ("--clients", "1,2", "--seconds", "0.5", "--workers", "2", "--edits", "20")
    ran = program("bench", "api", "--existing", *measured, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [(one["clients"], one["errors"]) for one in found["http"]] == [(1, 0), (2, 0)]
    assert all(one["per_second"] > 0 and one["p50_ms"] <= one["p99_ms"] for one in found["http"])
    assert found["overhead_ms"] == pytest.approx(found["http"][0]["p50_ms"] - found["in_process_p50_ms"])
    assert found["vs_bare"] == pytest.approx(found["http"][1]["per_second"] / found["bare_asgi_per_second"])
    assert (
        found["open_loop"]["errors"] == found["edits"]["http"]["errors"] == 0 < found["edits"]["per_second"]
    )
    assert all('"deleted_seq": null' in run("facts", "show", fact_id, "--json").out for fact_id in keyed), (
        "edits are undone"
    )
    ran = program("bench", "api", "--existing", "--clients", "2", "--seconds", "0.2", "--json")
    assert ran.returncode == 0 and json.loads(ran.stdout)["overhead_ms"] is None, "nothing was asked by one"
    keys = run("tokens", "list", "--json").json["keys"]
    assert keys and all(key["revoked_at"] for key in keys), "its key ends with it"


def test_clients_count_what_is_not_answered_as_errors() -> None:
    statuses = iter([200, 200, 503, 200, 503])

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(next(statuses, 200))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = measure(HttpLoad("127.0.0.1", server.server_port, "/", {}, ["x"], clients=1, seconds=2))
        server.shutdown()
    assert found.errors == 2 and found.requests >= 3


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_requests_that_are_due_are_timed_from_then_though_none_is_free_to_send_them() -> None:
    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.05)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = HttpLoad("127.0.0.1", server.server_port, "/", {}, ["x"], clients=1, seconds=0.5, rate=40.0)
        found = measure(load)
        server.shutdown()
    assert found.errors == 0 and found.requests >= 20, "each that was due was sent"
    assert found.p99_ms > 2 * found.requests * 50 / 4, "the last waited for those before it"


def test_percentiles_are_of_what_was_measured() -> None:
    assert [milliseconds([0.001, 0.002, 0.003], p) for p in (0, 50, 75, 100)] == pytest.approx(
        [1.0, 2.0, 2.5, 3.0]
    )
    assert isnan(milliseconds([], 50))


@pytest.mark.parametrize("words", [["--clients", "none"], ["--clients", "0"], ["--streams", "3"]])
def test_a_bad_line_is_refused_before_any_work(words: list[str]) -> None:
    ran = invoke("bench", "api", *words)
    assert ran.code != 0 and ran.out == "" and ran.err.count("\n") == 1
