"""Checkpoints are pushed to a hub and pulled from it, by the hub's own client over a real connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests import hub as hubs
from tests.cli.conftest import Run, program
from tests.hub import Hub

Ask = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hubs.running() as hub:
        yield hub


@pytest.fixture
def ask(hub: Hub, tmp_path: Path) -> Ask:
    """Runs the program in a process of its own, since the hub's client reads its environment when it is imported."""
    env = {
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": hubs.SECRET,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }
    return lambda *words, **more: program(*words, env=env | more)


@pytest.mark.slow(reason="pushes to and pulls from a served hub")
def test_what_was_pushed_is_pulled_and_is_the_same_checkpoint(
    run: Run, ask: Ask, hub: Hub, tmp_path: Path
) -> None:
    pushed = json.loads(ask("checkpoint", "push", "me/mine", "--dtype", "fp32", "--json").stdout)
    assert pushed["commit"] == hub.commits["me/mine"] and hub.private["me/mine"]
    assert pushed["files"] == {name: len(content) for name, content in hub.files["me/mine"].items()}
    assert hub.messages == ["tiny-3, exported by colmlm"]
    hub.files["me/mine"] |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    pulled = ask("checkpoint", "pull", "me/mine", tmp_path / "back")
    assert pulled.returncode == 0 and f"colmlm keysets fill --checkpoint {tmp_path / 'back'}" in pulled.stdout
    assert sorted(file.name for file in (tmp_path / "back").iterdir()) == sorted(pushed["files"])
    assert run("checkpoint", "info", "--checkpoint", tmp_path / "back", "--json").json["name"] == "tiny-3"


@pytest.mark.slow(reason="pushes to and pulls from a served hub")
def test_a_dry_run_names_the_files_and_pushes_none(run: Run, ask: Ask, hub: Hub) -> None:
    ran = ask("checkpoint", "push", "me/mine", "--dry-run")
    assert ran.returncode == 0 and "model.safetensors" in ran.stdout and "Nothing was pushed" in ran.stdout
    assert not hub.files


@pytest.mark.slow(reason="pushes to and pulls from a served hub")
def test_everybody_may_read_what_is_pushed_as_public(run: Run, ask: Ask, hub: Hub) -> None:
    assert ask("checkpoint", "push", "me/mine", "--public").returncode == 0
    assert not hub.private["me/mine"]


@pytest.mark.slow(reason="pushes to and pulls from a served hub")
def test_a_hub_that_refuses_says_what_it_takes(run: Run, ask: Ask, hub: Hub, tmp_path: Path) -> None:
    refused = ask("checkpoint", "push", "me/mine", HF_TOKEN="hf_other")
    assert (
        refused.returncode == 7
        and "a token that may write" in refused.stderr
        and "hf_other" not in refused.stderr
    )
    missing = ask("checkpoint", "pull", "me/none", tmp_path / "none")
    assert missing.returncode == 7 and "me/none: cannot be fetched" in missing.stderr
    assert "check the name" in missing.stderr and not (tmp_path / "none").exists()


@pytest.mark.slow(reason="starts the program four times")
def test_a_wrong_name_and_a_hub_out_of_reach_are_told_apart_from_a_refused_token(
    run: Run, ask: Ask, tmp_path: Path
) -> None:
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    for words in (("push", "me/mine"), ("pull", "me/mine", tmp_path / "back")):
        away = ask("checkpoint", *words, **nobody)
        assert away.returncode == 7 and "Connection refused" in away.stderr
        assert "check the network, and HF_ENDPOINT" in away.stderr and "HF_TOKEN" not in away.stderr
    for words in (("push", "a/b/c"), ("pull", "a/b/c", tmp_path / "back")):
        named = ask("checkpoint", *words)
        assert named.returncode == 7 and "as OWNER/NAME" in named.stderr and "HF_TOKEN" not in named.stderr
    assert not (tmp_path / "back").exists()


@pytest.mark.slow(reason="pushes to and pulls from a served hub")
def test_a_file_that_is_not_the_one_that_was_written_is_refused(
    run: Run, ask: Ask, hub: Hub, tmp_path: Path
) -> None:
    ask("checkpoint", "push", "me/mine")
    hub.files["me/mine"]["tokenizer.json"] += b" "
    refused = ask("checkpoint", "pull", "me/mine", tmp_path / "back")
    assert refused.returncode == 7 and "tokenizer.json does not match its digest" in refused.stderr
    assert not (tmp_path / "back").exists()
