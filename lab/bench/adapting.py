"""Measures `colmlm rekey --adapt` beside a rekey by the same checkpoint: how long they take, what is found by keys.

Each command runs as a user would start it, in a process that loads the checkpoint, in a base of the benchmark's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import counting, note, print_json, print_table
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.keys.maps import shares_found
from colmlm.lab.bench.empty_base import empty_base
from colmlm.lab.bench.machine import machine
from colmlm.lab.methods.generated_facts import generated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colmlm.cli.composition.model_encoder import ModelEncoder
    from colmlm.kb.keys.keysets import Vectors
    from colmlm.kb.service import KnowledgeBase

ADAPT_EXAMPLES = examples(
    "colmlm bench adapt --from runs/old --to runs/mine",
    "colmlm bench adapt --squad dev.jsonl --from runs/old --to runs/mine --sample 85 --json",
    "colmlm bench adapt --generated 100000 --from runs/old --to runs/mine --sample 500",
)
_BATCH = 32

Recalls = dict[int, float]


@dataclass(frozen=True, slots=True)
class AskedBase:
    """A base, the newer checkpoint's encoder, and what it asks: the facts [b] and its queries for them [b, d]."""

    kb: KnowledgeBase
    encoder: ModelEncoder
    fact_ids: list[int]
    queries_BD: Vectors

    @classmethod
    def asking(cls, kb: KnowledgeBase, encoder: ModelEncoder, most: int) -> AskedBase:
        """Asks the questions of up to `most` facts, spread over all."""
        facts = [fact for fact in kb.facts.every() if fact.question]
        facts = facts[:: max(1, -(-len(facts) // most))]
        pieces = []
        with counting("questions", len(facts)) as done:
            for start in range(0, len(facts), _BATCH):
                asked = [fact.question or "" for fact in facts[start : start + _BATCH]]
                pieces.append(encoder.encode_questions(asked))
                done(len(asked))
        return cls(kb, encoder, [fact.fact_id for fact in facts], np.concatenate(pieces))

    def found(self, keyset_id: int) -> Recalls:
        """Gives recall at 1 and at 10 of the facts' own keys among all keys of the keyset."""
        fact_ids, keys_ND = self.kb.keysets.keys(keyset_id)
        place = {fact_id: n for n, fact_id in enumerate(fact_ids.tolist())}
        return shares_found(self.queries_BD, [place[one] for one in self.fact_ids], keys_ND)


def adapt(
    origin: Annotated[
        Path, typer.Option("--from", exists=True, file_okay=False, help="The older checkpoint.")
    ],
    to: Annotated[Path, typer.Option("--to", exists=True, file_okay=False, help="The newer checkpoint.")],
    squad: Annotated[
        Path | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="A SQuAD file. Default: the demo corpus."),
    ] = None,
    made_up: Annotated[
        int | None, typer.Option("--generated", min=240, help="Instead: so many made-up facts.")
    ] = None,
    documents: Annotated[
        int | None, typer.Option("--documents", min=20, help="At most so many. Default: all.")
    ] = None,
    sample: Annotated[int | None, typer.Option("--sample", min=10, help="As of `rekey --adapt`.")] = None,
    asked: Annotated[int, typer.Option("--asked", min=10, help="How many questions, at most.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Time `rekey --adapt` and a rekey that makes all keys, and ask by the keys of both and by the older ones."""
    if squad is not None and made_up is not None:
        raise typer.BadParameter("name one of them.", param_hint="--squad, --generated")
    with empty_base() as kb, Runtime.from_environment() as runtime:
        note("ingesting")
        found = _documents(squad) if made_up is None else map(Parsed, generated(made_up, asked))
        corpus = islice(found, documents)
        kb.corpora.ingest(corpus, "bench", actor="bench", reason="benchmark")
        models = runtime.settings.home / "models"
        if models.is_dir():  # the base that both checkpoints adapt, which need not be converted again
            (kb.settings.home / "models").symlink_to(models.resolve())
        report = _measured(kb, runtime.encoder_at(to), origin, to, sample, asked)
    if as_json:
        print_json(report | {"machine": machine()})
        return
    (pair,) = report["pairs"]
    print_table(("what", "measured"), list(pair.items()))


def _documents(squad: Path | None) -> Iterator[Parsed]:
    return iter(read_annotated(DEMO_CORPUS) if squad is None else read_squad(squad))


def _measured(
    kb: KnowledgeBase, encoder: ModelEncoder, origin: Path, to: Path, sample: int | None, asked: int
) -> dict[str, Any]:
    seconds_old, old = _rekeyed(kb, "--checkpoint", origin)
    drawn = () if sample is None else ("--sample", sample)
    seconds, made = _rekeyed(kb, "--adapt", "--checkpoint", to, *drawn)
    base = AskedBase.asking(kb, encoder, asked)
    keyset_id = made["keyset"]["keyset_id"]
    by_old, by_adapted = base.found(old["keyset_id"]), base.found(keyset_id)
    kb.keysets.retire(keyset_id, actor="bench", reason="to be made anew")
    seconds_true, true = _rekeyed(kb, "--checkpoint", to)
    by_true = base.found(true["keyset_id"])
    told = made["pairs"][0]
    pair = {
        **{name: told[name] for name in ("from", "to", "kind", "facts", "sample", "method")},
        **{f"recall_at_{k}{way}": round(share, 4)
           for way, found in (("", by_adapted), ("_true", by_true), ("_old", by_old)) for k, share in found.items()},
        "asked": len(base.fact_ids),
        "recall_kept": round(by_adapted[1] / by_true[1], 4) if by_true[1] else None,
        "seconds": round(seconds, 1),
        "seconds_true": round(seconds_true, 1),
        "seconds_share": round(seconds / seconds_true, 4),
        "seconds_of_work": told["seconds"],
        "seconds_of_the_older": round(seconds_old, 1),
    }  # fmt: skip
    return {"pairs": [pair]}


def _rekeyed(kb: KnowledgeBase, *words: object) -> tuple[float, dict[str, Any]]:
    """Runs a rekey in a process of its own; gives its seconds, from start to end, and what it prints."""
    note(f"colmlm rekey {' '.join(map(str, words))}")
    command = interpreter.command("-m", "colmlm.cli", "rekey", *words, "--json")
    environment = {name: value for name, value in os.environ.items() if name != "COLMLM_DATABASE_URL"}
    began = time.perf_counter()
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, env=environment | {"COLMLM_HOME": str(kb.settings.home)}
    )
    seconds = time.perf_counter() - began
    said: dict[str, Any] = json.loads(ran.stdout)
    return seconds, said
