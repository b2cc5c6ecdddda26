from __future__ import annotations

import json
import os
import subprocess

import pytest

from colmlm.kb import interpreter
from tests.places import ROOT

pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.mark.slow(reason="starts Ray on two nodes")
@pytest.mark.timeout(600)
def test_a_node_killed_between_its_commit_and_ray_leaves_the_keys_of_one_process() -> None:
    """In a process of its own, since Ray takes over the one that it is in."""
    command = interpreter.command("-m", "tests.acceptance.ray_nodes", "--facts", 4000, "--json")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    outcome = json.loads(ran.stdout)
    assert (outcome["keys"], outcome["duplicates"], outcome["facts_differ"]) == (4000, 0, 0)
    assert outcome["unheard_ok"] and outcome["committed_unheard"] > 0
