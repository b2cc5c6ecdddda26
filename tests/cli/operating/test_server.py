"""How many threads the model of a server process computes with."""

from __future__ import annotations

import os

import pytest

from colmlm.cli.operating.server import THREADS, cores_per_server


@pytest.mark.parametrize("num_servers", [1, 2, 1000])
def test_processes_share_the_cores_and_each_has_one(
    num_servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    assert cores_per_server(num_servers) == max(1, len(os.sched_getaffinity(0)) // num_servers)


def test_what_the_environment_says_of_threads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "3")
    assert cores_per_server(1) is None
