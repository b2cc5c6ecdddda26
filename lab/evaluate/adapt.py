"""`colmlm evaluate adapt`: measures what keys predicted from an older checkpoint's cost against making true ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import counting, print_json, print_table
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import read_squad
from colmlm.lab.methods.adapted_keys import (
    KINDS,
    METHODS,
    AdaptedPair,
    AskedCorpus,
    CheckpointKeys,
    adapted,
    joined,
    kept,
    keys_of,
    known,
)
from colmlm.lab.methods.generated_facts import generated

EXAMPLES = examples(
    "colmlm evaluate adapt --squad dev.jsonl --from runs/old --to runs/new --json",
    "colmlm evaluate adapt --squad dev.jsonl --from runs/old --to runs/a --to runs/b --sample 100 --sample 1000",
    "colmlm evaluate adapt --generated 100000 --from runs/old --to runs/new --sample 1000 --keys keys",
)

_COLUMNS = (
    "from", "to", "kind", "sample", "method", "recall_at_1", "recall_at_1_true", "recall_at_1_old",
    "recall_at_1_before", "recall_at_10", "recall_at_10_true", "seconds", "seconds_true",
)  # fmt: skip


def adapt(
    origin: Annotated[
        Path, typer.Option("--from", exists=True, file_okay=False, help="The older checkpoint.")
    ],
    to: Annotated[
        list[Path],
        typer.Option("--to", exists=True, file_okay=False, help="A newer checkpoint; may be repeated."),
    ],
    squad: Annotated[
        Path | None,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ] = None,
    made_up: Annotated[
        int | None,
        typer.Option(
            "--generated", min=20, help="Instead: so many made-up facts, of which some are asked for."
        ),
    ] = None,
    asked: Annotated[
        int, typer.Option("--asked", min=10, help="With --generated: how many are asked for.")
    ] = 2000,
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
    if made_up is not None and "question" in wanted:
        raise typer.BadParameter("what is generated has keys of contexts only.", param_hint="--kinds")
    corpus = AskedCorpus(_documents(squad, made_up, asked)[:documents])
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


def _documents(squad: Path | None, made_up: int | None, asked: int) -> list[AnnotatedDocument]:
    if made_up is not None and squad is None:
        return list(generated(made_up, asked))
    if squad is None or made_up is not None:
        raise typer.BadParameter("name one of them.", param_hint="--squad, --generated")
    parsed = (one.document for one in read_squad(squad))
    return [document for document in parsed if document is not None and document.facts]


def _keys(
    runtime: Runtime, path: Path, corpus: AskedCorpus, kinds: Sequence[str], folder: Path | None
) -> CheckpointKeys:
    encoder = runtime.encoder_at(path)
    asking = 2 if "question" in kinds else 1
    with counting(f"keys of {path}", len(corpus.document_of) + asking * len(corpus.questions)) as done:

        def make(piece: AskedCorpus) -> CheckpointKeys:
            return keys_of(encoder, encoder.checkpoint.name, piece, kinds, done)

        if folder is None:
            return joined([make(piece) for piece in corpus.pieces()])
        files = (f"{encoder.checkpoint.checkpoint_id[:16]}-{piece.digest}.npz" for piece in corpus.pieces())
        pieces = zip(files, corpus.pieces(), strict=True)
        return joined([kept(folder / file, partial(make, piece), kinds) for file, piece in pieces])


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
        pairs, beside = [], {kind: known(old, new, corpus, kind) for kind in kinds}
        for kind, size, method, seed in ways:
            pairs.append(adapted(old, new, corpus, kind, beside[kind], sample=size, method=method, seed=seed))
            done(1)
    return pairs
