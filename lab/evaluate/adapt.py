"""`colmlm evaluate adapt`: measures what keys predicted from an older checkpoint's cost against making true ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import counting, print_json, print_table
from colmlm.kb.corpus.squad import read_squad
from colmlm.lab.methods.adapted_keys import (
    KINDS,
    METHODS,
    AdaptedPair,
    AskedCorpus,
    CheckpointKeys,
    adapted,
    kept,
    keys_of,
    known,
)

EXAMPLES = examples(
    "colmlm evaluate adapt --squad dev.jsonl --from runs/old --to runs/new --json",
    "colmlm evaluate adapt --squad dev.jsonl --from runs/old --to runs/a --to runs/b --sample 100 --sample 1000",
)

_COLUMNS = (
    "from", "to", "kind", "sample", "method", "recall_at_1", "recall_at_1_true", "recall_at_1_old",
    "recall_at_1_before", "recall_at_10", "recall_at_10_true", "seconds", "seconds_true",
)  # fmt: skip


def adapt(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ],
    origin: Annotated[
        Path, typer.Option("--from", exists=True, file_okay=False, help="The older checkpoint.")
    ],
    to: Annotated[
        list[Path],
        typer.Option("--to", exists=True, file_okay=False, help="A newer checkpoint; may be repeated."),
    ],
    sample: Annotated[
        list[int] | None,
        typer.Option(
            "--sample", min=10, help="How many facts get true keys; may be repeated. Default: 1000."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="procrustes, ridge, auto or mlp; may be repeated. Default: all but auto."
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            "--kinds", help="context, or context,question: asked at <FACT-q>, and as a decoder asks."
        ),
    ] = "context",
    documents: Annotated[
        int | None, typer.Option("--documents", min=2, help="At most so many paragraphs. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many draws of each sample.")] = 1,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", file_okay=False, help="A folder that keeps the checkpoints' keys for a next run."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure recall by predicted keys, by true ones, and by the older checkpoint's as they are.

    Nothing is written to a knowledge base. Questions are the newer checkpoint's.
    """
    wanted = tuple(kinds.split(","))
    if not set(wanted) <= set(KINDS):
        raise typer.BadParameter(f"{kinds!r} is none of context, question.", param_hint="--kinds")
    methods = method or list(METHODS)
    if unknown := set(methods) - {*METHODS, "auto"}:
        raise typer.BadParameter(f"there is no {sorted(unknown)[0]!r}.", param_hint="--method")
    corpus = _corpus(squad, documents)
    with Runtime.from_environment() as runtime:
        old = _keys(runtime, origin, corpus, wanted, keys)
        pairs: list[AdaptedPair] = []
        for path in to:
            new = _keys(runtime, path, corpus, wanted, keys)
            pairs += _measured(old, new, corpus, wanted, sample or [1000], methods, seeds)
    found = [pair.as_json() for pair in pairs]
    if as_json:
        print_json({"pairs": found})
    else:
        print_table(_COLUMNS, [[one[column] for column in _COLUMNS] for one in found])


def _corpus(squad: Path, most: int | None) -> AskedCorpus:
    parsed = (one.document for one in read_squad(squad))
    found = [document for document in parsed if document is not None and document.facts]
    return AskedCorpus(found[:most])


def _keys(
    runtime: Runtime, path: Path, corpus: AskedCorpus, kinds: Sequence[str], folder: Path | None
) -> CheckpointKeys:
    encoder = runtime.encoder_at(path)

    def make() -> CheckpointKeys:
        passes = 3 if "question" in kinds else 2
        with counting(f"keys of {path}", passes * len(corpus.questions)) as done:
            return keys_of(encoder, encoder.checkpoint.name, corpus, kinds, done)

    if folder is None:
        return make()
    name = f"{encoder.checkpoint.checkpoint_id[:16]}-{corpus.digest}.npz"
    return kept(folder / name, make, kinds)


def _measured(
    old: CheckpointKeys,
    new: CheckpointKeys,
    corpus: AskedCorpus,
    kinds: Sequence[str],
    samples: Sequence[int],
    methods: Sequence[str],
    seeds: int,
) -> list[AdaptedPair]:
    ways = [(k, s, m, seed) for k in kinds for s in samples for m in methods for seed in range(seeds)]
    with counting(f"maps from {old.name} to {new.name}", len(ways)) as done:
        pairs, beside = [], {kind: known(old, new, kind) for kind in kinds}
        for kind, size, method, seed in ways:
            pairs.append(adapted(old, new, corpus, kind, beside[kind], sample=size, method=method, seed=seed))
            done(1)
    return pairs
