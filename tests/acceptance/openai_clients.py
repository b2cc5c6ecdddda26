"""Asks a served app with the programs that people have, each in an environment of its own and at its current release.

    python -m tests.acceptance.openai_clients
    python -m tests.acceptance.openai_clients --only litellm --environments environments

It serves a tiny model in this process, installs each client from the package index, runs its script from
`tests/acceptance/clients`, and prints one JSON object: the release and what came of each call, by client.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.schemathesis_all import empty_base
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server
from tests.places import ROOT

SCRIPTS = ROOT / "tests/acceptance/clients"
MODEL = "tiny-3"


@dataclass(frozen=True)
class ForeignClient:
    """A client: its script, and the packages it needs, of which the first is named with its release."""

    script: str
    packages: tuple[str, ...]


CLIENTS: Mapping[str, ForeignClient] = {
    "openai": ForeignClient("openai_python.py", ("openai",)),
    "openai (npm)": ForeignClient("openai_node.mjs", ("openai",)),
    "litellm": ForeignClient("litellm_python.py", ("litellm",)),
    "langchain-openai": ForeignClient("langchain_python.py", ("langchain-openai",)),
    "llama-index": ForeignClient(
        "llama_index_python.py", ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like")
    ),
    "pydantic-ai": ForeignClient("pydantic_ai_python.py", ("pydantic-ai-slim[openai]",)),
    "lm_eval": ForeignClient("lm_eval_python.py", ("lm_eval[api]",)),
}


def ask(name: str, server: TinyServer, environments: Path) -> dict[str, str]:
    """Gives what came of each call of a client, and its release as `release`. Installs it where it is not yet."""
    client = CLIENTS[name]
    folder = environments / name.replace(" ", "-").strip("()")
    install, start, release = _commands(client, folder)
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if client.script.endswith(".py"):
            venv.create(folder, with_pip=True)
        _run(install, folder)
        (folder / "installed").touch()
    arguments = [f"{server.address}/v1", server.keys["reader"], MODEL]
    said = _run([*start, *arguments], folder)
    return {"release": _run(release, folder).strip(), **json.loads(said.splitlines()[-1])}


def _commands(client: ForeignClient, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Gives the commands that install a client, that run its script, and that print its release."""
    script, package = SCRIPTS / client.script, client.packages[0].partition("[")[0]
    if client.script.endswith(".mjs"):
        # A script of this language finds packages beside itself only.
        copied = ["sh", "-c", 'cp "$0" client.mjs && exec node client.mjs "$@"', str(script)]
        told = f"console.log(require('./node_modules/{package}/package.json').version)"
        return ["npm", "install", "--no-fund", "--no-audit", *client.packages], copied, ["node", "-e", told]
    python = str(folder / "bin/python")
    told = f"import importlib.metadata as m; print(m.version('{package}'))"
    return (
        [python, "-m", "pip", "install", "--quiet", *client.packages],
        [python, str(script)],
        [python, "-c", told],
    )


def _run(command: Sequence[str], folder: Path) -> str:
    beside = {**os.environ, "PYTHONPATH": str(SCRIPTS)}  # what is beside a script may be left out of its path
    done = subprocess.run(command, cwd=folder, env=beside, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[:4]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(CLIENTS))
    parser.add_argument("--environments", type=Path, help="a folder that keeps what is installed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, empty_base() as kb:
        environments = (asked.environments or Path(folder)).absolute()
        with tiny_server(kb, eager_checkpoint(Path(folder) / "model")) as server:
            for name in asked.only or CLIENTS:
                print(json.dumps({name: ask(name, server, environments)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
