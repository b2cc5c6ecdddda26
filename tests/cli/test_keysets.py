from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("other"), seed=4)


def test_the_first_rekey_keys_calibrates_and_activates(run: Run, atlas: list[int]) -> None:
    ran = run("rekey", "--json")
    assert ran.code == 0 and "Threshold" in ran.err
    assert (ran.json["state"], ran.json["num_keys"], ran.json["num_unkeyed"]) == ("active", 2, 0)
    assert ran.json["calibrated"]
    assert run("fsck", "--json").json["ok"]


def test_a_new_checkpoint_answers_once_activated_and_the_old_one_again(
    run: Run, keyed: list[int], other: Path
) -> None:
    new = run("rekey", "--checkpoint", other, "--json")
    assert new.json["state"] == "ready" and "keysets activate" in new.err
    asked = ("lookup", "anything", "--threshold", -1)
    assert run(*asked).code == 0 and run(*asked, "--checkpoint", other).code == 4
    run("keysets", "activate", new.json["keyset_id"])
    assert run(*asked).code == 4 and run(*asked, "--checkpoint", other).code == 0
    states = {k["keyset_id"]: k["state"] for k in run("keysets", "list", "--json").json["keysets"]}
    assert states == {1: "ready", new.json["keyset_id"]: "active"}
    assert run("keysets", "activate", 1, "--json").json["state"] == "active"


def test_a_base_without_questions_is_keyed_and_says_that_it_is_not_calibrated(run: Run) -> None:
    run("facts", "add", "--question", "Who?", "--value", "Ann", "--reason", "r", "--no-key")
    ran = run("rekey", "--json")
    assert ran.code == 0 and not ran.json["calibrated"]


def test_calibrating_reports_both_error_rates_and_a_dry_run_keeps_the_threshold(
    run: Run, keyed: list[int]
) -> None:
    run("keysets", "calibrate", "--false-accept-rate", 0)
    before = run("keysets", "list", "--json").json["keysets"][0]["threshold"]
    tried = run("keysets", "calibrate", "--false-accept-rate", 1, "--dry-run", "--json").json
    assert tried["threshold"] == -1 and tried["false_accept_rate"] == 1 and tried["false_reject_rate"] == 0
    assert run("keysets", "list", "--json").json["keysets"][0]["threshold"] == before
    assert run("keysets", "calibrate", 1, "--json").json["num_questions"] == 2


def test_another_checkpoints_keyset_cannot_be_calibrated(run: Run, keyed: list[int], other: Path) -> None:
    assert run("keysets", "calibrate", 1, "--checkpoint", other).code == 4
    assert run("keysets", "calibrate", 77).code == 3


def test_calibrating_what_has_no_keys_says_so(run: Run, atlas: list[int]) -> None:
    ran = run("keysets", "calibrate")
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
