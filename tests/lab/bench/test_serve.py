from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.clients import WritingLoad, measure_writing
from colmlm.lab.bench.serve import ratio
from tests.api.tiny_server import eager_checkpoint, tiny_server
from tests.cli.conftest import program


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_clients_count_tokens_pieces_and_refusals(kb: KnowledgeBase, tmp_path: Path) -> None:
    with tiny_server(kb, eager_checkpoint(tmp_path)) as tiny:
        load = WritingLoad(
            port=int(tiny.address.rpartition(":")[2]),
            token=tiny.keys["reader"],
            clients=3,
            seconds=0.5,
            max_tokens=8,
            prompts=["The capital", "of Peru"],
            long=[[3] * 200],
        )
        found = measure_writing(load)
        assert found.completions >= 3 and found.refused == 0 and found.long_prompts == 1
        assert found.tokens_each == 8
        assert found.tokens_per_second > 0 and found.ttft_p50_ms > 0
        assert found.between_p50_ms <= found.between_p99_ms
        refused = measure_writing(replace(load, token=tiny.keys["decoder"], seconds=0.1, long=[]))
        assert refused.completions == 0 and refused.refused >= 3


def test_what_was_not_measured_has_no_ratio() -> None:
    assert ratio(6.0, 3.0) == 2.0 and ratio(6.0, 0.0) is None


@pytest.mark.slow(reason="starts servers and measures them")
def test_a_server_is_measured_with_two_numbers_of_clients() -> None:
    few = ("--clients", "1,8", "--seconds", "3", "--tokens", "4", "--long", "100")
    ran = program("bench", "serve", *few, "--json", timeout=280)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [(one["clients"], one["refused"]) for one in found["clients"]] == [(1, 0), (8, 0)]
    assert found["gain_at_8"] > 0 and found["long_beside"]["long_prompts"] >= 1
