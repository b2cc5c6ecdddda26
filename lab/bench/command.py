"""`colmlm-lab bench`: measures the store beside bare libraries and other stores, and the model beside transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench import models
from colmlm.lab.bench.api import API_EXAMPLES, api
from colmlm.lab.bench.machine import machine, own_folder
from colmlm.lab.bench.query import QUERY_EXAMPLES, query
from colmlm.lab.bench.releases import RELEASE_EXAMPLES, release
from colmlm.lab.bench.serve import SERVE_EXAMPLES, serve
from colmlm.lab.bench.size.command import SIZE_EXAMPLES, size

if TYPE_CHECKING:
    from colmlm.lab.bench.compare import PeerFailure, PeerResult
    from colmlm.lab.bench.store import StoreFigures
    from colmlm.lab.bench.synthetic import MeasuredKeys

app = typer.Typer(
    help="Measure this program on this machine.",
    epilog=examples("colmlm-lab bench store --facts 20000 --json"),
)
app.command("api", epilog=API_EXAMPLES)(api)
app.command("encode", epilog=models.ENCODE_EXAMPLES)(models.encode)
app.command("decode", epilog=models.DECODE_EXAMPLES)(models.decode)
app.command("query", epilog=QUERY_EXAMPLES)(query)
app.command("release", epilog=RELEASE_EXAMPLES)(release)
app.command("serve", epilog=SERVE_EXAMPLES)(serve)
app.command("size", epilog=SIZE_EXAMPLES)(size)
app.command("train", epilog=models.TRAIN_EXAMPLES)(models.train)


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
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
        ),
    ] = None,
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
    from colmlm.lab.bench.compare import PeerResult
    from colmlm.lab.bench.plots import System, plot_latencies, plot_systems

    directory.mkdir(parents=True, exist_ok=True)
    title = f"{ours.facts:,} facts of width {ours.dim}"
    latencies = {
        "lookup, to the text": {50.0: ours.lookup_p50_ms, 99.0: ours.lookup_p99_ms},
        "bare Faiss, to the id": {50.0: ours.faiss_p50_ms, 99.0: ours.faiss_p99_ms},
        "delete, to the commit": {50.0: ours.delete_p50_ms, 99.0: ours.delete_p99_ms},
    }
    plot_latencies(latencies, directory / "store.png", title=title)
    systems = [System.of(other) for other in others if isinstance(other, PeerResult)]
    if systems:
        plot_systems(systems, directory / "peers.png", title=title)


def _show_peers(stores: Sequence[PeerResult | PeerFailure]) -> None:
    """Runs every store through the same job and shows the figures. This program is one of them."""
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
