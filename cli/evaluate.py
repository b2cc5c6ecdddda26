"""`colmlm evaluate`: measure a checkpoint and its baselines."""

from __future__ import annotations

import typer

from cli import (
    evaluate_biographies,
    evaluate_choices,
    evaluate_deletion,
    evaluate_growth,
    evaluate_judged,
    evaluate_paper,
    evaluate_perplexity,
    evaluate_qa,
    evaluate_recall,
    evaluate_timing,
    evaluate_tofu,
    evaluate_tofu_run,
    evaluate_updates,
)
from cli.options import examples

app = typer.Typer(
    help="Measure a checkpoint and its baselines: recall of keys, answers to questions, when it looks up.",
    epilog=examples(
        "colmlm evaluate recall --corpus demo", "colmlm evaluate qa --corpus squad-dev --squad dev.jsonl"
    ),
)
app.command("recall", epilog=evaluate_recall.RECALL_EXAMPLES)(evaluate_recall.recall_command)
app.command("qa", epilog=evaluate_qa.QA_EXAMPLES)(evaluate_qa.qa)
app.command("judge-answers", epilog=evaluate_judged.EXAMPLES)(evaluate_judged.judge_answers)
app.command("biographies", epilog=evaluate_biographies.WRITE_EXAMPLES)(evaluate_biographies.biographies)
app.command("judge-biographies", epilog=evaluate_biographies.JUDGE_EXAMPLES)(
    evaluate_biographies.judge_biographies
)
app.command("timing", epilog=evaluate_timing.EXAMPLES)(evaluate_timing.timing)
app.command("choices", epilog=evaluate_choices.EXAMPLES)(evaluate_choices.choices)
app.command("deletion", epilog=evaluate_deletion.EXAMPLES)(evaluate_deletion.deletion)
app.command("paper", epilog=evaluate_paper.EXAMPLES)(evaluate_paper.paper)
app.command("growth", epilog=evaluate_growth.EXAMPLES)(evaluate_growth.growth)
app.command("updates", epilog=evaluate_updates.EXAMPLES)(evaluate_updates.updates)
app.command("perplexity", epilog=evaluate_perplexity.EXAMPLES)(evaluate_perplexity.perplexity)
app.command("tofu", epilog=evaluate_tofu_run.TOFU_EXAMPLES)(evaluate_tofu_run.tofu)
app.command("tofu-documents", epilog=evaluate_tofu_run.DOCUMENTS_EXAMPLES)(evaluate_tofu_run.tofu_documents)
app.command("tofu-log", epilog=evaluate_tofu.EXAMPLES)(evaluate_tofu.tofu_log)


@app.callback()
def evaluate() -> None:
    """Measure a checkpoint and its baselines."""
