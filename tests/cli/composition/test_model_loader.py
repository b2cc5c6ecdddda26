"""The models of the keysets in line are loaded while a server runs, and those of retired keysets are freed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from colmlm.api.loaded_models import LoadedModel, LoadedModels
from colmlm.cli.operating.server import ModelLoader
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated, measured, salt_at
from tests.kb.corpora import ingest, numbered

PLENTY = 1 << 40


@dataclass
class Trial:
    """A base with a keyset of the checkpoint `old`, and its loader of models. `free` is the memory there is."""

    kb: KnowledgeBase
    home: Path
    free: int = PLENTY

    def __post_init__(self) -> None:
        ingest(self.kb, *numbered(4))
        self.keysets = {"old": self.made("old")}
        self.models = LoadedModels(self.kb, [LoadedModel(self.stored("old"))])
        self.loader = ModelLoader(
            self.kb,
            self.models,
            lambda path: LoadedModel(self.stored(salt_at(path))),
            lambda path: 1 << 20,
            available=lambda: self.free,
        )

    def stored(self, salt: str) -> FakeEncoder:
        return FakeEncoder(salt=salt, home=self.home)

    def made(self, salt: str) -> int:
        """Keys everything with another checkpoint, and gives the keyset."""
        (self.home / f"salt-{salt}").mkdir()
        keyset = self.kb.keysets.rekey(self.stored(salt))
        return self.kb.keysets.calibrate(keyset.keyset_id, measured(0.9)).keyset_id

    def passed(self, salt: str) -> int:
        keyset_id = self.made(salt)
        assert self.kb.keysets.check(keyset_id, self.stored(salt), active_encoder=self.stored("old")).passed
        return keyset_id

    def loaded(self) -> list[str]:
        self.loader.keep_up()
        return sorted(self.models.checkpoints)


@pytest.fixture
def trial(kb: KnowledgeBase, tmp_path: Path) -> Trial:
    return Trial(kb, tmp_path)


def test_the_next_model_is_loaded_when_its_keyset_has_passed_and_the_former_is_kept(trial: Trial):
    assert trial.loaded() == ["fakeold"]
    made = trial.made("made")
    assert trial.loaded() == ["fakeold"], "nobody has checked it"
    trial.kb.keysets.retire(made)
    new = trial.passed("new")
    assert trial.loaded() == ["fakenew", "fakeold"]
    old = trial.models.model_of_active_keyset()
    trial.kb.keysets.activate(new)
    now = trial.models.model_of_active_keyset()
    assert old and now and (old.checkpoint.name, now.checkpoint.name) == ("fake model old", "fake model new")
    assert trial.loaded() == ["fakenew", "fakeold"], "for a rollback"
    trial.kb.keysets.rollback()
    assert trial.models.model_of_active_keyset() == old and trial.loaded() == ["fakenew", "fakeold"]
    trial.kb.keysets.activate(new)
    trial.kb.keysets.retire(trial.keysets["old"])
    assert trial.loaded() == ["fakenew"]


def test_a_keyset_that_was_activated_without_a_gate_gets_its_model_too(trial: Trial):
    activated(trial.kb, trial.made("new"))
    with pytest.raises(KeysetMismatch):
        trial.models.model_of_active_keyset()
    assert trial.loaded() == ["fakenew", "fakeold"]
    assert trial.models.model_of_active_keyset() is not None


def test_a_question_waits_for_the_model_of_a_keyset_that_was_activated_before_it_was_loaded(trial: Trial):
    go_on, loads = Event(), trial.loader.load

    def load(path: Path) -> LoadedModel:
        go_on.wait(30)
        return loads(path)

    trial.loader.load, trial.loader.look_seconds = load, 0.01
    questions = Questions(trial.kb, trial.models.encoders, await_encoder=trial.models.await_model)
    with trial.loader, ThreadPoolExecutor() as pool:
        activated(trial.kb, trial.made("new"))
        asked = pool.submit(questions.ask, ["Question 1?"])
        model = pool.submit(trial.models.model_of_active_keyset)
        assert not wait([asked, model], timeout=0.3).done
        go_on.set()
        checkpoint_id, (lookup,) = asked.result(30)
        assert (checkpoint_id, lookup.hits[0].value) == ("fakenew", "value 1")
        assert (found := model.result(30)) and found.checkpoint.checkpoint_id == "fakenew"


def test_a_question_does_not_wait_for_a_model_that_cannot_be_loaded(trial: Trial):
    trial.free, trial.loader.look_seconds = 0, 0.01
    questions = Questions(trial.kb, trial.models.encoders, await_encoder=trial.models.await_model)
    with trial.loader:
        activated(trial.kb, trial.made("new"))
        with pytest.raises(KeysetMismatch):
            questions.ask(["Question 1?"])
    assert "fakenew" in trial.models.refused


def test_what_is_not_loaded_is_told_with_the_reason_and_tried_again(trial: Trial):
    trial.passed("new")
    trial.free = 1 << 20
    assert trial.loaded() == ["fakeold"]
    assert trial.models.refused == {
        "fakenew": "it needs 3 MB of memory, and 1 MB are free. Free some. This server tries again every minute"
    }
    trial.free, trial.loader.again_seconds = PLENTY, 0.0
    (trial.home / "salt-new").rename(trial.home / "elsewhere")
    assert trial.loaded() == ["fakeold"] and "where it was registered" in trial.models.refused["fakenew"]
    (trial.home / "elsewhere").rename(trial.home / "salt-new")
    trial.loader.load = lambda path: LoadedModel(trial.stored("third"))
    assert trial.loaded() == ["fakeold"] and "another checkpoint" in trial.models.refused["fakenew"]
    trial.loader.load = lambda path: LoadedModel(trial.stored("new"))
    assert trial.loaded() == ["fakenew", "fakeold"] and not trial.models.refused


def test_a_model_that_failed_is_left_alone_for_a_minute(trial: Trial):
    trial.passed("new")
    trial.free = 0
    trial.loaded()
    trial.free = PLENTY
    assert trial.loaded() == ["fakeold"]


def test_a_model_that_fails_in_a_way_nobody_foresaw_is_tried_again(trial: Trial):
    trial.passed("new")
    loads = trial.loader.load

    def load(path: Path) -> LoadedModel:
        raise RuntimeError("no kernel for this device")

    trial.loader.load, trial.loader.again_seconds, trial.loader.look_seconds = load, 0.0, 0.01
    with trial.loader:
        while trial.models.refused != {
            "fakenew": "no kernel for this device. This server tries again every minute"
        }:
            time.sleep(0.01)
        trial.loader.load = loads
        while "fakenew" not in trial.models:
            time.sleep(0.01)


def test_nothing_is_freed_before_the_active_model_is_there(trial: Trial):
    activated(trial.kb, trial.made("new"))
    trial.kb.keysets.retire(trial.keysets["old"])
    trial.free = 0
    assert trial.loaded() == ["fakeold"]


def test_its_thread_follows_and_ends(trial: Trial):
    new = trial.passed("new")
    trial.loader.look_seconds = 0.01
    with trial.loader:
        while "fakenew" not in trial.models:
            time.sleep(0.01)
        trial.kb.keysets.activate(new)
        trial.kb.keysets.retire(trial.keysets["old"])
        while "fakeold" in trial.models:
            time.sleep(0.01)
