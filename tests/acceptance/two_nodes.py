"""Trains a tiny checkpoint on two nodes of one machine, kills a rank and then a node, and compares what is learnt.

Each node has a `torchrun` of its own, as on two machines, which starts the product's own `colmlm train`. When a rank is
killed, both start again by themselves; when a node is killed, its command is given again. The run goes on from its last
save, and its weights are compared with those of a run that nobody disturbed.
torchrun listens on all interfaces, so this process leaves the machine's network for one of its own.

    python -m tests.acceptance.two_nodes --json
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from safetensors.torch import load_file

from colmlm.kb import interpreter
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario
from colmlm.model.lm.checkpoint import WEIGHTS
from colmlm.model.training.logs import LOSS_FILE, read_log
from colmlm.model.training.state import STATE_FILE
from tests.networks import enter_own_network
from tests.tiny import tiny_base

KILLED = ("rank", "node")
RENDEZVOUS = "127.0.0.1:29400"
PATIENCE = 120.0  # seconds
TOLERANCE = 1e-5
SETTINGS = ("precision=fp32", "epsilon=1e-6", "warmup_steps=4", "block=2", "save_seconds=0.4")

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    # Ranks that are started again would find in a shared store the addresses of those before them, and wait for these.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """What was killed, after which step, how many steps of the log stayed, and the seconds until new ones came."""

    what: str
    after_step: int
    resumed_from: int
    seconds: float


@dataclass(slots=True)
class Nodes:
    """Two nodes that train in one directory, each a torchrun and the rank that it starts."""

    base: Path
    directory: Path
    steps: int
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Nodes:
        self.running = [self._started(node) for node in range(2)]
        return self

    def __exit__(self, *_: object) -> None:
        for torchrun in self.running:
            _kill(_family(torchrun.pid))
            torchrun.wait()

    def _started(self, node: int) -> subprocess.Popen[bytes]:
        command = interpreter.command(
            "-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 3,
            "--rdzv-backend", "c10d", "--rdzv-endpoint", RENDEZVOUS, "--rdzv-id", self.directory.name,
            "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", "127.0.0.1",
            "-m", "colmlm.cli", "train", "--init", self.base, "--adapt", "full", "--demo", "--out", self.directory,
            "--steps", self.steps, "--batch", 4, "--max-length", 128,
            *(word for setting in SETTINGS for word in ("--set", setting)),
        )  # fmt: skip
        variables = ENVIRONMENT | {"COLMLM_HOME": str(self.base.parent / "home")}
        with self.said.open("ab") as said:
            return subprocess.Popen(command, env=os.environ | variables, stdout=said, stderr=said)

    @property
    def said(self) -> Path:
        return self.directory.with_suffix(".txt")

    def finish(self) -> None:
        """Waits until both nodes have ended. Raises `RuntimeError` with what they said where one failed."""
        codes = [torchrun.wait(PATIENCE) for torchrun in self.running]
        if any(codes):
            raise RuntimeError(self.said.read_text()[-3000:])

    def kill(self, what: str, after_step: int) -> Kill:
        """Kills the second node's rank or all of that node, and sees the run go on.

        It comes after a save and a later step, whose work is lost.
        """
        self._wait(lambda: self._has_saved() and len(self._seconds()) > after_step)
        torchrun, *ranks = _family(self.running[1].pid)
        before = self._seconds()
        if what == "node":
            _kill([torchrun])
        _kill(ranks)
        began = time.monotonic()
        if what == "node":
            self.running[1].wait()
            self.running[1] = self._started(1)
        self._wait(lambda: len(self._seconds()) > len(before) + 1)
        stayed = _in_common(before, self._seconds())
        return Kill(what, len(before), stayed, round(time.monotonic() - began, 1))

    def _has_saved(self) -> bool:
        return (self.directory / STATE_FILE).is_file()

    def _seconds(self) -> list[float]:
        """Reads the time of each step in the log, which is never the same twice."""
        with suppress(FileNotFoundError, TypeError):  # the last line may be half written
            return read_log(self.directory / LOSS_FILE).get("seconds", [])
        return []

    def _wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > deadline or all(one.poll() is not None for one in self.running):
                raise RuntimeError(self.said.read_text()[-3000:])
            time.sleep(0.01)


def run(settings: Settings, *, steps: int = 60, kill: list[str] | None = None) -> Figures:
    """Train undisturbed, then with a kill of a rank and of a node, or of what is named, spread over the steps."""
    base = tiny_base(settings.home / "base")
    one, other, killed = settings.home / "undisturbed", settings.home / "disturbed", kill or KILLED
    with Nodes(base, one, steps) as nodes:
        nodes.finish()
    with Nodes(base, other, steps) as nodes:
        share = steps // (len(killed) + 1)
        kills = [nodes.kill(what, share * number) for number, what in enumerate(killed, start=1)]
        nodes.finish()
    weights, same = (load_file(directory / WEIGHTS) for directory in (one, other))
    losses, again = (read_log(directory / LOSS_FILE) for directory in (one, other))
    assert weights.keys() == same.keys() and losses["step"] == again["step"] == [*range(1, steps + 1)]
    differences = {
        "weights_differ_by": max(float((weights[name] - same[name]).abs().max()) for name in weights),
        "losses_differ_by": max(abs(a - b) for a, b in zip(losses["loss"], again["loss"], strict=True)),
    }
    return {
        "steps": steps,
        "kills": [asdict(one) for one in kills],
        **differences,
        "left_behind": sorted(
            {path.name for path in other.iterdir()} - {path.name for path in one.iterdir()}
        ),
        "went_on_ok": all(0 < one.resumed_from <= one.after_step for one in kills),
        "same_ok": max(differences.values()) <= TOLERANCE,
    }


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _in_common(one: Sequence[float], other: Sequence[float]) -> int:
    """Counts the values at the beginning in which the two are alike."""
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


if __name__ == "__main__":
    enter_own_network()
    run_scenario(run)
