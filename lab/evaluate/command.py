"""`colmlm-lab evaluate`: measures a checkpoint and its baselines."""

from __future__ import annotations

import typer

from colmlm.cli.options import examples
from colmlm.lab.evaluate import annotators as evaluate_annotators
from colmlm.lab.evaluate import choices as evaluate_choices
from colmlm.lab.evaluate import confidence as evaluate_confidence
from colmlm.lab.evaluate import deletion as evaluate_deletion
from colmlm.lab.evaluate import documents as evaluate_documents
from colmlm.lab.evaluate import growth as evaluate_growth
from colmlm.lab.evaluate import judged as evaluate_judged
from colmlm.lab.evaluate import perplexity as evaluate_perplexity
from colmlm.lab.evaluate import qa as evaluate_qa
from colmlm.lab.evaluate import recall as evaluate_recall
from colmlm.lab.evaluate import survivors as evaluate_survivors
from colmlm.lab.evaluate import timing as evaluate_timing
from colmlm.lab.evaluate import tofu as evaluate_tofu
from colmlm.lab.evaluate import updates as evaluate_updates

app = typer.Typer(
    help="Measure a checkpoint and its baselines: recall of keys, answers to questions, when it looks up.",
    epilog=examples(
        "colmlm-lab evaluate recall --corpus demo",
        "colmlm-lab evaluate qa --corpus squad-dev --squad dev.jsonl",
    ),
)
app.command("annotators", epilog=evaluate_annotators.ANNOTATORS_EXAMPLES)(evaluate_annotators.annotators)
app.command("recall", epilog=evaluate_recall.RECALL_EXAMPLES)(evaluate_recall.recall_command)
app.command("qa", epilog=evaluate_qa.QA_EXAMPLES)(evaluate_qa.qa)
app.command("judge-answers", epilog=evaluate_judged.EXAMPLES)(evaluate_judged.judge_answers)
app.command("biographies", epilog=evaluate_judged.WRITE_EXAMPLES)(evaluate_judged.biographies)
app.command("judge-biographies", epilog=evaluate_judged.JUDGE_EXAMPLES)(evaluate_judged.judge_biographies)
app.command("timing", epilog=evaluate_timing.EXAMPLES)(evaluate_timing.timing)
app.command("choices", epilog=evaluate_choices.EXAMPLES)(evaluate_choices.choices)
app.command("deletion", epilog=evaluate_deletion.EXAMPLES)(evaluate_deletion.deletion)
app.command("survivors", epilog=evaluate_survivors.EXAMPLES)(evaluate_survivors.survivors)
app.command("documents", epilog=evaluate_documents.EXAMPLES)(evaluate_documents.documents)
app.command("confidence", epilog=evaluate_confidence.EXAMPLES)(evaluate_confidence.confidence)
app.command("growth", epilog=evaluate_growth.EXAMPLES)(evaluate_growth.growth)
app.command("updates", epilog=evaluate_updates.EXAMPLES)(evaluate_updates.updates)
app.command("perplexity", epilog=evaluate_perplexity.EXAMPLES)(evaluate_perplexity.perplexity)
app.command("tofu", epilog=evaluate_tofu.TOFU_EXAMPLES)(evaluate_tofu.tofu)
app.command("tofu-documents", epilog=evaluate_tofu.DOCUMENTS_EXAMPLES)(evaluate_tofu.tofu_documents)
app.command("tofu-log", epilog=evaluate_tofu.LOG_EXAMPLES)(evaluate_tofu.tofu_log)


@app.callback()
def evaluate() -> None:
    """Measure a checkpoint and its baselines."""
