"""Where bulk work is done, as it is said on the command line and in the settings."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from colmlm.cli.composition.bulk.spreading import RayPlace, Spreading, require_cluster
from colmlm.cli.composition.handlers import problem
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import DATABASE, USAGE, FailedElsewhere, explain
from colmlm.kb.store.settings import Settings
from tests.cli.conftest import Run
from tests.refusals import raises_code


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_auto_is_this_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RayPlace.parse_address(address, 3) == RayPlace(None, 3)


def test_auto_is_the_cluster_that_ray_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    assert RayPlace.parse_address("auto") == RayPlace("10.0.0.5:6379")
    assert RayPlace.parse_address("[fd00::5]:6379") == RayPlace("[fd00::5]:6379")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.5:10001")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS, and 'ray://10.0.0.5:10001' is not HOST:PORT"):
        RayPlace.parse_address("auto")


def test_what_is_no_address_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for address in ("nowhere", "ray://10.0.0.5:10001", "10.0.0.5", "a b:1", "h:1;x", "h:65536"):
        with subtests.test(address=address):
            ran = run("keysets", "fill", "--ray", address)
            assert ran.code == USAGE and "HOST:PORT" in " ".join(ran.err.replace("│", " ").split())
            monkeypatch.setenv("COLMLM_RAY", address)
            ran = run("keysets", "fill")
            assert ran.code == USAGE and "COLMLM_RAY" in ran.err
            monkeypatch.delenv("COLMLM_RAY")


def test_a_cluster_out_of_reach_is_told_at_once_with_what_to_look_at(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as heard:
        address = f"127.0.0.1:{heard.getsockname()[1]}"
        require_cluster(address)
    with raises_code(
        "ClusterUnavailable", match=rf"No Ray cluster answers at {address}: Connection refused"
    ) as refused:
        list(Spreading(Runtime(Settings(home=tmp_path)), RayPlace(address)).outcomes("key", None, [1]))
    assert explain(refused.value).exit_code == DATABASE and "`ray status`" in explain(refused.value).line
    assert problem(refused.value)["title"] == "Cluster unavailable"


def test_a_cluster_that_ray_cannot_join_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another release, for which a package `ray` stands that says so."""
    (tmp_path / "ray.py").write_text("raise RuntimeError('Version mismatch: 2.1 there')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with socket.create_server(("127.0.0.1", 0)) as heard:
        address = f"127.0.0.1:{heard.getsockname()[1]}"
        with raises_code("ClusterUnavailable", match=r"Version mismatch: 2\.1 there.*the same release"):
            list(Spreading(Runtime(Settings(home=tmp_path)), RayPlace(address)).outcomes("key", None, [1]))


def test_a_driver_that_dies_in_its_cluster_is_no_matter_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of memory while models are loaded, for which a package `ray` stands that kills its process."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("def init(**_): ...\ndef shutdown(): ...\n")
    (tmp_path / "ray" / "data.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with socket.create_server(("127.0.0.1", 0)) as heard:
        place = RayPlace(f"127.0.0.1:{heard.getsockname()[1]}")
        with pytest.raises(FailedElsewhere, match="Ray ended with code -9"):
            list(Spreading(Runtime(Settings(home=tmp_path)), place).outcomes("key", None, [1]))


def test_who_lacks_ray_is_told_what_brings_it() -> None:
    failure = explain(ModuleNotFoundError("ray is not installed", name="ray"))
    assert failure.exit_code == USAGE and "pip install 'colmlm[ray]'" in failure.line


def test_a_server_has_settings_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_TOKEN", "a-secret")
    ran = run("keysets", "fill", 1, "--ray", "auto", "--server", "http://127.0.0.1:9")
    assert ran.code == USAGE and "--ray" in ran.err
