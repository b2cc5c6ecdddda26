"""The API on a real knowledge base with one corpus, and clients of every role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from litestar.testing import TestClient
from sqlalchemy import URL
from sqlalchemy.orm import Session

from colmlm.api.app import build_routes, create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.api.schema.openapi import complete_document
from colmlm.kb.access.tokens import create_token
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder, NearReader

ORIGIN = "http://127.0.0.1:8484"

CAPITAL, LAKE = "What is the capital of Peru?", "Which lake lies highest?"
TEXT = "Peru is a country. 🇵🇪 The capital of Peru is Lima. Its great lake is Titicaca."

Client = TestClient[GatedApp]
Connect = Callable[..., Client]


def span(value: str, question: str) -> FactSpan:
    start = TEXT.index(value)
    return FactSpan(start, start + len(value), value, question, value)


PERU = AnnotatedDocument(
    "peru",
    TEXT,
    (span("Lima", CAPITAL), span("Titicaca", LAKE)),
    title="Peru",
    uri="https://example.org/peru",
    licence="CC-BY-4.0",
)


def ingest_and_key(kb: KnowledgeBase) -> None:
    kb.corpora.ingest([Parsed(PERU)], "atlas", actor="tester", reason="set up")
    kb.keysets.rekey(FakeEncoder())


@pytest.fixture(scope="session")
def atlas_template(server: URL) -> str:
    """The name of a database with a corpus, which tests clone: to fill it anew would take each a third of a second."""
    servers.fill(server, "atlas_template", ingest_and_key)
    return "atlas_template"


@pytest.fixture
def template(request: pytest.FixtureRequest) -> str:
    uses_atlas = "atlas" in request.fixturenames
    return request.getfixturevalue("atlas_template") if uses_atlas else servers.TEMPLATE


@pytest.fixture
def atlas(kb: KnowledgeBase) -> KnowledgeBase:
    """A knowledge base of one document with two keyed facts."""
    return kb


@pytest.fixture
def two_tokens(kb: KnowledgeBase) -> None:
    """Makes erasures need two tokens; to be used before the app is made."""
    kb.settings = replace(kb.settings, erase_needs_two=True)


@pytest.fixture
def tuning() -> Tuning:
    """Streams that wait end at once, since a client in this process reads an answer to its end."""
    return Tuning(longest_seconds=0)


@pytest.fixture
def app(atlas: KnowledgeBase, encoder: FakeEncoder, tuning: Tuning) -> GatedApp:
    return create_app(atlas, encoder, LookupGenerator(atlas, encoder), tuning=tuning, reader=NearReader())


@pytest.fixture(scope="session")
def description() -> dict[str, Any]:
    """The description of the API, to be read alone: to complete it takes most of a second."""
    return complete_document(build_routes())


@pytest.fixture
def new_token(kb: KnowledgeBase) -> Callable[[str], str]:
    """A function that makes a token of a role, with the role as its name, and gives its token."""

    def make(role: str) -> str:
        with Session(kb.engine) as session, session.begin():
            return create_token(session, f"the {role}", role)

    return make


@pytest.fixture
def connect(new_token: Callable[[str], str]) -> Iterator[Connect]:
    """A function that opens clients: `connect(app, role)` with a bearer key, `connect(app)` with none.

    There is one client for each app at a time.
    """
    with ExitStack() as clients:

        def open_client(app: GatedApp, role: str | None = None) -> Client:
            client = clients.enter_context(TestClient(app, base_url=ORIGIN, raise_server_exceptions=False))
            if role is not None:
                client.headers["Authorization"] = f"Bearer {new_token(role)}"
            return client

        yield open_client


def body_of(answer: Any, status: int = 200) -> Any:
    """Give the JSON that an answer has as its body, where it has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture
def reader(app: GatedApp, connect: Connect) -> Client:
    return connect(app, "reader")


@pytest.fixture
def operator(app: GatedApp, connect: Connect) -> Client:
    return connect(app, "operator")


@pytest.fixture
def fact_id(atlas: KnowledgeBase) -> int:
    """The fact that Lima is the capital."""
    (fact,) = atlas.facts.find(text="Lima")
    return fact.fact_id
