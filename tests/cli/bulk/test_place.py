"""Where bulk work is done, as it is said on the command line and in the settings."""

from __future__ import annotations

import pytest

from colmlm.cli.bulk.place import RayPlace
from colmlm.cli.errors import USAGE, explain
from tests.cli.conftest import Run


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_auto_is_this_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RayPlace.named(address, 3) == RayPlace(None, 3)


def test_auto_is_the_cluster_that_ray_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    assert RayPlace.named("auto") == RayPlace("10.0.0.5:6379")
    assert RayPlace.named("[fd00::5]:6379") == RayPlace("[fd00::5]:6379")


@pytest.mark.parametrize("address", ["nowhere", "ray://10.0.0.5:10001", "10.0.0.5", "a b:1", "h:1;x"])
def test_what_is_no_address_is_refused(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("rekey", "--ray", address)
    assert ran.code == USAGE and "HOST:PORT" in " ".join(ran.err.replace("│", " ").split())
    monkeypatch.setenv("COLMLM_RAY", address)
    ran = run("rekey")
    assert ran.code == USAGE and "COLMLM_RAY" in ran.err


def test_who_lacks_ray_is_told_what_brings_it() -> None:
    failure = explain(ModuleNotFoundError("ray is not installed", name="ray"))
    assert failure.exit_code == USAGE and "pip install 'colmlm[ray]'" in failure.line


def test_a_server_has_settings_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_TOKEN", "a-secret")
    ran = run("keysets", "rekey", 1, "--ray", "auto", "--server", "http://127.0.0.1:9")
    assert ran.code == USAGE and "--ray" in ran.err
