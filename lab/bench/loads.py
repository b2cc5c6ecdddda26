"""Loads of lookups over HTTP, sent by a process of their own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt

from colmlm.cli.output import note
from colmlm.kb import interpreter
from colmlm.lab.bench.clients import HttpFigures, HttpLoad


def lookup_load(
    port: int, token: str, queries: npt.NDArray[np.float32], checkpoint_id: str, seconds: float
) -> HttpLoad:
    """Gives the load of these queries, one a request, as JSON."""
    return HttpLoad(
        host="127.0.0.1",
        port=port,
        path="/v1/lookups",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        bodies=[json.dumps({"queries": [q], "checkpoint_id": checkpoint_id}) for q in queries.tolist()],
        clients=1,
        seconds=seconds,
    )


def sent(load: HttpLoad, *, clients: int, rate: float = 0.0) -> HttpFigures:
    """Sends the load from so many clients and gives its figures."""
    note(f"{clients} clients" + (f", {rate:.0f} requests a second" if rate else ""))
    load = replace(load, clients=clients, rate=rate)
    command = interpreter.command("-m", "colmlm.lab.bench.clients")
    ran = subprocess.run(command, input=json.dumps(asdict(load)), text=True, capture_output=True, check=True)
    return HttpFigures(**json.loads(ran.stdout))
