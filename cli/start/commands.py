"""The table of all commands of `colmlm` by name: the module of each, and its line in the list of `--help`.

A command's module is imported only when the command is called or its options are completed, so that help and the
completion of names are fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from colmlm.cli.start.lazy import Lazy

COMMANDS: Mapping[str, Lazy] = MappingProxyType(
    {
        "up": Lazy(
            "colmlm.cli.operating.serving:up",
            "Start everything: database, demo corpus, keys, a token, and the API and console.",
            examples="UP_EXAMPLES",
        ),
        "serve": Lazy(
            "colmlm.cli.operating.serving:serve",
            "Serve the API and the console on a knowledge base that is there already.",
            examples="SERVE_EXAMPLES",
        ),
        "mcp": Lazy(
            "colmlm.cli.operating.mcp:mcp",
            "Serve the Model Context Protocol: lookups, answers and edits as tools of assistants.",
            examples="EXAMPLES",
        ),
        "demo": Lazy(
            "colmlm.cli.contents.demo:demo",
            "Ask for facts, delete them, ask again, restore them, ask a third time. Run `colmlm up` first.",
            examples="EXAMPLES",
        ),
        "generate": Lazy(
            "colmlm.cli.contents.generation:generate",
            "Decode a prompt with lookups, and store the output with the evidence for every spliced span.",
            examples="GENERATE_EXAMPLES",
        ),
        "lookup": Lazy(
            "colmlm.cli.contents.generation:lookup",
            "Find the facts nearest to a question, without decoding. No match is a normal result.",
            examples="LOOKUP_EXAMPLES",
        ),
        "ask": Lazy(
            "colmlm.cli.contents.answers:ask",
            "Answer a question from the documents, with the place that says it.",
            examples="ASK_EXAMPLES",
        ),
        "questions": Lazy(
            "colmlm.cli.contents.questions:app",
            "Keep questions with the values they should get, ask them, and compare runs.",
        ),
        "facts": Lazy(
            "colmlm.cli.contents.facts:app",
            "List, show, add, edit, delete and restore facts, undo that, and compare them.",
        ),
        "review": Lazy(
            "colmlm.cli.contents.review:app",
            "Review facts that a machine marked: list, settle, and say where only accepted ones answer.",
        ),
        "erase": Lazy(
            "colmlm.cli.removal.erase:app",
            "Erase facts for good, live or deleted, all of them or none. Nothing brings them back.",
        ),
        "forget": Lazy(
            "colmlm.cli.removal.forget:app", "Forget sets of facts: plan, apply, verify, undo, certify."
        ),
        "corpus": Lazy(
            "colmlm.cli.contents.corpus:app",
            "Add, sync, annotate, export, delete and list corpora.",
        ),
        "misses": Lazy(
            "colmlm.cli.contents.misses:app",
            "What was asked and found nothing, as a work list: list, settle.",
        ),
        "trace": Lazy(
            "colmlm.cli.auditing.trace:app",
            "Trace outputs to facts and facts to outputs, and mend what is wrong.",
        ),
        "log": Lazy("colmlm.cli.auditing.log:app", "Read, compare, verify and witness the change log."),
        "backup": Lazy(
            "colmlm.cli.operating.backup:app",
            "Write a knowledge base to one file, check the file, restore it.",
        ),
        "keysets": Lazy("colmlm.cli.keysets.keysets:app", "Make, fill, check, activate and retire keysets."),
        "checkpoint": Lazy("colmlm.cli.keysets.checkpoint:app", "Describe and export checkpoints."),
        "db": Lazy(
            "colmlm.cli.operating.database:app",
            "Start, stop, migrate, describe and size the database.",
        ),
        "tokens": Lazy(
            "colmlm.cli.operating.tokens:app",
            "Make, list, rotate and revoke tokens, by which the API knows who calls it.",
        ),
        "webhooks": Lazy(
            "colmlm.cli.operating.webhooks:app",
            "Send the changes of the log to other programs: signed, in order, at least once.",
        ),
        "jobs": Lazy("colmlm.cli.operating.jobs:app", "Start, list, show, cancel and prune long work."),
        "worker": Lazy(
            "colmlm.cli.operating.jobs:worker",
            "Do the long work that the server, the console and `colmlm jobs start` queue.",
            examples="WORKER_EXAMPLES",
        ),
        "weights": Lazy(
            "colmlm.cli.operating.weights:weights",
            "Install the weights that the released models stand on, where they are missing.",
            examples="EXAMPLES",
        ),
        "doctor": Lazy(
            "colmlm.cli.operating.doctor:doctor",
            "Check this installation and change nothing: packages, settings, home, disk, database, keys, index, model.",
            examples="EXAMPLES",
        ),
        "reader": Lazy(
            "colmlm.cli.annotation.reader:app",
            "Measure the reader, which finds the answer to a question in passages.",
        ),
        "train": Lazy("colmlm.cli.training.train:app", "Train a checkpoint on annotated corpora."),
    }
)
