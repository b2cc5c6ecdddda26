"""Spans, as a collector receives them over OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.metrics import tracing_from
from colmlm.api.watch.operations import Operations
from colmlm.kb.errors import SettingsError
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Connect
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """The address of an OTLP collector, and the bodies it was sent."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_off_unless_the_standard_variables_ask_for_it() -> None:
    assert tracing_from({}) is None
    assert tracing_from({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
    assert tracing_from({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}) is None
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER"):
        tracing_from({"OTEL_TRACES_EXPORTER": "carrier pigeon"})


def test_a_request_its_decoding_and_its_lookups_are_one_tree(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with collector() as (address, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        tracing = tracing_from({"OTEL_EXPORTER_OTLP_ENDPOINT": address})
        assert tracing is not None
        app: GatedApp = create_app(
            atlas,
            encoder,
            LookupGenerator(atlas, encoder),
            operations=Operations.of(atlas, ServerSettings(), tracing),
        )
        caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        client = connect(app, "reader")
        for stream in (False, True):
            body = {"prompt": CAPITAL, "stream": stream}
            client.post("/v1/generations", json=body, headers={"traceparent": caller}).read()
        tracing.close()
    # Spans come in one batch, or in more where the machine is busy.
    resources = ExportTraceServiceRequest.FromString(b"".join(bodies)).resource_spans
    for one in resources:
        assert ("service.name", "colmlm") in {(a.key, a.value.string_value) for a in one.resource.attributes}
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    names = {span.span_id: span.name for span in spans} | {bytes.fromhex("b7ad6b7169203331"): "the caller"}
    parents = [(span.name, names[span.parent_span_id]) for span in spans]
    assert {span.trace_id.hex() for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert set(parents) == {
        ("POST /v1/generations", "the caller"),
        ("decode", "POST /v1/generations"),
        ("lookup", "decode"),
        ("search", "lookup"),
        ("select", "lookup"),
    }
    assert parents.count(("lookup", "decode")) == 2, "streamed or not"
    assert CAPITAL.encode() not in b"".join(bodies)
