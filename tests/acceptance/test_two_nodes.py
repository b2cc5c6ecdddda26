"""A run on two nodes goes on after a rank was killed, and learns what it would have learnt."""

from __future__ import annotations

import json
import subprocess

import pytest

from colmlm.kb import interpreter


@pytest.mark.slow(reason="trains on two nodes and kills a rank")
@pytest.mark.timeout(300)
def test_a_run_on_two_nodes_goes_on_after_a_rank_was_killed() -> None:
    command = interpreter.command(
        "-m", "tests.acceptance.two_nodes", "--steps", 30, "--kill", "rank", "--json"
    )
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    outcome = json.loads(ran.stdout)
    (kill,) = outcome["kills"]
    assert ran.returncode == 0 and outcome["steps"] == 30, outcome
    assert 0 < kill["resumed_from"] <= kill["after_step"] < 30
    assert max(outcome["weights_differ_by"], outcome["losses_differ_by"]) <= 1e-5
    assert outcome["left_behind"] == []
