"""A server with two models answers from the keyset that is active, and ends what began before with its own model."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.api.app import create_app
from colmlm.api.loaded_models import LoadedModel, LoadedModels
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.evidence.generation import FinishedOutput, GenerationRequest, SplicedValue
from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect
from tests.api.generator import LookupGenerator
from tests.api.tiny_server import eager_checkpoint
from tests.fakes import FakeEncoder, NearReader, activated
from tests.kb.corpora import CAPITAL

OLD, NEW = FakeEncoder(), FakeEncoder(salt="2")


@pytest.fixture
def second(atlas: KnowledgeBase) -> int:
    """A second keyset, of another model, that is not active yet."""
    return atlas.keysets.rekey(NEW).keyset_id


@pytest.fixture
def models(atlas: KnowledgeBase) -> LoadedModels:
    return LoadedModels(atlas, [LoadedModel(one, LookupGenerator(atlas, one)) for one in (OLD, NEW)])


@pytest.fixture
def app(atlas: KnowledgeBase, models: LoadedModels) -> GatedApp:
    return create_app(
        atlas, models=models, reader=NearReader(), tuning=Tuning(longest_seconds=0, readiness_seconds=-1.0)
    )


def test_every_route_that_asks_follows_the_switch(
    app: GatedApp, atlas: KnowledgeBase, second: int, connect: Connect
) -> None:
    client = connect(app, "admin")

    def asked() -> list[str]:
        lookup = client.post("/v1/lookups", json={"questions": [CAPITAL]}).json()
        assert lookup["answers"][0]["hits"][0]["value"] == "Lima"
        output = client.post("/v1/generations", json={"prompt": f"Question: {CAPITAL} Answer:"}).json()
        assert output["splices"][0]["value"] == "Lima"
        chat = client.post(
            "/v1/chat/completions",
            json={"model": "colmlm", "messages": [{"role": "user", "content": CAPITAL}]},
        ).json()
        found = client.get("/v1/facts", params={"near": CAPITAL}).json()["items"]
        assert found[0]["value"] == "Lima"
        answer = client.post("/v1/answers", json={"question": CAPITAL}).json()
        assert answer["answer"] == "Lima"
        return [lookup["checkpoint_id"], output["checkpoint_id"], chat["model"]]

    assert asked() == ["fake", "fake", "fake model"]
    activated(atlas, second)
    assert asked() == ["fake2", "fake2", "fake model 2"]
    assert client.get("/readyz").json()["missing"] == []
    assert client.get("/health").json()["models"] == ["fake", "fake2"]
    atlas.keysets.rollback()
    assert asked() == ["fake", "fake", "fake model"]


def test_a_client_that_names_its_checkpoint_is_refused_after_the_switch(
    app: GatedApp, atlas: KnowledgeBase, second: int, connect: Connect
) -> None:
    client = connect(app, "reader")
    asked = {"questions": [CAPITAL], "checkpoint_id": "fake"}
    assert client.post("/v1/lookups", json=asked).status_code == 200
    activated(atlas, second)
    refused = client.post("/v1/lookups", json=asked)
    assert refused.status_code == 409 and "fake2" in refused.json()["detail"]


def test_an_edit_after_the_switch_is_keyed_by_the_new_model(
    app: GatedApp, atlas: KnowledgeBase, second: int, connect: Connect
) -> None:
    client = connect(app, "operator")
    activated(atlas, second)
    added = client.post(
        "/v1/facts", json={"question": "Who founded Lima?", "value": "Pizarro", "reason": "test"}
    )
    assert added.json()["keyed"]
    answer = client.post("/v1/lookups", json={"questions": ["Who founded Lima?"]}).json()
    assert answer["answers"][0]["hits"][0]["value"] == "Pizarro"


def test_a_model_that_is_not_loaded_is_told(
    app: GatedApp, models: LoadedModels, atlas: KnowledgeBase, second: int, connect: Connect
) -> None:
    client = connect(app, "admin")
    models.keep({"fake"})
    models.refused = {"fake2": "it needs 300 MB of memory, and 100 MB are free"}
    assert client.get("/readyz").json()["degraded"] == ["model"]
    assert client.get("/health").json()["models_refused"] == dict(models.refused)
    activated(atlas, second)
    assert client.post("/v1/generations", json={"prompt": "x"}).status_code == 409
    assert client.post("/v1/lookups", json={"questions": [CAPITAL]}).status_code == 409
    assert client.get("/readyz").json()["missing"] == ["checkpoint of the active keyset"]


def test_an_output_ends_with_the_model_that_it_began_with(atlas: KnowledgeBase, tmp_path: Path) -> None:
    """With a real model: it begins, another keyset takes over, and its later lookups find facts by its own keys."""
    checkpoint = eager_checkpoint(tmp_path)
    own = atlas.keysets.rekey(ModelEncoder(checkpoint)).keyset_id
    atlas.keysets.set_threshold(own, -1.0)
    activated(atlas, own)
    prompt = GenerationRequest(prompt="The capital of Peru is", max_tokens=40)

    def looks_up(steady: bool) -> StoringGenerator:
        lookups = RankedLookups(atlas, NearReader, steady=steady)
        return StoringGenerator(checkpoint, LocalOutputs(atlas), lookups)

    undisturbed = looks_up(steady=True).generate(prompt)
    assert len([one for one in undisturbed.splices if one.fact_id]) >= 2
    for steady in (True, False):
        if atlas.keysets.active().keyset_id != own:
            atlas.keysets.rollback()
        items = looks_up(steady).stream(prompt)
        begun = [next(items)]
        while not isinstance(begun[-1], SplicedValue):
            begun.append(next(items))
        atlas.keysets.rollback()  # to the keyset of the other model
        if not steady:
            with pytest.raises(KeysetMismatch):
                list(items)
            continue
        *_, finished, trace = items
        assert isinstance(finished, FinishedOutput) and isinstance(trace, OutputTrace)
        assert (trace.output, trace.checkpoint_id) == (undisturbed.output, checkpoint.checkpoint_id)
