"""`colmlm-lab bench`: measures the store beside bare libraries and other stores, and the model beside transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.lookup.options import RANKINGS
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.api import API_EXAMPLES, api
from colmlm.lab.bench.machine import WorkDirectory, machine, own_folder
from colmlm.lab.bench.query import QUERY_EXAMPLES, query
from colmlm.lab.bench.serve import SERVE_EXAMPLES, serve

if TYPE_CHECKING:
    from colmlm.lab.bench.compare import PeerFailure, PeerResult
    from colmlm.lab.bench.store import StoreFigures
    from colmlm.lab.bench.synthetic import MeasuredKeys
    from colmlm.model.lm.checkpoint import Checkpoint

app = typer.Typer(
    help="Measure this program on this machine.",
    epilog=examples("colmlm-lab bench store --facts 20000 --json"),
)
app.command("api", epilog=API_EXAMPLES)(api)
app.command("query", epilog=QUERY_EXAMPLES)(query)
app.command("serve", epilog=SERVE_EXAMPLES)(serve)


@app.callback()
def group() -> None:
    """Benchmarks run on a knowledge base of their own and do not touch yours."""


@app.command(
    epilog=examples(
        "colmlm-lab bench store --facts 100000 --dim 576",
        "colmlm-lab bench store --facts 1000000 --dim 576 --json > store.json",
        "colmlm-lab bench store --facts 100000 --peers --plots plots",
        "colmlm-lab bench store --keyset 1 --spec RR576,IVF256,RaBitQ",
        "colmlm-lab bench store --backend milvus:bench",
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
            help="Instead: lookups whose keys are in this collection, milvus:NAME, beside Faiss. It must not exist.",
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
    measured = _measured(facts, dim, seed, keyset, checkpoint)
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
    if wants_json():
        print_json(asdict(figures) | {"peers": others, "machine": machine()})
        return
    _show(figures)
    if others:
        _show_peers(others)


def _measure_backend(
    measured: MeasuredKeys,
    seed: int,
    backend: str,
    spec: str | None,
    directory: Path | None,
) -> None:
    from colmlm.kb.lookup.specs import collection_of
    from colmlm.lab.bench.elsewhere import BackendBench

    if collection_of(backend) is None:
        raise typer.BadParameter(f"{backend!r} is not milvus:COLLECTION.", param_hint="--backend")
    address = Settings.from_environment(os.environ).milvus
    with own_folder(directory) as home:
        figures = asdict(BackendBench(measured, seed, backend, spec, address, home, note).run())
    if wants_json():
        print_json(figures | {"machine": machine()})
    else:
        print_table(
            ("what", "measured"),
            [(n, f"{v:.3f}" if isinstance(v, float) else str(v)) for n, v in figures.items()],
        )


def _measured(facts: int, dim: int, seed: int, keyset: int | None, checkpoint: Path | None) -> MeasuredKeys:
    from colmlm.lab.bench.synthetic import MeasuredKeys

    if keyset is None:
        return MeasuredKeys.synthetic(facts, dim, seed)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        return MeasuredKeys.of_keyset(runtime.kb, keyset, runtime.encoder, facts, seed)


def _compare(figures: StoreFigures) -> list[PeerResult | PeerFailure]:
    from colmlm.lab.bench.compare import compare

    return compare(
        figures.facts, figures.dim, target_recall=figures.recall_at_1, seed=figures.seed, on_progress=note
    )


def _plot(directory: Path, ours: StoreFigures, others: Sequence[PeerResult | PeerFailure]) -> None:
    from colmlm.lab.bench.compare import PeerResult, plot_latencies, plot_systems

    directory.mkdir(parents=True, exist_ok=True)
    title = f"{ours.facts:,} facts of width {ours.dim}"
    latencies = {
        "lookup, to the text": {50.0: ours.lookup_p50_ms, 99.0: ours.lookup_p99_ms},
        "bare Faiss, to the id": {50.0: ours.faiss_p50_ms, 99.0: ours.faiss_p99_ms},
        "delete, to the commit": {50.0: ours.delete_p50_ms, 99.0: ours.delete_p99_ms},
    }
    plot_latencies(latencies, directory / "store.png", title=title)
    systems = [other for other in others if isinstance(other, PeerResult)]
    if systems:
        plot_systems(systems, directory / "peers.png", title=title)


def _show_peers(stores: Sequence[PeerResult | PeerFailure]) -> None:
    """Run every store through the same job and show the figures. This program is one of them."""
    from colmlm.lab.bench.compare import PeerResult

    columns = (
        "store",
        "recall@1",
        "facts/s",
        "lookup p50 ms",
        "p99",
        "delete p50 ms",
        "p99",
        "MB",
        "deleted left",
    )
    rows: list[tuple[str, ...]] = []
    for store in stores:
        if isinstance(store, PeerResult):
            left = store.residue_of_deleted
            rows.append((
                f"{store.name} {store.version}", f"{store.recall_at_1:.3f}", f"{store.facts_per_second:.0f}",
                f"{store.lookup_ms.p50:.2f}", f"{store.lookup_ms.p99:.2f}", f"{store.delete_ms.p50:.2f}",
                f"{store.delete_ms.p99:.2f}", f"{store.bytes_after_clean_up / 1e6:.0f}",
                f"{left.values} values, {left.keys} keys of {left.num_facts}",
            ))  # fmt: skip
        else:
            rows.append((store.name, store.reason, *("",) * (len(columns) - 2)))
    print_table(columns, rows)


def _show(f: StoreFigures) -> None:
    faiss = f"{f.single_vs_faiss:.2f} x bare Faiss ({f.faiss_p50_ms:.2f} ms)"
    copy_or_add = f"COPY ({f.bare_copy_facts_per_s:.0f}/s) and index add ({f.bare_add_facts_per_s:.0f}/s)"
    rows = [
        ("lookup p50", f"{f.lookup_p50_ms:.2f} ms", f"{faiss}; round trip {f.round_trip_p50_ms:.2f} ms"),
        ("lookup p99", f"{f.lookup_p99_ms:.2f} ms", f"bare Faiss {f.faiss_p99_ms:.2f} ms"),
        ("in batches", f"{f.batch_queries_per_s:.0f} queries/s", f"{f.batch_vs_faiss:.2f} of bare Faiss"),
        ("recall@1", f"{f.recall_at_1:.3f}", f"bare Faiss {f.faiss_recall_at_1:.3f}"),
        ("ingest", f"{f.ingest_facts_per_s:.0f} facts/s", f"{f.ingest_vs_bare:.2f} of bare {copy_or_add}"),
        (
            "build",
            f"{f.index_train_seconds + f.index_add_seconds + f.index_fit_seconds:.1f} s",
            f"training {f.index_train_seconds:.1f} s, keys {f.index_add_seconds:.1f}, fit {f.index_fit_seconds:.1f}",
        ),
        ("delete p50", f"{f.delete_p50_ms:.2f} ms", f"bare commit {f.bare_commit_p50_ms:.2f} ms"),
        (
            "delete p99",
            f"{f.delete_p99_ms:.2f} ms",
            f"bare commit {f.bare_commit_p99_ms:.2f} ms; found afterwards: {f.deleted_but_found}",
        ),
        (
            "forget",
            f"{f.forget_seconds:.1f} s",
            f"{f.forget_facts} facts; committed {f.forget_commit_seconds:.1f} s",
        ),
        ("reopen", f"{f.reopen_seconds:.1f} s", "from kill -9 of everything to the first answer"),
        ("memory", f"{f.bytes_per_fact:.0f} bytes a fact", f"database {f.database_bytes_per_fact:.0f}"),
    ]
    say(f"{f.facts} facts of width {f.dim}, keys {f.keys}, {f.spec}, {f.lists_read} of {f.lists} lists read")
    print_table(("what", "measured", "beside"), rows)


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
    if set(rankings) - set(RANKINGS):
        raise typer.BadParameter(f"it is none of {', '.join(RANKINGS)}.", param_hint="--ranking")
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
            **asdict(figures),
            "checkpoint": runtime.checkpoint.config.name,
            "threads": torch.get_num_threads(),
            "allocator": "jemalloc" if "jemalloc" in os.environ.get("LD_PRELOAD", "") else "glibc",
            "machine": machine(),
        }
    if wants_json():
        print_json(report)
        return
    print_table(
        ("rows", "tokens/s", "transformers", "ratio", "tokens that agree"),
        [
            (f.prompts, f"{f.tokens_per_s:.1f}", f"{f.generate_tokens_per_s:.1f}", f"{f.vs_generate:.2f}",
             f"{f.agreement:.1%}")
            for f in (figures.batch1, figures.batch8)
        ],
    )  # fmt: skip
    cost = figures.lookups
    say(f"{cost.lookups} lookups of {cost.lookup_ms:.1f} ms make answers {cost.lookup_cost:+.1%} slower")
    say(", ".join(f"{name} {share:.0%}" for name, share in figures.shares.items()))
    if figures.rankings:
        print_table(
            ("ranking", "tokens/s", "of eight rows", "lookups", "hits", "ms a lookup"),
            [
                (name, f"{f.tokens_per_s:.1f}", f"{f.tokens_per_s_together:.1f}", f.lookups, f.hits,
                 f"{f.lookup_ms:.1f}")
                for name, f in figures.rankings.items()
            ],
        )  # fmt: skip


def _in_precision(runtime: Runtime, precision: Precision) -> Checkpoint:
    """Give the runtime's checkpoint with its weights in another precision, loaded again for it."""
    checkpoint = runtime.checkpoint
    if precision is Precision.auto or checkpoint.path is None:
        return checkpoint
    from colmlm.model.lm.checkpoint import load

    return load(checkpoint.path, runtime.settings.home / "models", precision=precision.value)
