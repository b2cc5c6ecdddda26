"""`colmlm-lab bench serve`: completions from several clients at once, beside a plain loop of transformers' generate."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.options import examples
from colmlm.cli.output import note
from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench import api
from colmlm.lab.bench.clients import WritingFigures, WritingLoad
from colmlm.lab.bench.machine import machine, own_folder, print_report
from colmlm.lab.bench.servers import our_server

if TYPE_CHECKING:
    from colmlm.model.lm.checkpoint import Checkpoint

SERVE_EXAMPLES = examples(
    "colmlm-lab bench serve --json",
    "colmlm-lab bench serve --clients 1,8 --seconds 30",
)
PROMPTS = 32
LONG_PROMPTS = 50
BESIDE = 8  # clients with short prompts beside those with a long one


def serve(
    clients: Annotated[str, typer.Option("--clients", help="Numbers of clients at once.")] = "1,4,8,32,64",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=600, help="For each number.")] = 20.0,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=1000, help="Of a completion.")] = 48,
    long: Annotated[
        int,
        typer.Option("--long", min=0, max=8000, help="Tokens of a long prompt beside 8 short ones; 0: none."),
    ] = 6000,
) -> None:
    """Measure completions over HTTP from 1 to 64 clients: tokens per second, time to first token, and between tokens.

    No completion ends before it has as many tokens as it may have.

    The server and the clients are processes of their own on this machine and share its cores.
    """
    from colmlm.cli.composition.runtime import Runtime
    from colmlm.lab.bench.decode import demo_base, describe_device

    numbers = api.numbers_of(clients)
    with own_folder() as home:
        users = Runtime.from_environment()
        checkpoint = users.checkpoint
        note("making a knowledge base")
        settings = Settings(home=home, actor="bench")
        models = users.settings.home / "models"
        models.mkdir(parents=True, exist_ok=True)
        (settings.home / "models").symlink_to(
            models.absolute()
        )  # so that the server converts no base model again
        with demo_base(checkpoint, settings.home) as kb:
            figures = _measure_server(kb, settings, checkpoint, numbers, seconds, tokens, long)
    device = describe_device(checkpoint.lm.device)
    print_report(figures | {"seconds": seconds, "device": device, "machine": machine()})


def _measure_server(
    kb: KnowledgeBase,
    settings: Settings,
    checkpoint: Checkpoint,
    numbers: Sequence[int],
    seconds: float,
    tokens: int,
    long: int,
) -> dict[str, Any]:
    """Give the figures. `gain_at_8` is tokens a second of 8 clients over those of one, `ttft_at_8` of the first token.

    `plain_tokens_per_second` is that of transformers' generate, one prompt after another in a process of its own.
    `long_beside` is what 8 clients see while prompts of `long_tokens` are read, one after another; `delay_by_long` is
    its p99 between tokens over that without.
    """
    prompts = api.prompts_of(kb, PROMPTS)
    note("transformers, one prompt after another")
    plain = _plain(checkpoint, prompts[:4], tokens)
    drawn = random.Random(0)
    ids = [[drawn.randrange(1000, 20_000) for _ in range(long)] for _ in range(LONG_PROMPTS if long else 0)]
    note("starting a server")
    most = {"COLMLM_PROMPT_MAX_TOKENS": "8192"}
    with api.token_for(kb) as token, our_server(settings, with_model=True, variables=most) as port:

        def run_load(number: int, ids: list[list[int]]) -> WritingFigures:
            note(f"{number} clients" + (" beside a long prompt" if ids else ""))
            return _run_clients(
                WritingLoad(
                    port=port,
                    token=token,
                    clients=number,
                    seconds=seconds,
                    max_tokens=tokens,
                    prompts=prompts,
                    long=ids,
                )
            )

        run_load(1, [])  # a warm-up: the server's first requests open what later ones find open
        found = {number: run_load(number, []) for number in numbers}
        beside = run_load(BESIDE, ids) if ids else None
    one, eight = found.get(1), found.get(8)
    return {
        "max_tokens": tokens,
        "clients": list(found.values()),
        "gain_at_8": ratio(eight.tokens_per_second, one.tokens_per_second) if one and eight else None,
        "ttft_at_8": ratio(eight.ttft_p50_ms, one.ttft_p50_ms) if one and eight else None,
        "plain_tokens_per_second": plain,
        "long_tokens": long,
        "long_beside": beside,
        "delay_by_long": ratio(beside.between_p99_ms, eight.between_p99_ms) if beside and eight else None,
    }


def ratio(figure: float, other: float) -> float | None:
    """Give one figure over another; None where the other is 0, as where too little was written to measure it."""
    return figure / other if other else None


def _plain(checkpoint: Checkpoint, prompts: Sequence[str], tokens: int) -> float:
    """Give the tokens a second of a loop of transformers' generate; its first turn is a warm-up."""
    from colmlm.lab.bench.decode import generated_tokens

    generated_tokens(checkpoint, prompts[:1], tokens)
    began = time.perf_counter()
    for prompt in prompts:
        generated_tokens(checkpoint, [prompt], tokens)
    return len(prompts) * tokens / (time.perf_counter() - began)


def _run_clients(load: WritingLoad) -> WritingFigures:
    command = interpreter.command("-m", "colmlm.lab.bench.clients", "completions")
    ran = subprocess.run(command, input=json.dumps(asdict(load)), text=True, capture_output=True, check=True)
    return WritingFigures(**json.loads(ran.stdout))
