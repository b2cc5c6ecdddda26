"""A base with two corpora, and clients with tokens of one of them."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.api.conftest import Client, Connect
from tests.api.generator import LookupGenerator
from tests.api.planted import SALARY, Planted, client_of, plant
from tests.fakes import FakeEncoder, SayingReader


@pytest.fixture(scope="session")
def planted_template(server: URL) -> tuple[str, Planted]:
    """The name of a database with two corpora, and where the words are."""
    return "scoped_template", servers.fill(server, "scoped_template", plant)


@pytest.fixture
def template(planted_template: tuple[str, Planted]) -> str:
    return planted_template[0]


@pytest.fixture
def planted(kb: KnowledgeBase, planted_template: tuple[str, Planted]) -> Planted:
    return planted_template[1]


@pytest.fixture
def app(kb: KnowledgeBase, planted: Planted, encoder: FakeEncoder, tuning: Tuning) -> GatedApp:
    return create_app(kb, encoder, LookupGenerator(kb, encoder), tuning=tuning, reader=SayingReader(SALARY))


@pytest.fixture
def scoped(kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """A client with a reader's token of the seen corpus."""
    return client_of("reader", kb, app, connect)


@pytest.fixture
def editor(kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """A client with an operator's token of the seen corpus."""
    return client_of("operator", kb, app, connect)
