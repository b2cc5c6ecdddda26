"""`colmlm-lab bench query`: measures what forming a query costs, beside methods that ask in words."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import print_json, print_table, progress
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.lab.bench.machine import machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colmlm.model.decoding.rows import QueryEncoder
    from colmlm.model.evaluate.lookups import QueryCost
    from colmlm.model.lm.checkpoint import Checkpoint

QUERY_EXAMPLES = examples(
    "colmlm-lab bench query --squad dev.jsonl --json",
    "colmlm-lab bench query --squad dev.jsonl --asker runs/asker --rel-lmlm calls.json --rel runs/rel --sites 500",
)


def query(
    squad: Annotated[
        list[Path] | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="Sites: a SQuAD file; may be repeated."),
    ] = None,
    annotated: Annotated[
        list[Path] | None,
        typer.Option(
            "--annotated",
            exists=True,
            dir_okay=False,
            help="Sites: an annotated JSONL file; may be repeated.",
        ),
    ] = None,
    rel_lmlm: Annotated[
        Path | None,
        typer.Option(
            "--rel-lmlm", exists=True, dir_okay=False, help="Sites of Rel-LMLM: texts with dblookup calls."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    asker: Annotated[
        Path | None,
        typer.Option("--asker", exists=True, file_okay=False, help="A checkpoint of LMLM-Asker."),
    ] = None,
    rel: Annotated[
        Path | None, typer.Option("--rel", exists=True, file_okay=False, help="A checkpoint of Rel-LMLM.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="What stands in for a method without a checkpoint.")
    ] = None,
    sites: Annotated[
        int, typer.Option("--sites", min=1, help="How many lookups a method is timed at.")
    ] = 200,
) -> None:
    """Time how each method forms a query at gold lookups, in turns, with the text before them in the cache.

    Co-LMLM takes one forward of <FACT>. LMLM-Asker decodes a question and encodes it, Rel-LMLM an entity and a
    relation. Where no checkpoint of such a method is named, the base stands in for it and writes the gold query.
    """
    if not (squad or annotated or rel_lmlm):
        raise typer.BadParameter("name a file with lookups to time at.", param_hint="--squad")
    from colmlm.cli.composition.encoders import EncoderName, SentenceKeys
    from colmlm.model.text.markup import ASKER, REL_LMLM

    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        ours, encoder = runtime.checkpoint, SentenceKeys.named(EncoderName.minilm).sentences
        costs: dict[str, QueryCost] = {}
        questions = _documents(chain(map(read_squad, squad or []), map(read_annotated, annotated or [])))
        if questions:
            other, gold = _other(runtime, asker, ASKER.method, base)
            costs["asker"] = _measure(ours, other, gold, encoder, questions, sites)
        if rel_lmlm is not None:
            from colmlm.model.text.markup import read_triplets

            other, gold = _other(runtime, rel, REL_LMLM.method, base)
            calls = _documents([read_triplets(rel_lmlm)])
            costs["rel-lmlm"] = _measure(ours, other, gold, encoder, calls, sites)
    report = _report(ours, encoder.name, costs)
    print_json(report) if wants_json() else _show(costs)


def _documents(files: Iterable[Iterable[Parsed]]) -> list[AnnotatedDocument]:
    return [parsed.document for file in files for parsed in file if parsed.document is not None]


def _other(runtime: Runtime, path: Path | None, method: str, base: str | None) -> tuple[Checkpoint, bool]:
    """Give the checkpoint of a method, and whether it is the base standing in for it, which is told the query."""
    from colmlm.model.lm.checkpoint import WHEEL_BASE, base_checkpoint, load
    from colmlm.model.text.markup import MARKUPS

    cache = runtime.settings.home / "models"
    if path is None:
        return base_checkpoint(base or WHEEL_BASE, cache, markup=MARKUPS[method]), True
    loaded = load(path, cache)
    if loaded.config.method != method:
        raise typer.BadParameter(f"{path} is of method {loaded.config.method}, not {method}.")
    return loaded, False


def _measure(
    ours: Checkpoint,
    other: Checkpoint,
    gold: bool,
    encoder: QueryEncoder,
    documents: Sequence[AnnotatedDocument],
    sites: int,
) -> QueryCost:
    from colmlm.model.evaluate.lookups import Former, measure_query_cost

    method = other.config.method
    with progress(f"Queries beside {method}") as advance:
        return measure_query_cost(
            Former(ours),
            Former(other, encoder, gold=gold),
            documents,
            sites=sites,
            done=lambda number: advance(number, sites),
        )


def _report(ours: Checkpoint, encoder: str, costs: dict[str, QueryCost]) -> dict[str, Any]:
    import torch

    precision = str(ours.lm.inference.embedding.dtype).removeprefix("torch.")
    return {
        "checkpoint": ours.config.name,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "device": str(ours.lm.device),
        "query_encoder": encoder,
        "machine": machine(),
        **{name: asdict(cost) for name, cost in costs.items()},
    }


def _show(costs: dict[str, QueryCost]) -> None:
    rows = [
        (name, c.sites, f"{c.query_tokens:g} ({c.query})", f"{c.decode_ms:.2f}", f"{c.encode_ms:.2f}",
         f"{c.total_ms:.2f}", f"{c.state_ms:.2f}", f"{c.vs_state:.1f}")
        for name, c in costs.items()
    ]  # fmt: skip
    columns = ("method", "sites", "tokens", "decode ms", "encode ms", "total ms", "co-lmlm ms", "ratio")
    print_table(columns, rows)
