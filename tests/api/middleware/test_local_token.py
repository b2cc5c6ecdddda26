"""The token that a server makes for its own user: it reads, and is nothing anywhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from litestar.testing import TestClient

from colmlm.api.app import create_app
from colmlm.api.middleware.auth import LocalToken
from colmlm.kb.principal import local_principal
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, ORIGIN, Client
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder


@pytest.fixture
def token() -> LocalToken:
    return LocalToken()


@pytest.fixture
def client(atlas: KnowledgeBase, encoder: FakeEncoder, token: LocalToken) -> Iterator[Client]:
    app = create_app(atlas, encoder, LookupGenerator(atlas, encoder), local=token)
    bearer = {"Authorization": f"Bearer {token.secret}"}
    with TestClient(app, base_url=ORIGIN) as client:
        client.headers.update(bearer)
        yield client


def test_it_looks_up_reads_and_generates(client: Client) -> None:
    (answer,) = client.post("/v1/lookups", json={"questions": [CAPITAL]}).json()["answers"]
    assert answer["hits"][0]["value"] == "Lima"
    assert client.get(f"/v1/facts/{answer['hits'][0]['fact_id']}").status_code == 200
    assert client.post("/v1/generations", json={"prompt": CAPITAL}).status_code == 201


def test_it_changes_nothing_and_does_not_see_the_past(client: Client, atlas: KnowledgeBase) -> None:
    before = atlas.log.head_seq()
    why = {"reason": "because"}
    assert client.request("DELETE", "/v1/facts/1", json=why).status_code == 403
    assert client.post("/v1/facts", json={"question": "Q?", "value": "V", **why}).status_code == 403
    for path in ("/v1/changes", "/v1/tokens", "/v1/denials"):
        assert client.get(path).status_code == 403, path
    assert client.post("/v1/lookups", json={"questions": [CAPITAL], "as_of": 1}).status_code == 403
    assert atlas.log.head_seq() == before


def test_it_signs_no_browser_in(client: Client, token: LocalToken) -> None:
    ours = {"Origin": ORIGIN}
    answer = client.post("/session", data={"key": token.secret}, headers=ours, follow_redirects=False)
    assert answer.status_code == 401 and "set-cookie" not in answer.headers


def test_no_database_and_no_other_server_knows_it(
    client: Client, token: LocalToken, atlas: KnowledgeBase, encoder: FakeEncoder
) -> None:
    assert client.get("/v1/facts").status_code == 200
    assert not atlas.access.is_known(token.secret)
    names = {found.name for found in atlas.access.all()}
    assert str(local_principal()) not in names
    for local in (None, LocalToken()):
        with TestClient(create_app(atlas, encoder, local=local), base_url=ORIGIN) as other:
            bearer = {"Authorization": f"Bearer {token.secret}"}
            assert other.get("/v1/facts", headers=bearer).status_code == 401


def test_what_it_is_refused_is_denied_to_the_user_of_the_server(client: Client, atlas: KnowledgeBase) -> None:
    assert client.get("/v1/tokens").status_code == 403
    (denial,) = atlas.log.denials(after=0, limit=10)
    assert denial.actor == str(local_principal())


def test_it_shows_its_secret_in_no_representation(token: LocalToken) -> None:
    assert token.secret not in repr(token) + repr(token.of_secret(token.secret))
