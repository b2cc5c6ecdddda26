"""`colmlm-lab bench`: measures the store beside bare libraries and other stores, and the model beside transformers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples
from colmlm.cli.output import note, progress
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.lookup.options import RANKINGS
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.api import API_EXAMPLES, api
from colmlm.lab.bench.machine import WorkDirectory, machine, own_folder, print_report
from colmlm.lab.bench.serve import SERVE_EXAMPLES, serve

if TYPE_CHECKING:
    from colmlm.lab.bench.compare import PeerFailure, PeerResult
    from colmlm.lab.bench.synthetic import MeasuredKeys
    from colmlm.model.decoding.rows import QueryEncoder
    from colmlm.model.evaluate.lookups import QueryCost
    from colmlm.model.lm.checkpoint import Checkpoint

app = typer.Typer(
    help="Measure this program on this machine.",
    epilog=examples("colmlm-lab bench store --facts 20000 --json"),
)
app.command("api", epilog=API_EXAMPLES)(api)
app.command("serve", epilog=SERVE_EXAMPLES)(serve)


@app.callback()
def group() -> None:
    """Measure speed and size on a knowledge base of its own, which leaves yours alone."""


@app.command(
    epilog=examples(
        "colmlm-lab bench store --facts 100000 --dim 576",
        "colmlm-lab bench store --facts 1000000 --dim 576 --json > store.json",
        "colmlm-lab bench store --facts 100000 --peers --plots plots",
        "colmlm-lab bench store --keyset 1 --spec RR576,IVF256,RaBitQ",
        "colmlm-lab bench store --backend milvus:bench",
        "colmlm-lab bench store --backend torch --facts 100000 --spec IDMap2,Flat",
    )
)
def store(
    facts: Annotated[
        int, typer.Option("--facts", min=2000, help="How many facts; of a keyset at most.")
    ] = 100_000,
    dim: Annotated[int, typer.Option("--dim", min=4, max=16_384, help="Width of a synthetic key.")] = 576,
    keyset: Annotated[
        int | None,
        typer.Option(
            "--keyset", help="Instead of synthetic keys: a keyset of your base, and questions of its facts."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of keys and queries.")] = 0,
    spec: Annotated[
        str | None, typer.Option("--spec", help="A Faiss factory string. Default: by size.")
    ] = None,
    forget: Annotated[
        int | None,
        typer.Option("--forget", min=1, help="How many facts to forget at once. Default: a tenth."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            help="Instead: lookups by torch, or with keys in a new collection, milvus:NAME, beside those by Faiss.",
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Then other stores, at the same recall. Needs the extra bench."),
    ] = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", file_okay=False, help="Write PNG plots into this directory.")
    ] = None,
    directory: WorkDirectory = None,
) -> None:
    """Measure ingest, lookup, delete, forget and reopen on keys with exact ground truth.

    Keys are synthetic, or a keyset's, of which nothing is changed; its model asks the questions. Every speed is shown
    beside that of bare Faiss or PostgreSQL in the same run. Let nothing else run meanwhile.
    """
    from colmlm.lab.bench.store import StoreBench

    if peers and (keyset is not None or backend is not None):
        raise typer.BadParameter(
            "other stores get synthetic keys, in a run without a backend.", param_hint="--peers"
        )
    note("making keys")
    measured = _make_keys(facts, dim, seed, keyset, checkpoint)
    if backend is not None:
        _measure_backend(measured, seed, backend, spec, directory)
        return
    with own_folder(directory) as home:
        bench = StoreBench(
            measured=measured,
            seed=seed,
            spec=spec,
            num_forgotten=forget or min(100_000, len(measured.keys) // 10),
            home=home,
            say=note,
        )
        figures = bench.run()
    others = _compare(figures) if peers else []
    if plots is not None:
        _plot(plots, figures, others)
    print_report(figures | {"peers": others, "machine": machine()})


def _measure_backend(
    measured: MeasuredKeys,
    seed: int,
    backend: str,
    spec: str | None,
    directory: Path | None,
) -> None:
    from colmlm.kb.lookup.specs import TORCH_SPEC, collection_of
    from colmlm.lab.bench.store import BackendBench

    if backend != TORCH_SPEC and collection_of(backend) is None:
        raise typer.BadParameter(
            f"there is no backend {backend!r}; give torch or milvus:COLLECTION.", param_hint="--backend"
        )
    address = Settings.from_environment(os.environ).milvus
    with own_folder(directory) as home:
        figures = BackendBench(measured, seed, backend, spec, address, home, note).run()
    print_report(figures | {"machine": machine()})


def _make_keys(facts: int, dim: int, seed: int, keyset: int | None, checkpoint: Path | None) -> MeasuredKeys:
    from colmlm.lab.bench.synthetic import MeasuredKeys

    if keyset is None:
        return MeasuredKeys.synthetic(facts, dim, seed)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        return MeasuredKeys.of_keyset(runtime.kb, keyset, runtime.encoder, facts, seed)


def _compare(figures: dict[str, Any]) -> list[PeerResult | PeerFailure]:
    from colmlm.lab.bench.compare import compare

    return compare(
        figures["facts"],
        figures["dim"],
        target_recall=figures["recall_at_1"],
        seed=figures["seed"],
        on_progress=note,
    )


def _plot(directory: Path, ours: dict[str, Any], others: Sequence[PeerResult | PeerFailure]) -> None:
    from colmlm.lab.bench.compare import PeerResult, plot_latencies, plot_systems

    directory.mkdir(parents=True, exist_ok=True)
    title = f"{ours['facts']:,} facts of width {ours['dim']}"
    latencies = {
        "lookup, to the text": {50.0: ours["lookup_p50_ms"], 99.0: ours["lookup_p99_ms"]},
        "bare Faiss, to the id": {50.0: ours["faiss_p50_ms"], 99.0: ours["faiss_p99_ms"]},
        "delete, to the commit": {50.0: ours["delete_p50_ms"], 99.0: ours["delete_p99_ms"]},
    }
    plot_latencies(latencies, directory / "store.png", title=title)
    systems = [other for other in others if isinstance(other, PeerResult)]
    if systems:
        plot_systems(systems, directory / "peers.png", title=title)


class Precision(StrEnum):
    auto = "auto"
    bf16 = "bf16"
    fp32 = "fp32"


@app.command(
    epilog=examples(
        "colmlm-lab bench decode --json",
        "colmlm-lab bench decode --tokens 128 --rounds 5 --precision fp32",
        "colmlm-lab bench decode --ranking key,words,reader --json",
    )
)
def decode(
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=2000, help="Tokens a row.")] = 64,
    ranking: Annotated[
        str,
        typer.Option("--ranking", help="Also time lookups by these, with commas: of key, words and reader."),
    ] = "",
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of the weights. Default: as lookups are served.")
    ] = Precision.auto,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=1, max=1000, help="How often each way is timed, in turns; medians count."
        ),
    ] = 3,
    checkpoint: CheckpointPath = None,
) -> None:
    """Time greedy decoding beside `transformers.generate`, one prompt and eight at once, and what lookups cost.

    Lookups use a temporary knowledge base that holds a part of the demo corpus, and with --ranking one that holds all
    of it.
    """
    rankings = [name for name in ranking.split(",") if name]
    if unknown := sorted(set(rankings) - set(RANKINGS)):
        cause = f"there is no ranking {', '.join(unknown)}; choose among {', '.join(RANKINGS)}."
        raise typer.BadParameter(cause, param_hint="--ranking")
    with (
        own_folder() as home,
        Runtime.from_environment(checkpoint=checkpoint) as runtime,
    ):
        import torch

        from colmlm.lab.bench.decode import bench_decode

        note(f"{tokens} tokens a row, {rounds} rounds")
        figures = bench_decode(
            _in_precision(runtime, precision),
            home,
            tokens=tokens,
            rounds=rounds,
            rankings=rankings,
            reader=lambda: runtime.reader,
        )
        report = {
            **figures,
            "checkpoint": runtime.checkpoint.config.name,
            "threads": torch.get_num_threads(),
            "allocator": "jemalloc" if "jemalloc" in os.environ.get("LD_PRELOAD", "") else "glibc",
            "machine": machine(),
        }
    print_report(report)


def _in_precision(runtime: Runtime, precision: Precision) -> Checkpoint:
    """Give the runtime's checkpoint with its weights in another precision, loaded again for it."""
    checkpoint = runtime.checkpoint
    if precision is Precision.auto or checkpoint.path is None:
        return checkpoint
    from colmlm.model.lm.checkpoint import load

    return load(checkpoint.path, runtime.settings.home / "models", precision=precision.value)


@app.command(
    epilog=examples(
        "colmlm-lab bench train --set batch_documents=128 --set forward_tokens=32768 --steps 0 --json",
        "colmlm-lab bench train --squad train.jsonl --steps 5",
    )
)
def train(
    squad: Annotated[
        list[Path] | None,
        typer.Option("--squad", exists=True, help="A SQuAD file to train on. Default: the demo corpus."),
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help="The settings to begin with.")] = "small",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE; may be repeated.")] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=0, help="How many steps are timed. With 0 a step is only counted.")
    ] = 3,
) -> None:
    """Count the forwards and shapes of a training step, and time its host's work and some steps. Keeps nothing."""
    from colmlm.lab.bench.train import bench_training
    from colmlm.model.training import config as presets

    try:
        config = presets.with_settings(presets.preset(preset), settings or [])
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    parsed = chain.from_iterable(map(read_squad, squad)) if squad else read_annotated(DEMO_CORPUS)
    documents = [one.document for one in parsed if one.document is not None]
    with own_folder() as home, Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
        figures = bench_training(config, documents, cache, home, steps)
    print_report(figures | {"machine": machine()})


@app.command(
    epilog=examples(
        "colmlm-lab bench query --squad dev.jsonl --json",
        "colmlm-lab bench query --squad dev.jsonl --asker runs/asker --rel-lmlm calls.json --rel runs/rel --sites 500",
    )
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
        ours, encoder = runtime.checkpoint, SentenceKeys.of_encoder(EncoderName.minilm).sentences
        costs: dict[str, QueryCost] = {}
        questions = _sites_of(chain(map(read_squad, squad or []), map(read_annotated, annotated or [])))
        if questions:
            other, gold = _checkpoint_of_method(runtime, asker, ASKER.method, base)
            costs["asker"] = _measure_queries(ours, other, gold, encoder, questions, sites)
        if rel_lmlm is not None:
            from colmlm.model.text.markup import read_triplets

            other, gold = _checkpoint_of_method(runtime, rel, REL_LMLM.method, base)
            calls = _sites_of([read_triplets(rel_lmlm)])
            costs["rel-lmlm"] = _measure_queries(ours, other, gold, encoder, calls, sites)
    report = _query_report(ours, encoder.name, costs)
    print_report(report)


def _sites_of(files: Iterable[Iterable[Parsed]]) -> list[AnnotatedDocument]:
    return [parsed.document for file in files for parsed in file if parsed.document is not None]


def _checkpoint_of_method(
    runtime: Runtime, path: Path | None, method: str, base: str | None
) -> tuple[Checkpoint, bool]:
    """Give the checkpoint of a method, and whether it is the base standing in for it, which is told the query."""
    from colmlm.model.lm.checkpoint import WHEEL_BASE, base_checkpoint, load
    from colmlm.model.text.markup import MARKUPS

    cache = runtime.settings.home / "models"
    if path is None:
        return base_checkpoint(base or WHEEL_BASE, cache, markup=MARKUPS[method]), True
    loaded = load(path, cache)
    if loaded.config.method != method:
        raise typer.BadParameter(
            f"{path} is of method {loaded.config.method}, not {method}; name one of that method."
        )
    return loaded, False


def _measure_queries(
    ours: Checkpoint,
    other: Checkpoint,
    gold: bool,
    encoder: QueryEncoder,
    documents: Sequence[AnnotatedDocument],
    sites: int,
) -> QueryCost:
    from colmlm.model.evaluate.lookups import QueryMaker, measure_query_cost

    method = other.config.method
    with progress(f"Queries beside {method}") as advance:
        return measure_query_cost(
            QueryMaker(ours),
            QueryMaker(other, encoder, gold=gold),
            documents,
            sites=sites,
            done=lambda number: advance(number, sites),
        )


def _query_report(ours: Checkpoint, encoder: str, costs: dict[str, QueryCost]) -> dict[str, Any]:
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
