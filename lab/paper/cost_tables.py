"""The results page's tables of costs: of a growing knowledge base, and of forming a query."""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.cli.operating.sizing import readable
from colmlm.lab.paper.tables import Record, markdown, percent


def growth(records: Sequence[Record]) -> list[str]:
    columns = ("facts", "answered, %", "right value, %", "lookup p50, ms", "p99, ms", "search p50, ms",
               "tokens a lookup adds", "database a fact", "index a fact", "memory a fact")  # fmt: skip
    rows = [
        (
            f"{row['facts']:,}",
            *(percent(row[name]) for name in ("exact_match", "right_value")),
            *(f"{row[name]:.2f}" for name in ("lookup_p50_ms", "lookup_p99_ms", "search_p50_ms")),
            row["context_tokens_per_lookup"],
            *(readable(row[f"{what}_bytes_per_fact"]) for what in ("database", "index", "process")),
        )
        for one in records
        for row in one["result"]["sizes"]
    ]
    return markdown(columns, rows)


def query(records: Sequence[Record]) -> list[str]:
    """Tabulates the milliseconds of one query by each method, beside those of the hidden state at the same places."""
    columns = ("method", "places", "tokens of a query", "decode, ms", "encode, ms", "in all, ms", "Co-LMLM there, ms",
               "times as long")  # fmt: skip
    times = ("query_tokens_mean", "decode_ms", "encode_ms", "total_ms", "state_ms", "vs_state")
    rows = [
        (method, found["sites"], *(found[name] for name in times))
        for one in records
        for method, found in one["result"].items()
        if isinstance(found, dict) and "vs_state" in found
    ]
    return markdown(columns, rows)
