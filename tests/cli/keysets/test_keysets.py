from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from colmlm.cli.composition.keying import describe_calibration, key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.service import KnowledgeBase
from colmlm.model.lm.config import MINILM
from colmlm.model.text.markup import ASKER
from tests.cli.conftest import Run
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("other"), seed=4)


def test_the_first_rekey_keys_calibrates_and_activates(run: Run, atlas: list[int]) -> None:
    ran = run("keysets", "fill", "--json")
    assert ran.code == 0 and "Threshold" in ran.err
    assert (ran.json["state"], ran.json["num_keys"], ran.json["num_unkeyed"]) == ("active", 2, 0)
    assert ran.json["calibrated"]
    assert run("doctor", "--data", "--json").json["ok"]


class Edited:
    """A base in which somebody adds a fact just before the first keying of it ends."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self.kb, self.keysets, self.rounds = kb, self, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kb if hasattr(self.kb, name) else self.kb.keysets, name)

    def rekey(self, encoder: Encoder, **options: Any) -> KeysetRecord:
        made = self.kb.keysets.rekey(encoder, **options)
        self.rounds += 1
        if self.rounds == 1:
            self.kb.facts.add("Who keeps the keys?", "Ann", actor="ann", reason="came late")
        return self.kb.keysets.show(made.keyset_id)


def test_a_fact_that_comes_while_keys_are_made_is_keyed_before_the_threshold_is_measured(
    run: Run, atlas: list[int]
) -> None:
    with Runtime.from_environment() as runtime:
        runtime.open()
        edited: Any = Edited(runtime.kb)
        made = key_everything(runtime, kb=edited)
    assert (edited.rounds, made.num_keys, made.num_unkeyed, made.calibrated) == (2, 3, 0, True)


def test_a_new_checkpoint_answers_once_activated_and_the_old_one_again(
    run: Run, keyed: list[int], other: Path
) -> None:
    new = run("keysets", "fill", "--checkpoint", other, "--json")
    assert new.json["state"] == "ready" and "keysets activate" in new.err
    asked = ("lookup", "anything", "--threshold", -1)
    assert run(*asked).code == 0 and run(*asked, "--checkpoint", other).code == 4
    refused = run("keysets", "activate", new.json["keyset_id"])
    assert refused.code == 4 and "never checked" in refused.err
    run("keysets", "activate", new.json["keyset_id"], "--force")
    assert run(*asked).code == 4 and run(*asked, "--checkpoint", other).code == 0
    states = {k["keyset_id"]: k["state"] for k in run("keysets", "list", "--json").json["keysets"]}
    assert states == {1: "ready", new.json["keyset_id"]: "active"}
    run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--no-key")
    back = run("keysets", "rollback", "--json")
    assert back.json["state"] == "active" and back.json["keyset_id"] == 1
    assert "1 fact has no key in it" in back.err and "colmlm keysets fill 1" in back.err
    assert run("keysets", "fill", 1, "--json").json["num_unkeyed"] == 0
    assert run("keysets", "fill", 77).code == 3


def test_commands_take_the_active_keysets_checkpoint_where_the_settings_name_none(
    run: Run, keyed: list[int], other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLMLM_CHECKPOINT")
    asked = ("lookup", "anything", "--threshold", -1)
    assert run(*asked).code == 0
    new = run("keysets", "fill", "--checkpoint", other, "--json").json["keyset_id"]
    run("keysets", "activate", new, "--force")
    assert run(*asked).code == 0
    added = run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--json")
    assert added.code == 0 and run("keysets", "list", "--json").json["keysets"][1]["num_unkeyed"] == 0
    run("keysets", "rollback")
    assert run(*asked).code == 0


@pytest.mark.slow(reason="keys a corpus with two models")
def test_a_keyset_is_checked_against_the_active_one_with_both_models_and_then_activated(
    run: Run, keyed: list[int], other: Path, tmp_path: Path
) -> None:
    assert run("keysets", "create", "--checkpoint", other, "--index-spec", "IDMap,IVF4,Flat").code == 6
    new = run("keysets", "create", "--checkpoint", other, "--empty", "--json").json["keyset_id"]
    assert run("keysets", "check", new).code == 4
    run("keysets", "fill", new)
    assert run("keysets", "fill", new, "--recall", 0.98, "--json").json["num_keys"] == 2
    plot = tmp_path / "drift.png"
    lenient = ("--max-question-loss", 1, "--min-agreement", 0, "--plot", plot)
    checked = run("keysets", "check", new, *lenient, "--json")
    figures = {c["name"]: c for c in checked.json["criteria"]}
    assert checked.code == 0 and checked.json["passed"] and checked.json["active_keyset_id"] == 1
    assert figures["question recall@1"]["note"].startswith("active keyset: ")
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 10_000
    said = run("keysets", "check", new, *lenient)
    assert "facts lost" in said.out and "passed." in said.out and "active one already" not in said.err
    assert "passed at change" in run("keysets", "list").out
    assert run("keysets", "activate", new, "--json").json["state"] == "active"
    run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--no-key")
    failed = run("keysets", "check", new)
    assert failed.code == 1 and "FAILED" in failed.out
    assert f"Keyset {new} is the active one already, so it was compared with no other." in failed.err
    assert "failed (facts lost)" in run("keysets", "list").out


def test_the_list_says_how_many_lists_of_an_index_are_read(run: Run, keyed: list[int], other: Path) -> None:
    new = run("keysets", "create", "--checkpoint", other, "--index-spec", "IVF2,Flat", "--json").json
    built = run("keysets", "fill", new["keyset_id"], "--recall", 0.9, "--json").json
    fit = {"spec": "IVF2,Flat", "lists": 2, "lists_read": 2, "recall": 1.0, "spare": 8}
    assert built["fit"] == fit
    assert run("keysets", "list", "--json").json["keysets"][1]["index_fit"] == fit
    said = "IVF2,Flat, 2 of 2 lists, 10 candidates"
    assert said in " ".join(run("keysets", "fill", new["keyset_id"], "--recall", 0.98).out.split())
    assert said in " ".join(run("keysets", "list").out.split())
    gone = other.rename(other.with_name("gone"))
    assert said in " ".join(run("keysets", "fill", new["keyset_id"], "--recall", 0.98).out.split()), (
        "no model"
    )
    gone.rename(other)


def test_a_keyset_is_calibrated_with_its_own_checkpoint_from_any_directory(
    run: Run, keyed: list[int], other: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(other.parent)
    new = run("keysets", "fill", "--checkpoint", other.name, "--json").json["keyset_id"]
    monkeypatch.chdir(tmp_path)
    measured = run("keysets", "threshold", new, "--calibrate", "--dry-run", "--json")
    assert measured.code == 0 and measured.json["keyset_id"] == new
    assert run("keysets", "activate", new, "--force").code == 0


def test_retiring_says_what_goes_and_asks(run: Run, keyed: list[int], other: Path) -> None:
    new = run("keysets", "fill", "--checkpoint", other, "--json").json["keyset_id"]
    assert run("keysets", "retire", 1, "--yes").code == 4, "it is active"
    assert run("keysets", "retire", new).code == 2
    tried = run("keysets", "retire", new, "--dry-run", "--json").json
    assert tried == {"keyset_id": new, "dry_run": True, "num_keys": 2}
    assert run("keysets", "retire", new, "--yes", "--reason", "worse", "--actor", "Ann").code == 0
    last = run("log", "list", "--json").json["changes"][0]
    assert (last["kind"], last["actor"], last["reason"]) == ("retire", "Ann", "worse")
    assert run("keysets", "fill", new).code == 4 and run("keysets", "fill", new, "--recall", 1).code == 4


def test_a_threshold_is_shown_and_set(run: Run, keyed: list[int]) -> None:
    assert run("keysets", "threshold", 1, "--set", 0.25, "--json").json == {
        "keyset_id": 1,
        "threshold": 0.25,
        "calibrated": False,
    }
    assert "0.250, not calibrated" in run("keysets", "threshold", 1).out
    assert (
        run("keysets", "fill", "--json").json["threshold"] == 0.25
    )  # what somebody set is not measured anew unasked
    assert run("keysets", "threshold", 77).code == 3 and run("keysets", "threshold", 1, "--set", 2).code == 2


def test_a_base_without_questions_is_keyed_and_says_that_it_is_not_calibrated(run: Run) -> None:
    run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--no-key")
    ran = run("keysets", "fill", "--json")
    assert ran.code == 0 and not ran.json["calibrated"]


def test_calibrating_reports_both_error_rates_and_a_dry_run_keeps_the_threshold(
    run: Run, keyed: list[int]
) -> None:
    run("keysets", "threshold", "--calibrate", "--false-accept-rate", 0)
    before = run("keysets", "list", "--json").json["keysets"][0]["threshold"]
    tried = run("keysets", "threshold", "--calibrate", "--false-accept-rate", 1, "--dry-run", "--json").json
    assert tried["threshold"] == -1 and tried["false_accept_rate"] == 1 and tried["false_reject_rate"] == 0
    assert run("keysets", "list", "--json").json["keysets"][0]["threshold"] == before
    assert run("keysets", "threshold", "--calibrate", 1, "--json").json["num_questions"] == 2


@pytest.mark.parametrize(("accepted", "advises"), [(0.15, False), (0.62, True)])
def test_a_threshold_that_hardly_tells_facts_apart_comes_with_advice(accepted: float, advises: bool) -> None:
    told = describe_calibration(Calibration(0.633, accepted, 0.33, 0.3, 293))
    assert ("keysets threshold" in told) is advises
    assert "answers 67.0%" in told and f"silent on {1 - accepted:.1%}" in told


def test_another_checkpoints_keyset_cannot_be_calibrated(run: Run, keyed: list[int], other: Path) -> None:
    assert run("keysets", "threshold", "--calibrate", 1, "--checkpoint", other).code == 4
    assert run("keysets", "threshold", "--calibrate", 77).code == 3


def test_calibrating_what_has_no_keys_says_so(run: Run, atlas: list[int]) -> None:
    ran = run("keysets", "threshold", "--calibrate")
    assert ran.code == 2 and "calibration needs questions" in ran.err


def test_a_checkpoint_is_described_and_exported_with_the_same_keys(
    run: Run, keyed: list[int], tmp_path: Path
) -> None:
    info = run("checkpoint", "info", "--json").json
    assert info["dim"] == 64 and info["name"] == "tiny-3"
    assert info["checkpoint_id"] in run("checkpoint", "info").out
    target = tmp_path / "exported"
    assert run("checkpoint", "export", target, "--json").json["path"] == str(target)
    ran = run("lookup", "anything", "--threshold", -1, "--json", "--checkpoint", target)
    assert ran.code in (0, 4)
    assert run("checkpoint", "export", target).code == 2


def test_a_checkpoint_is_exported_as_one_file_of_a_type(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "gguf"
    assert run("checkpoint", "export", target, "--form", "gguf", "--dtype", "fp16", "--json").json[
        "path"
    ] == str(target)
    assert sorted(file.name for file in target.iterdir()) == ["LICENSE", "README.md", "tiny-3-fp16.gguf"]


def test_questions_become_keys_where_they_are_asked_for(run: Run, keyed: list[int]) -> None:
    assert run("keysets", "fill", "--kinds", "context,question", "--json").json["num_keys"] == 4
    run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--no-key")
    assert run("keysets", "fill", 1, "--json").json["num_keys"] == 5
    assert run("keysets", "fill", "--kinds", "question").code == 2


def test_a_model_that_asks_in_words_makes_no_keys(run: Run, atlas: list[int], tmp_path: Path) -> None:
    refused = run("keysets", "fill", "--checkpoint", tiny_checkpoint(tmp_path / "asker", markup=ASKER))
    assert refused.code == 7 and "colmlm keysets create --encoder minilm" in refused.err


@pytest.mark.slow(reason="keys a corpus with a sentence encoder")
@pytest.mark.skipif(find_spec(MINILM.package) is None, reason=f"{MINILM.package} is not installed")
def test_a_sentence_encoder_has_a_keyset_like_any_checkpoint(
    run: Run, keyed: list[int], checkpoint: Path
) -> None:
    new = run("keysets", "create", "--encoder", "minilm", "--json")
    assert (new.json["state"], new.json["dim"], new.json["num_keys"]) == ("ready", 384, 2)
    assert "its own question" in new.err and not new.json["calibrated"]
    assert (
        run("keysets", "create", "--encoder", "minilm", "--json").json["keyset_id"] == new.json["keyset_id"]
    )
    sentences = run("keysets", "create", "--encoder", "minilm-sentences", "--empty", "--json").json[
        "keyset_id"
    ]
    assert sentences != new.json["keyset_id"]
    assert run("keysets", "fill", sentences, "--json").json["num_keys"] == 2
    assert run("keysets", "create", "--encoder", "minilm", "--checkpoint", checkpoint).code == 2
    run("keysets", "activate", new.json["keyset_id"], "--force")
    refused = run("lookup", "anything", "--threshold", -1)
    assert refused.code == 4 and "vectors cannot be compared" in refused.err
