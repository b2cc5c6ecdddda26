"""`colmlm evaluate`: measure a checkpoint and its baselines."""

from __future__ import annotations

import typer

from cli import evaluate_recall, evaluate_timing
from cli.options import examples

app = typer.Typer(
    help="Measure a checkpoint and its baselines: recall of keys, when it looks up.",
    epilog=examples("colmlm evaluate recall --corpus demo"),
)
app.command("recall", epilog=evaluate_recall.RECALL_EXAMPLES)(evaluate_recall.recall_command)
app.command("timing", epilog=evaluate_timing.EXAMPLES)(evaluate_timing.timing)


@app.callback()
def evaluate() -> None:
    """Measure a checkpoint and its baselines."""
